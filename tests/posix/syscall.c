/*
 * syscall.c: calls by their number, through syscall(2). They do what the calls of that
 * name do, except where the kernel's call differs from libc's.
 */
#include "support.h"

#include <sys/sendfile.h>
#include <sys/syscall.h>

static unsigned char buffer[65536];

enum { MASK_SIZE = 8 }; /* of the kernel's signal set */

/* ---- bytes ----------------------------------------------------------------------- */

static void read_and_write(struct pair *p)
{
    int fd = p->self.fd;
    CHECK_EQ(syscall(SYS_write, fd, next_bytes(&p->self, 100), 100), 100);
    struct iovec out[] = {{next_bytes(&p->self, 10), 10}};
    CHECK_EQ(syscall(SYS_writev, fd, out, 1), 10);
    out[0].iov_base = next_bytes(&p->self, 10);
    CHECK_EQ(syscall(SYS_pwritev2, fd, out, 1, -1L, -1L, 0), 10);
    CHECK_EQ(peer_do(p, do_recv, 120, 0), 120);

    peer_do(p, do_send, 300, 0);
    await_readable(fd, 300);
    CHECK_EQ(syscall(SYS_read, fd, buffer, 100), 100);
    CHECK(take_bytes(&p->self, buffer, 100));
    struct iovec in[] = {{buffer, 100}};
    CHECK_EQ(syscall(SYS_readv, fd, in, 1), 100);
    CHECK(take_bytes(&p->self, buffer, 100));
    CHECK_EQ(syscall(SYS_preadv2, fd, in, 1, -1L, -1L, 0), 100);
    CHECK(take_bytes(&p->self, buffer, 100));
    CHECK_ERRNO(syscall(SYS_preadv2, fd, in, 1, -1L, -1L, RWF_NOWAIT), EAGAIN);
    CHECK_ERRNO(syscall(SYS_pread64, fd, buffer, 1, 0L), ESPIPE);
}

static void send_and_receive(struct pair *p)
{
    int fd = p->self.fd;
    CHECK_EQ(syscall(SYS_sendto, fd, next_bytes(&p->self, 100), 100, 0, NULL, 0), 100);
    struct iovec out = {next_bytes(&p->self, 10), 10};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &out, .msg_iovlen = 1}};
    CHECK_EQ(syscall(SYS_sendmsg, fd, &message.msg_hdr, 0), 10);
    out.iov_base = next_bytes(&p->self, 10);
    CHECK_EQ(syscall(SYS_sendmmsg, fd, &message, 1, 0), 1);
    CHECK_EQ(message.msg_len, 10);
    CHECK_EQ(peer_do(p, do_recv, 120, 0), 120);

    peer_do(p, do_send, 300, 0);
    await_readable(fd, 300);
    CHECK_EQ(syscall(SYS_recvfrom, fd, buffer, 100, MSG_PEEK, NULL, NULL), 100);
    CHECK_EQ(syscall(SYS_recvfrom, fd, buffer, 100, 0, NULL, NULL), 100);
    CHECK(take_bytes(&p->self, buffer, 100));
    struct iovec in = {buffer, 100};
    message.msg_hdr.msg_iov = &in;
    CHECK_EQ(syscall(SYS_recvmsg, fd, &message.msg_hdr, 0), 100);
    CHECK(take_bytes(&p->self, buffer, 100));
    CHECK_EQ(syscall(SYS_recvmmsg, fd, &message, 1, 0, NULL), 1);
    CHECK_EQ(message.msg_len, 100);
    CHECK(take_bytes(&p->self, buffer, 100));
    CHECK_ERRNO(syscall(SYS_recvfrom, fd, buffer, 1, MSG_DONTWAIT, NULL, NULL), EAGAIN);
}

static void through_a_pipe(struct pair *p)
{
    int ends[2];
    CHECK_EQ(syscall(SYS_pipe2, ends, 0), 0);
    CHECK_EQ(syscall(SYS_write, ends[1], next_bytes(&p->self, 100), 100), 100);
    CHECK_EQ(syscall(SYS_splice, ends[0], NULL, p->self.fd, NULL, 100, 0), 100);
    CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
    peer_do(p, do_send, 100, 0);
    await_readable(p->self.fd, 100);
    CHECK_EQ(syscall(SYS_splice, p->self.fd, NULL, ends[1], NULL, 100, 0), 100);
    CHECK_EQ(syscall(SYS_read, ends[0], buffer, 200), 100);
    CHECK(take_bytes(&p->self, buffer, 100));
    close(ends[0]);
    close(ends[1]);
}

