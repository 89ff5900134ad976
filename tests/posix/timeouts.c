/*
 * timeouts.c: SO_RCVTIMEO and SO_SNDTIMEO (socket(7)): a blocking call that has
 * moved something returns how much, one that has moved nothing fails with EAGAIN.
 */
#include "support.h"

/* The kernel counts these time-outs in ticks, and counts those at once that a hypervisor has kept from it: as much
 * is missing then, plain as well. */
enum { TIMEOUT_MS = 30, NOT_BEFORE_MS = TIMEOUT_MS / 2 };

static unsigned char buffer[1 << 20];

static int set_timeout(int fd, int name, int ms)
{
    struct timeval time = {ms / 1000, ms % 1000 * 1000};
    return setsockopt(fd, SOL_SOCKET, name, &time, sizeof time);
}

#define CHECK_TAKES(call_and_check, low)                \
    do {                                                \
        uint64_t start_ = now_ms();                     \
        call_and_check;                                 \
        CHECK_BETWEEN(now_ms() - start_, low, HANG_MS); \
    } while (0)

static void receive_expires(struct pair *p)
{
    int fd = p->self.fd;
    CHECK_EQ(set_timeout(fd, SO_RCVTIMEO, TIMEOUT_MS), 0);
    CHECK_TAKES(CHECK_ERRNO(recv(fd, buffer, 10, 0), EAGAIN), NOT_BEFORE_MS);
    CHECK_TAKES(CHECK_ERRNO(read(fd, buffer, 10), EAGAIN), NOT_BEFORE_MS);
    struct iovec vector = {buffer, 10};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    CHECK_TAKES(CHECK_ERRNO(recvmsg(fd, &message, 0), EAGAIN), NOT_BEFORE_MS);
    CHECK_TAKES(CHECK_ERRNO(recv(fd, buffer, 10, MSG_PEEK), EAGAIN), NOT_BEFORE_MS);
    /* The connection is as good as before. */
    arrive(p, 10);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    /* No time-out again. */
    CHECK_EQ(set_timeout(fd, SO_RCVTIMEO, 0), 0);
    peer_start(p, 2 * TIMEOUT_MS, do_send, 10, 0);
    CHECK_EQ(do_recv_once(&p->self, 10, 0), 10);
    peer_finish(p);
}

/* Data in time ends the wait at once. */
static void data_in_time(struct pair *p)
{
    set_timeout(p->self.fd, SO_RCVTIMEO, HANG_MS);
    peer_start(p, 20, do_send, 10, 0);
    CHECK_TAKES(CHECK_EQ(do_recv_once(&p->self, 100, 0), 10), 10);
    peer_finish(p);
    /* MSG_DONTWAIT does not wait, time-out or not. */
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, MSG_DONTWAIT), EAGAIN);
}

static void waitall_gives_the_part(struct pair *p)
{
    set_timeout(p->self.fd, SO_RCVTIMEO, TIMEOUT_MS);
    arrive(p, 30);
    CHECK_TAKES(CHECK_EQ(do_recv_once(&p->self, 100, MSG_WAITALL), 30), NOT_BEFORE_MS);
    CHECK_TAKES(CHECK_ERRNO(recv(p->self.fd, buffer, 100, MSG_WAITALL), EAGAIN), NOT_BEFORE_MS);
}

/* The time-out is for the call, not for each pause in it: a peer that trickles
 * cannot prolong it for ever. It trickles until it is told that the call is over. */
static long do_trickle(struct end *end, long every_ms, long b)
{
    (void)b;
    volatile bool *is_over = shared_scratch();
    long bytes = 0;
    for (; !*is_over; bytes++) {
        do_send(end, 1, 0);
        sleep_ms((int)every_ms);
    }
    return bytes;
}

static void waitall_is_bounded_as_a_whole(struct pair *p)
{
    volatile bool *is_over = shared_scratch();
    set_timeout(p->self.fd, SO_RCVTIMEO, 100);
    peer_start(p, 0, do_trickle, 25, 0);
    await_readable(p->self.fd, 1);
    long n = 0;
    CHECK_TAKES(n = do_recv_once(&p->self, STAGE_SIZE, MSG_WAITALL), 50);
    *is_over = true;
    CHECK_BETWEEN(n, 1, STAGE_SIZE - 1);
    long left = peer_finish(p) - n;
    set_timeout(p->self.fd, SO_RCVTIMEO, 0);
    CHECK_EQ(do_recv(&p->self, left, 0), left);
}

