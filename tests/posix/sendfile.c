/* sendfile.c: bytes that never pass through the program: sendfile(2), splice(2). */
#include "support.h"

#include <sys/epoll.h>
#include <sys/sendfile.h>

enum { FILE_LEN = 1 << 20 };

/* A file that continues this end's outgoing pattern. */
static int pattern_file(const struct end *end)
{
    static unsigned char bytes[FILE_LEN];
    pattern_fill(bytes, FILE_LEN, end->sent, end->send_salt);
    int file = memfd_create("pattern", MFD_CLOEXEC);
    CHECK_EQ(write(file, bytes, FILE_LEN), FILE_LEN);
    CHECK_EQ(lseek(file, 0, SEEK_SET), 0);
    return file;
}

static long position(int file)
{
    return lseek(file, 0, SEEK_CUR);
}

static void sent(struct pair *p, long n)
{
    p->self.sent += n;
    CHECK_EQ(peer_do(p, do_recv, n, 0), n);
}

/* ---- sendfile -------------------------------------------------------------------- */

/* With an offset: the offset moves, the file's position does not. */
static void with_offset(struct pair *p)
{
    int file = pattern_file(&p->self);
    off_t offset = 0;
    CHECK_EQ(sendfile(p->self.fd, file, &offset, 5000), 5000);
    CHECK_EQ(offset, 5000);
    CHECK_EQ(position(file), 0);
    sent(p, 5000);
    CHECK_EQ(sendfile(p->self.fd, file, &offset, 1), 1);
    CHECK_EQ(offset, 5001);
    sent(p, 1);
    close(file);
}

/* Without: the file's position moves. */
static void without_offset(struct pair *p)
{
    int file = pattern_file(&p->self);
    for (int i = 1; i <= 20; i++) {
        long before = position(file);
        CHECK_EQ(sendfile(p->self.fd, file, NULL, i * 100), i * 100);
        CHECK_EQ(position(file), before + i * 100);
        sent(p, i * 100);
    }
    close(file);
}

/* The end of the file makes it short, then 0. */
static void at_the_end_of_the_file(struct pair *p)
{
    int file = pattern_file(&p->self);
    CHECK_EQ(ftruncate(file, 300), 0);
    CHECK_EQ(sendfile(p->self.fd, file, NULL, 1000), 300);
    CHECK_EQ(sendfile(p->self.fd, file, NULL, 1000), 0);
    off_t offset = 300;
    CHECK_EQ(sendfile(p->self.fd, file, &offset, 1000), 0);
    offset = 5000;
    CHECK_EQ(sendfile(p->self.fd, file, &offset, 1000), 0);
    CHECK_EQ(offset, 5000);
    CHECK_EQ(sendfile(p->self.fd, file, NULL, 0), 0);
    sent(p, 300);
    close(file);
}

/* Headers by send(), body by sendfile(), as web servers do. */
static void mixed_with_send(struct pair *p)
{
    for (int i = 0; i < 10; i++) {
        do_send(&p->self, 100, MSG_MORE);
        int file = pattern_file(&p->self);
        CHECK_EQ(sendfile(p->self.fd, file, NULL, 4000), 4000);
        p->self.sent += 4000;
        do_send(&p->self, 10, 0);
        CHECK_EQ(peer_do(p, do_recv, 4110, 0), 4110);
        close(file);
    }
}

static void a_megabyte(struct pair *p)
{
    int file = pattern_file(&p->self);
    peer_start(p, 0, do_recv, FILE_LEN, 0);
    off_t offset = 0;
    while (offset < FILE_LEN)
        if (!CHECK(sendfile(p->self.fd, file, &offset, FILE_LEN - offset) > 0))
            break;
    p->self.sent += FILE_LEN;
    CHECK_EQ(peer_finish(p), FILE_LEN);
    close(file);
}

/* A full non-blocking socket takes a part, then says EAGAIN. */
static void nonblocking(struct pair *p)
{
    int file = pattern_file(&p->self);
    set_nonblock(p->self.fd, true);
    long total = 0;
    for (;;) {
        off_t offset = total % FILE_LEN;
        ssize_t n = sendfile(p->self.fd, file, &offset, 4096);
        if (n < 0)
            break;
        CHECK_EQ(offset, total % FILE_LEN + n);
        total += n;
        if (total >= FILE_LEN) /* the file is too short to fill it: by send then */
            break;
    }
    p->self.sent += total;
    long more = total < FILE_LEN ? 0 : do_fill(&p->self, 8192, 0);
    off_t offset = 0;
    CHECK_ERRNO(sendfile(p->self.fd, file, &offset, 4096), EAGAIN);
    CHECK_EQ(offset, 0);
    CHECK_EQ(peer_do(p, do_recv, total + more, 0), total + more);
    close(file);
}

