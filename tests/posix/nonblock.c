/* nonblock.c: O_NONBLOCK however it was set, and full and empty buffers. */
#include "support.h"

static unsigned char buffer[1 << 20];

static void by_fcntl(struct pair *p)
{
    CHECK_EQ(set_nonblock(p->self.fd, true), 0);
    CHECK_EQ(fcntl(p->self.fd, F_GETFL) & (O_NONBLOCK | O_ACCMODE), O_NONBLOCK | O_RDWR);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), EAGAIN);
    CHECK_ERRNO(read(p->self.fd, buffer, 10), EAGAIN);
    struct iovec vector = {buffer, 10};
    CHECK_ERRNO(readv(p->self.fd, &vector, 1), EAGAIN);
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    CHECK_ERRNO(recvmsg(p->self.fd, &message, 0), EAGAIN);
    struct mmsghdr messages = {.msg_hdr = message};
    CHECK_ERRNO(recvmmsg(p->self.fd, &messages, 1, 0, NULL), EAGAIN);
    peer_do(p, do_send, 10, 0);
    await_readable(p->self.fd, 10);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 10);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), EAGAIN);
}

static void by_ioctl(struct pair *p)
{
    int on = 1, off = 0;
    CHECK_EQ(ioctl(p->self.fd, FIONBIO, &on), 0);
    CHECK_EQ(fcntl(p->self.fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), EAGAIN);
    CHECK_EQ(ioctl(p->self.fd, FIONBIO, &off), 0);
    CHECK_EQ(fcntl(p->self.fd, F_GETFL) & O_NONBLOCK, 0);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, MSG_DONTWAIT), EAGAIN);
}

/* Back to blocking means blocking. */
static void on_and_off_again(struct pair *p)
{
    set_nonblock(p->self.fd, true);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), EAGAIN);
    set_nonblock(p->self.fd, false);
    peer_start(p, 20, do_send, 10, 0);
    CHECK_EQ(do_recv_once(&p->self, 10, 0), 10);
    peer_finish(p);
}

/* The flag belongs to the open file description: all duplicates share it. */
static void shared_by_duplicates(struct pair *p)
{
    int twin = dup(p->self.fd);
    CHECK_EQ(set_nonblock(twin, true), 0);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), EAGAIN);
    int off = 0;
    ioctl(p->self.fd, FIONBIO, &off);
    CHECK_EQ(fcntl(twin, F_GETFL) & O_NONBLOCK, 0);
    close(twin);
}

