/* flags.c: the flags of send() and recv(), one by one. */
#include "support.h"

static unsigned char buffer[2 << 20];

static void peek_does_not_consume(struct pair *p)
{
    peer_do(p, do_send, 100, 0);
    await_readable(p->self.fd, 100);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(recv(p->self.fd, buffer, 60, MSG_PEEK), 60);
        CHECK(pattern_holds(buffer, 60, p->self.received, p->self.receive_salt));
    }
    CHECK_EQ(do_recv(&p->self, 40, 0), 40);
    CHECK_EQ(recv(p->self.fd, buffer, 1000, MSG_PEEK), 60);
    CHECK(pattern_holds(buffer, 60, p->self.received, p->self.receive_salt));
    CHECK_EQ(do_recv(&p->self, 60, 0), 60);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(recv(p->self.fd, buffer, 10, MSG_PEEK), 0);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
}

/* A peek also sees what lies behind an earlier part that came another way. */
static void peek_sees_all_parts(struct pair *p)
{
    for (int i = 0; i < 20; i++)
        peer_do(p, do_send, 10, 0);
    await_readable(p->self.fd, 200);
    CHECK_EQ(recv(p->self.fd, buffer, 1000, MSG_PEEK), 200);
    CHECK(pattern_holds(buffer, 200, p->self.received, p->self.receive_salt));
    struct iovec vector[2] = {{buffer, 15}, {buffer + 500, 500}};
    struct msghdr message = {.msg_iov = vector, .msg_iovlen = 2};
    CHECK_EQ(recvmsg(p->self.fd, &message, MSG_PEEK), 200);
    CHECK(pattern_holds(buffer + 500, 185, p->self.received + 15, p->self.receive_salt));
    CHECK_EQ(do_recv(&p->self, 200, 0), 200);
}

static void peek_blocks_until_data(struct pair *p)
{
    peer_start(p, 30, do_send, 10, 0);
    CHECK_EQ(recv(p->self.fd, buffer, 100, MSG_PEEK), 10);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    peer_finish(p);
}

/* SO_PEEK_OFF: -1 (default) peeks from the start; from 0 on each peek continues
 * where the last one ended, and reading moves the mark back. */
static void peek_offset(struct pair *p)
{
    int fd = p->self.fd;
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_PEEK_OFF), -1);
    if (set_int(fd, SOL_SOCKET, SO_PEEK_OFF, 0) < 0) { /* TCP learned it in Linux 6.9 */
        CHECK_EQ(errno, EOPNOTSUPP);
        return;
    }
    peer_do(p, do_send, 100, 0);
    await_readable(fd, 100);
    CHECK_EQ(recv(fd, buffer, 30, MSG_PEEK), 30);
    CHECK(pattern_holds(buffer, 30, p->self.received, p->self.receive_salt));
    CHECK_EQ(recv(fd, buffer, 30, MSG_PEEK), 30);
    CHECK(pattern_holds(buffer, 30, p->self.received + 30, p->self.receive_salt));
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_PEEK_OFF), 60);
    CHECK_EQ(do_recv(&p->self, 20, 0), 20);
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_PEEK_OFF), 40);
    CHECK_EQ(recv(fd, buffer, 100, MSG_PEEK), 40);
    CHECK(pattern_holds(buffer, 40, p->self.received + 40, p->self.receive_salt));
    CHECK_EQ(set_int(fd, SOL_SOCKET, SO_PEEK_OFF, -1), 0);
    CHECK_EQ(recv(fd, buffer, 100, MSG_PEEK), 80);
    CHECK_EQ(do_recv(&p->self, 80, 0), 80);
}

/* ---- MSG_WAITALL ----------------------------------------------------------------- */

static long do_send_slowly(struct end *end, long pieces, long len)
{
    while (pieces-- > 0) {
        do_send(end, len, 0);
        sleep_ms(5);
    }
    return 0;
}

static void waitall_waits(struct pair *p)
{
    peer_start(p, 0, do_send_slowly, 5, 20);
    CHECK_EQ(recv(p->self.fd, buffer, 100, MSG_WAITALL), 100);
    CHECK(take_bytes(&p->self, buffer, 100));
    peer_finish(p);
}

/* Larger than any buffer in between: it must drain while it waits. */
static void waitall_of_a_megabyte(struct pair *p)
{
    enum { LEN = 1500000 };
    peer_start(p, 0, do_send, LEN + 7, 0);
    CHECK_EQ(recv(p->self.fd, buffer, LEN, MSG_WAITALL), LEN);
    CHECK(take_bytes(&p->self, buffer, LEN));
    CHECK_EQ(do_recv(&p->self, 7, 0), 7);
    CHECK_EQ(peer_finish(p), LEN + 7);
}