/* A full socket, found by sendfile alone, is reported when there is room again; after a
 * part as well as after EAGAIN. */
static void edge_of_room(struct pair *p)
{
    int file = pattern_file(&p->self), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
    set_nonblock(p->self.fd, true);
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, p->self.fd, &event), 0);
    CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    for (int round = 0; round < 6 && position(file) < FILE_LEN; round++) {
        long total = 0, n, most = round % 2 ? FILE_LEN : 4096;
        while ((n = sendfile(p->self.fd, file, NULL, most)) == most)
            total += n;
        total += n > 0 ? n : 0;
        p->self.sent += total;
        CHECK_EQ(peer_do(p, do_recv, total, 0), total);
        if (position(file) < FILE_LEN)
            CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    }
    close(set);
    close(file);
}

static void errors(struct pair *p)
{
    int file = pattern_file(&p->self), fd = p->self.fd;
    off_t offset = 0;
    CHECK_ERRNO(sendfile(fd, fd, NULL, 10), EINVAL); /* not from a socket */
    CHECK_ERRNO(sendfile(fd, -1, NULL, 10), EBADF);
    CHECK_ERRNO(sendfile(-1, file, NULL, 10), EBADF);
    offset = -1;
    CHECK_ERRNO(sendfile(fd, file, &offset, 10), EINVAL);
    int write_only = open("/dev/null", O_WRONLY);
    CHECK_ERRNO(sendfile(fd, write_only, NULL, 10), EBADF);
    close(write_only);
    shutdown(fd, SHUT_WR);
    int before = sigpipes();
    CHECK_ERRNO(sendfile(fd, file, NULL, 10), EPIPE);
    CHECK_EQ(sigpipes() - before, 1);
    CHECK_EQ(position(file), 0);
    close(file);
}

/* ---- splice ---------------------------------------------------------------------- */

static unsigned char bytes[1 << 16];

static void splice_to_pipe(struct pair *p)
{
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    for (int i = 0; i < 10; i++) {
        peer_do(p, do_send, 1000, 0);
        await_readable(p->self.fd, 1000);
        CHECK_EQ(splice(p->self.fd, NULL, ends[1], NULL, 600, 0), 600);
        CHECK_EQ(read(ends[0], bytes, sizeof bytes), 600);
        CHECK(take_bytes(&p->self, bytes, 600));
        CHECK_EQ(splice(p->self.fd, NULL, ends[1], NULL, 60000, SPLICE_F_MOVE), 400);
        CHECK_EQ(read(ends[0], bytes, sizeof bytes), 400);
        CHECK(take_bytes(&p->self, bytes, 400));
    }
    close(ends[0]), close(ends[1]);
}

static void splice_from_pipe(struct pair *p)
{
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(write(ends[1], next_bytes(&p->self, 3000), 3000), 3000);
        CHECK_EQ(splice(ends[0], NULL, p->self.fd, NULL, 1000, SPLICE_F_MORE), 1000);
        CHECK_EQ(splice(ends[0], NULL, p->self.fd, NULL, 60000, 0), 2000);
        CHECK_EQ(peer_do(p, do_recv, 3000, 0), 3000);
    }
    close(ends[1]);
    CHECK_EQ(splice(ends[0], NULL, p->self.fd, NULL, 1000, 0), 0); /* end of the pipe */
    close(ends[0]);
}