/* SOCK_NONBLOCK at birth; accepted sockets do not inherit it, accept4 sets it. */
static void by_socket_and_accept4(struct pair *p)
{
    (void)p;
    struct sockaddr_storage address;
    socklen_t len;
    int listener = make_listener(V4, &address, &len);
    set_nonblock(listener, true);
    CHECK_ERRNO(accept(listener, NULL, NULL), EAGAIN);
    CHECK_ERRNO(accept4(listener, NULL, NULL, SOCK_NONBLOCK), EAGAIN);
    for (int round = 0; round < 2; round++) {
        int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        CHECK_EQ(fcntl(client, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
        CHECK_EQ(fcntl(client, F_GETFD), FD_CLOEXEC);
        CHECK_ERRNO(connect(client, (struct sockaddr *)&address, len), EINPROGRESS);
        CHECK_MASK(client, POLLOUT);
        CHECK_EQ(poll_once(listener, POLLIN, HANG_MS), POLLIN);
        int server = round ? accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
                           : accept(listener, NULL, NULL);
        CHECK_EQ(fcntl(server, F_GETFL) & O_NONBLOCK, round ? O_NONBLOCK : 0);
        CHECK_EQ(fcntl(server, F_GETFD), round ? FD_CLOEXEC : 0);
        for (int i = 0; i < 10; i++) {
            CHECK_ERRNO(recv(client, buffer, 10, 0), EAGAIN);
            CHECK_EQ(send(server, "x", 1, 0), 1);
            await_readable(client, 1);
            CHECK_EQ(recv(client, buffer, 10, 0), 1);
            CHECK_EQ(send(client, "y", 1, 0), 1);
            await_readable(server, 1);
            CHECK_EQ(recv(server, buffer, 10, 0), 1);
            if (round)
                CHECK_ERRNO(recv(server, buffer, 10, 0), EAGAIN);
        }
        close(client);
        close(server);
    }
    if (IS_GLIBC)
        CHECK_ERRNO(accept4(listener, NULL, NULL, 0x40000000), EINVAL);
    close(listener);
}

/* Fill, see that it is full, drain, see that there is room, and every byte came.
 * How much fits is nobody's business; that POLLOUT then goes and comes back is. */
static void fill_and_drain(struct pair *p)
{
    set_nonblock(p->self.fd, true);
    for (int round = 0; round < 3; round++) {
        long total = 0, n;
        while ((n = do_send_once(&p->self, 8192, 0)) > 0)
            total += n;
        CHECK_EQ(errno, EAGAIN);
        /* A single byte does not fit either, nor by another name. */
        CHECK_ERRNO(write(p->self.fd, buffer, 8192), EAGAIN);
        CHECK_EQ(poll_once(p->self.fd, POLLOUT, 0), 0);
        CHECK(total >= 16384);
        long drained = 0;
        while (drained < total) {
            long part = peer_do(p, do_drain, total - drained, 0);
            if (!CHECK(part >= 0))
                return;
            drained += part;
        }
        CHECK_EQ(poll_once(p->self.fd, POLLOUT, HANG_MS), POLLOUT);
        CHECK_EQ(peer_do(p, do_recv_once, 1, MSG_DONTWAIT), -1);
    }
}

/* A send larger than the room takes a part. */
static void partial_send(struct pair *p)
{
    set_nonblock(p->self.fd, true);
    enum { LEN = 1 << 20 };
    long total = 0;
    bool partial = false;
    for (int i = 0; i < 64 && !partial; i++) {
        long n = do_send_once(&p->self, LEN, 0);
        if (n < 0)
            break;
        total += n;
        partial = n < LEN;
    }
    CHECK(partial);
    long drained = 0;
    while (drained < total)
        drained += peer_do(p, do_drain, total - drained, 0);
    CHECK_EQ(drained, total);
}

/* Room that appears while poll() sleeps wakes it. */
static void poll_out_wakes(struct pair *p)
{
    long total = do_fill(&p->self, 8192, 0);
    peer_start(p, 20, do_recv, total, 0);
    CHECK_EQ(poll_once(p->self.fd, POLLOUT, HANG_MS), POLLOUT);
    CHECK_EQ(peer_finish(p), total);
}

/* A megabyte through a non-blocking socket with poll, the everyday loop. */
static void everyday_loop(struct pair *p)
{
    enum { LEN = 2 << 20 };
    set_nonblock(p->self.fd, true);
    peer_start(p, 0, do_recv, LEN, 0);
    long left = LEN;
    while (left > 0) {
        long n = do_send_once(&p->self, left < 50000 ? left : 50000, 0);
        if (n < 0) {
            if (!CHECK_EQ(errno, EAGAIN) ||
                !CHECK_EQ(poll_once(p->self.fd, POLLOUT, HANG_MS), POLLOUT))
                break;
            continue;
        }
        left -= n;
    }
    CHECK_EQ(peer_finish(p), LEN);
    peer_start(p, 0, do_send, LEN, 0);
    left = LEN;
    while (left > 0) {
        long n = do_recv_once(&p->self, left < 50000 ? left : 50000, 0);
        if (n < 0) {
            if (!CHECK_EQ(errno, EAGAIN) || !CHECK_EQ(poll_once(p->self.fd, POLLIN, HANG_MS), POLLIN))
                break;
            continue;
        }
        left -= n;
    }
    CHECK_EQ(peer_finish(p), LEN);
}

static const struct test tests[] = {
    {"by_fcntl", by_fcntl, 0},
    {"by_ioctl", by_ioctl, 0},
    {"on_and_off_again", on_and_off_again, ACTIVE_PEER | SLOW},
    {"shared_by_duplicates", shared_by_duplicates, 0},
    {"by_socket_and_accept4", by_socket_and_accept4, ALONE},
    {"fill_and_drain", fill_and_drain, 0},
    {"partial_send", partial_send, 0},
    {"poll_out_wakes", poll_out_wakes, ACTIVE_PEER},
    {"everyday_loop", everyday_loop, ACTIVE_PEER | FAMILIES},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