static void waitall_over_vectors(struct pair *p)
{
    peer_start(p, 0, do_send_slowly, 4, 25);
    struct iovec vector[3] = {{buffer, 10}, {buffer + 10, 50}, {buffer + 60, 40}};
    struct msghdr message = {.msg_iov = vector, .msg_iovlen = 3};
    CHECK_EQ(recvmsg(p->self.fd, &message, MSG_WAITALL), 100);
    CHECK(take_bytes(&p->self, buffer, 100));
    peer_finish(p);
}

/* The end of the stream ends the wait. */
static void waitall_ends_at_eof(struct pair *p)
{
    peer_do(p, do_send, 30, 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(recv(p->self.fd, buffer, 100, MSG_WAITALL), 30);
    CHECK(take_bytes(&p->self, buffer, 30));
    CHECK_EQ(recv(p->self.fd, buffer, 100, MSG_WAITALL), 0);
}

/* MSG_DONTWAIT and O_NONBLOCK are stronger. */
static void waitall_nonblocking_takes_what_is_there(struct pair *p)
{
    CHECK_ERRNO(recv(p->self.fd, buffer, 100, MSG_WAITALL | MSG_DONTWAIT), EAGAIN);
    peer_do(p, do_send, 30, 0);
    await_readable(p->self.fd, 30);
    CHECK_EQ(recv(p->self.fd, buffer, 100, MSG_WAITALL | MSG_DONTWAIT), 30);
    CHECK(take_bytes(&p->self, buffer, 30));
    set_nonblock(p->self.fd, true);
    peer_do(p, do_send, 30, 0);
    await_readable(p->self.fd, 30);
    CHECK_EQ(recv(p->self.fd, buffer, 100, MSG_WAITALL), 30);
    CHECK(take_bytes(&p->self, buffer, 30));
}

/* Peeking with WAITALL waits until that much is queued. */
static void waitall_and_peek(struct pair *p)
{
    peer_start(p, 0, do_send_slowly, 4, 25);
    CHECK_EQ(recv(p->self.fd, buffer, 100, MSG_WAITALL | MSG_PEEK), 100);
    CHECK(pattern_holds(buffer, 100, p->self.received, p->self.receive_salt));
    CHECK_EQ(do_recv(&p->self, 100, 0), 100);
    peer_finish(p);
}

/* ---- MSG_DONTWAIT, MSG_NOSIGNAL -------------------------------------------------- */

static void dontwait_is_for_one_call(struct pair *p)
{
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, MSG_DONTWAIT), EAGAIN);
    CHECK_EQ(fcntl(p->self.fd, F_GETFL) & O_NONBLOCK, 0);
    peer_start(p, 20, do_send, 10, 0);
    CHECK_EQ(do_recv_once(&p->self, 10, 0), 10);
    peer_finish(p);
}

static void dontwait_send_until_full(struct pair *p)
{
    long total = do_fill(&p->self, 4096, 0);
    CHECK(total >= 16384);
    CHECK_EQ(fcntl(p->self.fd, F_GETFL) & O_NONBLOCK, 0);
    peer_start(p, 0, do_recv, total + 5, 0);
    do_send(&p->self, 5, 0); /* blocks until there is room */
    CHECK_EQ(peer_finish(p), total + 5);
}

static void sigpipe_unless_nosignal(struct pair *p)
{
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    int before = sigpipes();
    CHECK_ERRNO(send(p->self.fd, buffer, 10, MSG_NOSIGNAL), EPIPE);
    struct iovec vector = {buffer, 10};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    CHECK_ERRNO(sendmsg(p->self.fd, &message, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(sigpipes() - before, 0);
    CHECK_ERRNO(send(p->self.fd, buffer, 10, 0), EPIPE);
    CHECK_EQ(sigpipes() - before, 1);
    CHECK_ERRNO(write(p->self.fd, buffer, 10), EPIPE);
    CHECK_EQ(sigpipes() - before, 2);
    CHECK_ERRNO(writev(p->self.fd, &vector, 1), EPIPE);
    CHECK_ERRNO(sendmsg(p->self.fd, &message, 0), EPIPE);
    CHECK_EQ(sigpipes() - before, 4);
}

/* SIGPIPE goes to the thread that wrote, so a thread that blocks it keeps it
 * pending for itself. */
static void sigpipe_is_for_the_thread(struct pair *p)
{
    sigset_t pipe_only, old, pending;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    CHECK_EQ(pthread_sigmask(SIG_BLOCK, &pipe_only, &old), 0);
    shutdown(p->self.fd, SHUT_WR);
    int before = sigpipes();
    CHECK_ERRNO(send(p->self.fd, buffer, 1, 0), EPIPE);
    CHECK_EQ(sigpending(&pending), 0);
    CHECK_EQ(sigismember(&pending, SIGPIPE), 1);
    struct timespec now = {0};
    CHECK_EQ(sigtimedwait(&pipe_only, NULL, &now), SIGPIPE);
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, &old, NULL), 0);
    CHECK_EQ(sigpipes() - before, 0);
}

/* ---- MSG_MORE, TCP_CORK ---------------------------------------------------------- */