static void out_of_a_file(struct pair *p)
{
    char path[] = "/tmp/sidestep-posix-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0);
    unlink(path);
    CHECK_EQ(write(file, next_bytes(&p->self, 100), 100), 100);
    off_t offset = 0;
    CHECK_EQ(syscall(SYS_sendfile, p->self.fd, file, &offset, 100), 100);
    CHECK_EQ(offset, 100);
    CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
    close(file);
}

/* ---- readiness ------------------------------------------------------------------- */

static void polled(struct pair *p)
{
    struct pollfd entry = {.fd = p->self.fd, .events = POLLIN};
    struct timespec time = {.tv_nsec = 20 * 1000 * 1000};
    CHECK_EQ(syscall(SYS_ppoll, &entry, 1, &time, NULL, MASK_SIZE), 0);
    CHECK_EQ(time.tv_sec, 0);
    CHECK_EQ(time.tv_nsec, 0);
    peer_do(p, do_send, 10, 0);
    time.tv_sec = HANG_MS / 1000;
    CHECK_EQ(syscall(SYS_ppoll, &entry, 1, &time, NULL, MASK_SIZE), 1);
    CHECK_EQ(entry.revents, POLLIN);
    /* The kernel says how much of the time is left. */
    CHECK_BETWEEN(time.tv_sec, 1, HANG_MS / 1000 - 1);
    CHECK_ERRNO(syscall(SYS_ppoll, &entry, 1, NULL, &time, MASK_SIZE - 1), EINVAL);
#ifdef SYS_poll
    CHECK_EQ(syscall(SYS_poll, &entry, 1, HANG_MS), 1);
    CHECK_EQ(entry.revents, POLLIN);
#endif
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
}

static void selected(struct pair *p)
{
    int fd = p->self.fd;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timespec time = {.tv_sec = HANG_MS / 1000};
    peer_do(p, do_send, 10, 0);
    struct {
        void *mask;
        size_t size;
    } mask = {NULL, MASK_SIZE};
    CHECK_EQ(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &time, &mask), 1);
    CHECK(FD_ISSET(fd, &set));
    CHECK_BETWEEN(time.tv_sec, 1, HANG_MS / 1000 - 1);
    CHECK_EQ(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &time, NULL), 1);
    CHECK(FD_ISSET(fd, &set));
#ifdef SYS_select
    struct timeval left = {.tv_sec = HANG_MS / 1000};
    CHECK_EQ(syscall(SYS_select, fd + 1, &set, NULL, NULL, &left), 1);
    CHECK(FD_ISSET(fd, &set));
    CHECK_BETWEEN(left.tv_sec, 1, HANG_MS / 1000 - 1);
#endif
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    time = (struct timespec){.tv_nsec = 1000};
    CHECK_EQ(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &time, NULL), 0);
    CHECK(!FD_ISSET(fd, &set));
}

static void awaited(struct pair *p)
{
    int set = (int)syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
    CHECK_EQ(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, p->self.fd, &event), 0);
    CHECK_EQ(syscall(SYS_epoll_pwait, set, &event, 1, 0, NULL, MASK_SIZE), 0);
    peer_do(p, do_send, 10, 0);
    event = (struct epoll_event){0};
    CHECK_EQ(syscall(SYS_epoll_pwait, set, &event, 1, HANG_MS, NULL, MASK_SIZE), 1);
    CHECK_EQ(event.events, EPOLLIN);
    CHECK_EQ(event.data.u64, 77);
#ifdef SYS_epoll_pwait2
    struct timespec time = {.tv_sec = HANG_MS / 1000};
    CHECK_EQ(syscall(SYS_epoll_pwait2, set, &event, 1, &time, NULL, MASK_SIZE), 1);
#endif
#ifdef SYS_epoll_wait
    CHECK_EQ(syscall(SYS_epoll_wait, set, &event, 1, HANG_MS), 1);
#endif
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    CHECK_EQ(syscall(SYS_epoll_ctl, set, EPOLL_CTL_DEL, p->self.fd, NULL), 0);
    CHECK_ERRNO(syscall(SYS_epoll_ctl, set, EPOLL_CTL_DEL, p->self.fd, NULL), ENOENT);
    CHECK_EQ(syscall(SYS_close, set), 0);
}