/* The end of the stream is not a time-out. */
static void eof_in_time(struct pair *p)
{
    set_timeout(p->self.fd, SO_RCVTIMEO, HANG_MS);
    peer_start(p, 20, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    peer_finish(p);
}

/* Full is not for ever: for a while after EAGAIN late acknowledgements and window
 * probes still make room. So: sends until one fails, which must take the time. */
static void send_expires(struct pair *p)
{
    long total = do_fill(&p->self, 8192, 0), n;
    CHECK_EQ(set_timeout(p->self.fd, SO_SNDTIMEO, TIMEOUT_MS), 0);
    for (int i = 0; i < 2; i++) {
        uint64_t start;
        do {
            start = now_ms();
            n = do_send_once(&p->self, 8192, 0);
            if (n > 0)
                total += n;
        } while (n > 0);
        CHECK_EQ(errno, EAGAIN);
        CHECK_BETWEEN(now_ms() - start, NOT_BEFORE_MS, HANG_MS);
    }
    /* Nothing of the failed ones was sent. */
    CHECK_EQ(peer_do(p, do_recv, total, 0), total);
    CHECK_EQ(peer_do(p, do_recv_once, 1, MSG_DONTWAIT), -1);
    CHECK_EQ(do_send(&p->self, 10, 0), 10);
    CHECK_EQ(peer_do(p, do_recv, 10, 0), 10);
}

/* A send that finds room for a part says how much. */
static void send_gives_the_part(struct pair *p)
{
    CHECK_EQ(set_timeout(p->self.fd, SO_SNDTIMEO, TIMEOUT_MS), 0);
    long total = 0, n = 0;
    for (int i = 0; i < 64; i++) {
        n = do_send_once(&p->self, 1 << 20, 0);
        if (n < 1 << 20)
            break;
        total += n;
    }
    /* A buffer that is full to the byte gives EAGAIN instead. */
    if (n < 0)
        CHECK_EQ(errno, EAGAIN);
    else
        total += n;
    CHECK(n < 1 << 20);
    CHECK_EQ(peer_do(p, do_recv, total, 0), total);
    CHECK_EQ(peer_do(p, do_recv_once, 1, MSG_DONTWAIT), -1);
}

/* Room in time, all of it is sent. */
static void room_in_time(struct pair *p)
{
    long total = do_fill(&p->self, 8192, 0);
    set_timeout(p->self.fd, SO_SNDTIMEO, HANG_MS);
    peer_start(p, 20, do_recv, total + 8192, 0);
    CHECK_EQ(do_send_once(&p->self, 8192, 0), 8192);
    CHECK_EQ(peer_finish(p), total + 8192);
}

static void read_back(struct pair *p)
{
    struct timeval time = {7, 8};
    socklen_t len = sizeof time;
    CHECK_EQ(getsockopt(p->self.fd, SOL_SOCKET, SO_RCVTIMEO, &time, &len), 0);
    CHECK_EQ(time.tv_sec, 0);
    CHECK_EQ(time.tv_usec, 0);
    CHECK_EQ(set_timeout(p->self.fd, SO_RCVTIMEO, 1500), 0);
    CHECK_EQ(getsockopt(p->self.fd, SOL_SOCKET, SO_RCVTIMEO, &time, &len), 0);
    CHECK_EQ(time.tv_sec, 1);
    CHECK_EQ(time.tv_usec, 500000);
    time = (struct timeval){0, 1000000};
    CHECK_ERRNO(setsockopt(p->self.fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), EDOM);
    CHECK_ERRNO(setsockopt(p->self.fd, SOL_SOCKET, SO_RCVTIMEO, &time, 4), EINVAL);
    /* It belongs to the socket, so a duplicate has it too. */
    int twin = dup(p->self.fd);
    CHECK_EQ(getsockopt(twin, SOL_SOCKET, SO_RCVTIMEO, &time, &len), 0);
    CHECK_EQ(time.tv_sec, 1);
    close(twin);
}

/* A time-out set before the connection is there holds afterwards, and an accepted
 * socket inherits its listener's. */
static void set_before_connecting(struct pair *p)
{
    (void)p;
    struct sockaddr_storage address;
    socklen_t len;
    int listener = make_listener(V4, &address, &len);
    set_timeout(listener, SO_RCVTIMEO, TIMEOUT_MS);
    CHECK_TAKES(CHECK_ERRNO(accept(listener, NULL, NULL), EAGAIN), NOT_BEFORE_MS);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    set_timeout(client, SO_RCVTIMEO, TIMEOUT_MS);
    CHECK_EQ(connect(client, (struct sockaddr *)&address, len), 0);
    int server = accept(listener, NULL, NULL);
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(send(client, "ping", 4, 0), 4);
        CHECK_EQ(recv(server, buffer, 10, 0), 4);
        CHECK_EQ(send(server, "pong", 4, 0), 4);
        CHECK_EQ(recv(client, buffer, 10, 0), 4);
    }
    CHECK_TAKES(CHECK_ERRNO(recv(client, buffer, 10, 0), EAGAIN), NOT_BEFORE_MS);
    CHECK_TAKES(CHECK_ERRNO(recv(server, buffer, 10, 0), EAGAIN), NOT_BEFORE_MS);
    close(client), close(server), close(listener);
}

static const struct test tests[] = {
    {"receive_expires", receive_expires, ACTIVE_PEER | SLOW},
    {"data_in_time", data_in_time, ACTIVE_PEER | SLOW},
    {"waitall_gives_the_part", waitall_gives_the_part, SLOW},
    {"waitall_is_bounded_as_a_whole", waitall_is_bounded_as_a_whole, ACTIVE_PEER | SLOW},
    {"eof_in_time", eof_in_time, ACTIVE_PEER | SLOW},
    {"send_expires", send_expires, ACTIVE_PEER | SLOW},
    {"send_gives_the_part", send_gives_the_part, ACTIVE_PEER | SLOW},
    {"room_in_time", room_in_time, ACTIVE_PEER | SLOW},
    {"read_back", read_back, 0},
    {"set_before_connecting", set_before_connecting, ALONE},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