/* Held-back data arrives: with the next send … */
static void more_is_flushed_by_a_send(struct pair *p)
{
    CHECK_EQ(do_send(&p->self, 10, MSG_MORE), 10);
    CHECK_EQ(do_send(&p->self, 10, MSG_MORE), 10);
    CHECK_EQ(do_send(&p->self, 10, 0), 10);
    peer_do(p, do_recv, 30, 0);
}

/* … or by itself after 200 ms at the latest (tcp(7), TCP_CORK) … */
static void more_is_flushed_by_time(struct pair *p)
{
    do_send(&p->self, 10, MSG_MORE);
    peer_do(p, do_recv, 10, 0);
}

/* … or by the end of the stream. */
static void more_is_flushed_by_shutdown(struct pair *p)
{
    do_send(&p->self, 10, MSG_MORE);
    shutdown(p->self.fd, SHUT_WR);
    peer_do(p, do_recv, 10, 0);
    peer_do(p, do_recv_eof, 0, 0);
}

static void more_is_flushed_by_close(struct pair *p)
{
    do_send(&p->self, 10, MSG_MORE);
    self_close(p);
    peer_do(p, do_recv, 10, 0);
    peer_do(p, do_recv_eof, 0, 0);
}

static void cork_is_flushed_by_uncork(struct pair *p)
{
    CHECK_EQ(set_int(p->self.fd, IPPROTO_TCP, TCP_CORK, 1), 0);
    CHECK_EQ(get_int(p->self.fd, IPPROTO_TCP, TCP_CORK), 1);
    do_send(&p->self, 10, 0);
    do_send(&p->self, 20, 0);
    CHECK_EQ(set_int(p->self.fd, IPPROTO_TCP, TCP_CORK, 0), 0);
    peer_do(p, do_recv, 30, 0);
}

static void cork_is_flushed_by_time(struct pair *p)
{
    set_int(p->self.fd, IPPROTO_TCP, TCP_CORK, 1);
    do_send(&p->self, 10, 0);
    peer_do(p, do_recv, 10, 0);
}

/* Corked bulk flows, only the last partial segment may wait. */
static void cork_does_not_stop_bulk(struct pair *p)
{
    CHECK_EQ(set_int(p->self.fd, IPPROTO_TCP, TCP_CORK, 1), 0);
    peer_start(p, 0, do_recv, 500001, 0);
    do_send(&p->self, 500001, 0);
    set_int(p->self.fd, IPPROTO_TCP, TCP_CORK, 0);
    CHECK_EQ(peer_finish(p), 500001);
}

/* ---- flags that mean nothing here ------------------------------------------------ */

static void harmless_flags(struct pair *p)
{
    do_send(&p->self, 10, MSG_EOR);
    do_send(&p->self, 10, MSG_CONFIRM);
    do_send(&p->self, 10, MSG_DONTROUTE);
    peer_do(p, do_recv, 30, 0);
    peer_do(p, do_send, 10, 0);
    do_recv(&p->self, 10, MSG_CMSG_CLOEXEC);
    /* No error is queued. */
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, MSG_ERRQUEUE), EAGAIN);
}

static const struct test tests[] = {
    {"peek_does_not_consume", peek_does_not_consume, 0},
    {"peek_sees_all_parts", peek_sees_all_parts, 0},
    {"peek_blocks_until_data", peek_blocks_until_data, ACTIVE_PEER | SLOW},
    {"peek_offset", peek_offset, 0},
    {"waitall_waits", waitall_waits, ACTIVE_PEER | SLOW},
    {"waitall_of_a_megabyte", waitall_of_a_megabyte, ACTIVE_PEER},
    {"waitall_over_vectors", waitall_over_vectors, ACTIVE_PEER | SLOW},
    {"waitall_ends_at_eof", waitall_ends_at_eof, 0},
    {"waitall_nonblocking_takes_what_is_there", waitall_nonblocking_takes_what_is_there, 0},
    {"waitall_and_peek", waitall_and_peek, ACTIVE_PEER | SLOW},
    {"dontwait_is_for_one_call", dontwait_is_for_one_call, ACTIVE_PEER | SLOW},
    {"dontwait_send_until_full", dontwait_send_until_full, ACTIVE_PEER},
    {"sigpipe_unless_nosignal", sigpipe_unless_nosignal, 0},
    {"sigpipe_is_for_the_thread", sigpipe_is_for_the_thread, 0},
    {"more_is_flushed_by_a_send", more_is_flushed_by_a_send, 0},
    {"more_is_flushed_by_time", more_is_flushed_by_time, SLOW},
    {"more_is_flushed_by_shutdown", more_is_flushed_by_shutdown, 0},
    {"more_is_flushed_by_close", more_is_flushed_by_close, 0},
    {"cork_is_flushed_by_uncork", cork_is_flushed_by_uncork, 0},
    {"cork_is_flushed_by_time", cork_is_flushed_by_time, SLOW},
    {"cork_does_not_stop_bulk", cork_does_not_stop_bulk, ACTIVE_PEER},
    {"harmless_flags", harmless_flags, 0},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