/* ---- the socket ------------------------------------------------------------------ */

static void options(struct pair *p)
{
    int fd = p->self.fd, value = 5;
    socklen_t len = sizeof value;
    CHECK_EQ(syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &value, len), 0);
    value = 0;
    CHECK_EQ(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &value, &len), 0);
    CHECK_EQ(value, 5);
    peer_do(p, do_send, 4, 0);
    await_readable(fd, 4);
    CHECK_EQ(poll_once(fd, POLLIN, 0), 0);
    CHECK_EQ(syscall(SYS_ioctl, fd, FIONREAD, &value), 0);
    CHECK_EQ(value, 4);
    int on = 1;
    CHECK_EQ(syscall(SYS_ioctl, fd, FIONBIO, &on), 0);
    CHECK_EQ(syscall(SYS_fcntl, fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    CHECK_EQ(do_recv(&p->self, 4, 0), 4);
    CHECK_ERRNO(syscall(SYS_read, fd, buffer, 1), EAGAIN);
}

static void duplicates(struct pair *p)
{
    int fd = p->self.fd;
    int second = (int)syscall(SYS_dup, fd);
    CHECK(second >= 0);
    int third = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 100);
    CHECK(third >= 100);
    CHECK_EQ(syscall(SYS_dup3, fd, third, O_CLOEXEC), third);
#ifdef SYS_dup2
    CHECK_EQ(syscall(SYS_dup2, fd, third), third);
#endif
    CHECK_EQ(syscall(SYS_close, fd), 0);
    CHECK_EQ(syscall(SYS_close_range, second, second, 0), 0);
    CHECK_ERRNO(syscall(SYS_read, second, buffer, 1), EBADF);
    p->self.fd = third;
    CHECK_EQ(do_send(&p->self, 100, 0), 100);
    CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
    CHECK_EQ(peer_do(p, do_send, 100, 0), 100);
    CHECK_EQ(do_recv(&p->self, 100, 0), 100);
}

static void ends(struct pair *p)
{
    CHECK_EQ(syscall(SYS_shutdown, p->self.fd, SHUT_WR), 0);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    CHECK_ERRNO(syscall(SYS_sendto, p->self.fd, "x", 1, MSG_NOSIGNAL, NULL, 0), EPIPE);
    peer_do(p, do_send, 10, 0);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    CHECK_EQ(peer_do(p, do_close, 0, 0), 0);
    CHECK_EQ(syscall(SYS_read, p->self.fd, buffer, 1), 0);
    CHECK_EQ(syscall(SYS_close, p->self.fd), 0);
    p->self.fd = -1;
}

/* Both ends of a connection, from its first call to its last. */
static void from_first_to_last(struct pair *unused)
{
    (void)unused;
    int listener = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
    socklen_t len = sizeof address;
    CHECK_EQ(syscall(SYS_bind, listener, &address, len), 0);
    CHECK_EQ(syscall(SYS_listen, listener, 5), 0);
    CHECK_EQ(syscall(SYS_getsockname, listener, &address, &len), 0);
    int ours = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(syscall(SYS_connect, ours, &address, len), 0);
    int theirs = (int)syscall(SYS_accept4, listener, NULL, NULL, SOCK_NONBLOCK);
    CHECK_ERRNO(syscall(SYS_read, theirs, buffer, 1), EAGAIN);
    CHECK_EQ(syscall(SYS_fcntl, theirs, F_SETFL, 0), 0);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(syscall(SYS_write, ours, "ping", 4), 4);
        CHECK_EQ(syscall(SYS_read, theirs, buffer, 10), 4);
        CHECK_EQ(memcmp(buffer, "ping", 4), 0);
        CHECK_EQ(syscall(SYS_write, theirs, "gnop!", 5), 5);
        CHECK_EQ(syscall(SYS_read, ours, buffer, 10), 5);
        CHECK_EQ(memcmp(buffer, "gnop!", 5), 0);
    }
    CHECK_EQ(syscall(SYS_close, ours), 0);
    CHECK_EQ(syscall(SYS_read, theirs, buffer, 10), 0);
    CHECK_EQ(syscall(SYS_close, theirs), 0);
    CHECK_EQ(syscall(SYS_close, listener), 0);
}