static void splice_end_and_emptiness(struct pair *p)
{
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    set_nonblock(p->self.fd, true);
    CHECK_ERRNO(splice(p->self.fd, NULL, ends[1], NULL, 1000, 0), EAGAIN);
    peer_do(p, do_send, 50, 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(splice(p->self.fd, NULL, ends[1], NULL, 1000, 0), 50);
    CHECK_EQ(splice(p->self.fd, NULL, ends[1], NULL, 1000, 0), 0);
    CHECK_EQ(read(ends[0], bytes, 100), 50);
    close(ends[0]), close(ends[1]);
}

static void splice_waits(struct pair *p)
{
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    peer_start(p, 20, do_send, 50, 0);
    CHECK_EQ(splice(p->self.fd, NULL, ends[1], NULL, 1000, 0), 50);
    CHECK_EQ(peer_finish(p), 50);
    close(ends[0]), close(ends[1]);
}

static void splice_errors(struct pair *p)
{
    int ends[2];
    off_t offset = 0;
    CHECK_EQ(pipe(ends), 0);
    CHECK_ERRNO(splice(p->self.fd, NULL, p->self.fd, NULL, 10, 0), EINVAL); /* no pipe */
    CHECK_ERRNO(splice(p->self.fd, &offset, ends[1], NULL, 10, 0), EINVAL);
    CHECK_ERRNO(splice(p->self.fd, NULL, ends[1], &offset, 10, 0), ESPIPE);
    CHECK_ERRNO(splice(p->self.fd, NULL, ends[0], NULL, 10, 0), EBADF); /* wrong end */
    CHECK_EQ(splice(p->self.fd, NULL, ends[1], NULL, 0, 0), 0);
    close(ends[0]), close(ends[1]);
}

static long do_expect_salt(struct end *end, long salt, long b)
{
    (void)b;
    end->receive_salt = (unsigned)salt;
    return 0;
}

/* What is no file is not read, with an offset or without. */
static void not_from_streams(struct pair *p)
{
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(write(ends[1], "abc", 3), 3);
    peer_do(p, do_send, 3, 0);
    await_readable(p->self.fd, 3);
    off_t offset = 0;
    CHECK_ERRNO(sendfile(p->self.fd, ends[0], &offset, 3), ESPIPE);
    CHECK_ERRNO(sendfile(p->self.fd, p->self.fd, &offset, 3), ESPIPE);
    CHECK_ERRNO(sendfile(p->self.fd, -1, &offset, 3), EBADF);
    CHECK_ERRNO(sendfile(p->self.fd, -1, NULL, 3), EBADF);
    CHECK_EQ(offset, 0);
    CHECK_EQ(do_recv(&p->self, 3, 0), 3);
    close(ends[0]), close(ends[1]);
}

/* A proxy's loop: from one connection through a pipe to another. */
static void splice_through(struct pair *p)
{
    enum { LEN = 500000 };
    struct pair out;
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    struct setting setting = p->setting;
    setting.place = OTHER_THREAD;
    CHECK(pair_open(&out, setting));
    /* What goes out there is the pattern that comes in here. */
    peer_do(&out, do_expect_salt, p->self.receive_salt, 0);
    peer_start(p, 0, do_send, LEN, 0);
    peer_start(&out, 0, do_recv, LEN, 0);
    long left = LEN;
    while (left > 0) {
        ssize_t n = splice(p->self.fd, NULL, ends[1], NULL, 30000, SPLICE_F_MOVE);
        if (!CHECK(n > 0))
            break;
        left -= n;
        while (n > 0) {
            ssize_t m = splice(ends[0], NULL, out.self.fd, NULL, n, SPLICE_F_MOVE | SPLICE_F_MORE);
            if (!CHECK(m > 0))
                break;
            n -= m;
        }
    }
    /* SPLICE_F_MORE may hold the last bytes back for a while; the end lets them go. */
    shutdown(out.self.fd, SHUT_WR);
    CHECK_EQ(peer_finish(p), LEN);
    CHECK_EQ(peer_finish(&out), LEN);
    pair_close(&out);
    close(ends[0]), close(ends[1]);
}

/* ---- what a socket cannot do ----------------------------------------------------- */

static void not_for_sockets(struct pair *p)
{
    int file = pattern_file(&p->self), fd = p->self.fd;
    /* TCP sockets can be mapped for TCP_ZEROCOPY_RECEIVE, but never written so. */
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK_EQ(errno, EPERM);
    CHECK_ERRNO(ftruncate(fd, 0), EINVAL);
    CHECK_ERRNO(fsync(fd), EINVAL);
    CHECK_ERRNO(copy_file_range(file, NULL, fd, NULL, 10, 0), EINVAL);
    CHECK_ERRNO(fallocate(fd, 0, 0, 10), ENODEV);
    do_send(&p->self, 10, 0);
    CHECK_EQ(peer_do(p, do_recv, 10, 0), 10);
    close(file);
}

static const struct test tests[] = {
    {"with_offset", with_offset, FAMILIES},
    {"without_offset", without_offset, 0},
    {"at_the_end_of_the_file", at_the_end_of_the_file, 0},
    {"mixed_with_send", mixed_with_send, 0},
    {"a_megabyte", a_megabyte, ACTIVE_PEER},
    {"nonblocking", nonblocking, ACTIVE_PEER},
    {"edge_of_room", edge_of_room, ACTIVE_PEER},
    {"errors", errors, 0},
    {"not_from_streams", not_from_streams, 0},
    {"splice_to_pipe", splice_to_pipe, 0},
    {"splice_from_pipe", splice_from_pipe, 0},
    {"splice_end_and_emptiness", splice_end_and_emptiness, 0},
    {"splice_waits", splice_waits, ACTIVE_PEER | SLOW},
    {"splice_errors", splice_errors, 0},
    {"splice_through", splice_through, ACTIVE_PEER},
    {"not_for_sockets", not_for_sockets, 0},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