/* ---- processes ------------------------------------------------------------------- */

/* A child that libc knows nothing of goes on with the connection. */
static void forked(struct pair *p)
{
    fflush(NULL);
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        for (int i = 0; i < 5; i++) {
            CHECK_EQ(do_recv(&p->self, 40, 0), 40);
            CHECK_EQ(do_send(&p->self, 40, 0), 40);
        }
        /* The number is another file's from now on. */
        close(p->self.fd);
        CHECK_EQ(dup2(open("/dev/zero", O_RDONLY), p->self.fd), p->self.fd);
        CHECK_EQ(read(p->self.fd, buffer, 10), 10);
        _exit(failures() != 0);
    }
    CHECK(child > 0);
    self_close(p);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(peer_do(p, do_send, 40, 0), 40);
        CHECK_EQ(peer_do(p, do_recv, 40, 0), 40);
    }
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* ---- past the library ------------------------------------------------------------ */

/* What is written by an instruction of the program's own arrives, or, if the bytes of the
 * connection have left TCP, both ends learn that it did not: nobody waits for ever. */
static void written_past(struct pair *p)
{
    bool goes_astray = is_moved(p->self.fd);
    CHECK_EQ(past_libc(SYS_write, p->self.fd, (long)next_bytes(&p->self, 100), 100, 0, 0), 100);
    if (!goes_astray) {
        CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
        return;
    }
    CHECK_ERRNO(peer_do(p, do_recv_once, 100, 0), ECONNRESET);
    CHECK_EQ(past_libc(SYS_read, p->self.fd, (long)buffer, 1, 0, 0), 0);
    CHECK_ERRNO(recv(p->self.fd, buffer, 1, 0), ECONNRESET);
}

static long await_reset(struct end *end, long a, long b)
{
    (void)a, (void)b;
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, end->fd, &event), 0);
    CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    close(set);
    return event.events;
}

static long poll_reset(struct end *end, long a, long b)
{
    (void)a, (void)b;
    return poll_once(end->fd, POLLIN, HANG_MS);
}

/* What is written past the library resets the connection for a peer that waits. */
static void reset_for_a_waiter(struct pair *p, peer_action *wait, long told)
{
    if (!is_moved(p->self.fd))
        return;
    peer_start(p, 0, wait, 0, 0);
    sleep_ms(20);
    CHECK_EQ(past_libc(SYS_write, p->self.fd, (long)"astray", 6, 0, 0), 6);
    CHECK_EQ(peer_finish(p), told);
    CHECK_ERRNO(peer_do(p, do_recv_once, 100, 0), ECONNRESET);
}

static void written_past_an_event_loop(struct pair *p)
{
    reset_for_a_waiter(p, await_reset, EPOLLIN | EPOLLERR | EPOLLHUP);
}

static void written_past_a_poll(struct pair *p)
{
    reset_for_a_waiter(p, poll_reset, POLLIN | POLLERR | POLLHUP);
}

/* What concerns no socket is the kernel's. */
static void others(struct pair *unused)
{
    (void)unused;
    CHECK_EQ(syscall(SYS_getpid), getpid());
    CHECK_ERRNO(syscall(1 << 20), ENOSYS);
    CHECK_ERRNO(syscall(SYS_close, 99999), EBADF);
    CHECK_ERRNO(syscall(SYS_read, -1, buffer, 1), EBADF);
    CHECK_ERRNO(syscall(SYS_sendto, 0, "x", 1, 0, NULL, 0), ENOTSOCK);
}

static const struct test tests[] = {
    {"read_and_write", read_and_write, 0},
    {"send_and_receive", send_and_receive, 0},
    {"through_a_pipe", through_a_pipe, 0},
    {"out_of_a_file", out_of_a_file, 0},
    {"polled", polled, 0},
    {"selected", selected, 0},
    {"awaited", awaited, 0},
    {"options", options, 0},
    {"duplicates", duplicates, 0},
    {"ends", ends, 0},
    {"from_first_to_last", from_first_to_last, ALONE},
    {"forked", forked, PROCESS_ONLY},
    {"written_past", written_past, 0},
    {"written_past_an_event_loop", written_past_an_event_loop, ACTIVE_PEER},
    {"written_past_a_poll", written_past_a_poll, ACTIVE_PEER},
    {"others", others, ALONE},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
