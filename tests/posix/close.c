/*
 * close.c: what the other end sees when one end goes: by close(), by exit, by
 * SIGKILL, with bytes unread on either side, with SO_LINGER.
 */
#include "support.h"

#include <sys/syscall.h>

enum { GONE = POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP };

static unsigned char buffer[1000];

/* The peer is told nothing more than "this is the end" and we have read all. */
static void orderly(struct pair *p)
{
    CHECK_EQ(peer_do(p, do_close, 0, 0), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
}

static void data_queued_for_us(struct pair *p)
{
    peer_do(p, do_send, 5000, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(do_recv(&p->self, 2000, 0), 2000);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(do_recv(&p->self, 3000, 0), 3000);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
}

/* More than the buffers hold: the sender is closed long before we have read. */
static long do_send_and_close(struct end *end, long len, long b)
{
    (void)b;
    do_send(end, len, 0);
    return do_close(end, 0, 0);
}

static void data_beyond_the_buffers(struct pair *p)
{
    enum { LEN = 3 << 20 };
    peer_start(p, 0, do_send_and_close, LEN, 0);
    CHECK_EQ(do_recv(&p->self, LEN, 0), LEN);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
    CHECK_EQ(peer_finish(p), 0);
}

/* Writing to somebody who has closed: the first write is taken, the answer is a
 * reset, and the second finds the pipe broken. The error is EPIPE, not ECONNRESET,
 * because the end of the stream had come before. */
static void writes_after_close(struct pair *p)
{
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    int before = sigpipes();
    CHECK_EQ(do_send_once(&p->self, 10, 0), 10);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_EQ(sigpipes() - before, 0);
    CHECK_ERRNO(send(p->self.fd, "x", 1, 0), EPIPE);
    CHECK_EQ(sigpipes() - before, 1);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
}

/* recv() says "end" and leaves the error for SO_ERROR. */
static void writes_after_close_so_error(struct pair *p)
{
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(do_send_once(&p->self, 10, 0), 10);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), EPIPE);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
    CHECK_MASK(p->self.fd, GONE & ~POLLERR);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
}

/* The same with data of the peer still unread here: the reset does not take it
 * away. */
static void writes_after_close_with_data_queued(struct pair *p)
{
    peer_do(p, do_send, 500, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(do_send_once(&p->self, 10, 0), 10);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_EQ(do_recv(&p->self, 500, 0), 500);
}

/* ---- resets ---------------------------------------------------------------------- */

/* Whoever closes with bytes unread has thrown them away: reset, not end. */
static void peer_leaves_our_data_unread(struct pair *p)
{
    do_send(&p->self, 100, 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN, HANG_MS), POLLIN);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), ECONNRESET);
    CHECK_MASK(p->self.fd, GONE & ~POLLERR);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
    int before = sigpipes();
    CHECK_ERRNO(send(p->self.fd, "x", 1, 0), EPIPE);
    CHECK_EQ(sigpipes() - before, 1);
}

static void peer_leaves_our_data_partly_unread(struct pair *p)
{
    do_send(&p->self, 100, 0);
    CHECK_EQ(peer_do(p, do_recv, 60, 0), 60);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), ECONNRESET);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
    CHECK_MASK(p->self.fd, GONE & ~POLLERR);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
}

/* Behind the end of the stream a reset is news for whoever sends: recv() says "end", and
 * the error is EPIPE. */
static void reset_behind_the_end(struct pair *p)
{
    do_send(&p->self, 100, 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN, HANG_MS), POLLIN);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), EPIPE);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
}

/* The error comes before all else that is wrong with a send. */
static void reset_seen_by_a_send_of_nothing(struct pair *p)
{
    do_send(&p->self, 100, 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN, HANG_MS), POLLIN);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_ERRNO(send(p->self.fd, "", 0, 0), ECONNRESET);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
}

static void reset_seen_by_send_behind_our_end(struct pair *p)
{
    do_send(&p->self, 100, 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN, HANG_MS), POLLIN);
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, GONE);
    int before = sigpipes();
    CHECK_ERRNO(send(p->self.fd, "x", 1, 0), ECONNRESET);
    CHECK_EQ(sigpipes() - before, 0);
    CHECK_ERRNO(send(p->self.fd, "x", 1, 0), EPIPE);
    CHECK_EQ(sigpipes() - before, 1);
}

static void reset_behind_the_end_seen_by_send(struct pair *p)
{
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    peer_do(p, do_linger, 1, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, GONE);
    int before = sigpipes();
    CHECK_ERRNO(send(p->self.fd, "x", 1, 0), EPIPE);
    CHECK_EQ(sigpipes() - before, 1);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
}

/* send() reports the reset too, as ECONNRESET and without SIGPIPE, once. */
static void reset_seen_by_send(struct pair *p)
{
    do_send(&p->self, 100, 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN, HANG_MS), POLLIN);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, GONE);
    int before = sigpipes();
    CHECK_ERRNO(send(p->self.fd, "x", 1, 0), ECONNRESET);
    CHECK_EQ(sigpipes() - before, 0);
    CHECK_ERRNO(send(p->self.fd, "x", 1, 0), EPIPE);
    CHECK_EQ(sigpipes() - before, 1);
}

/* A reset leaves what was received readable: data first, then ECONNRESET once,
 * then 0. */
static void reset_with_data_queued_for_us(struct pair *p)
{
    do_send(&p->self, 100, 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN, HANG_MS), POLLIN);
    peer_do(p, do_send, 300, 0);
    await_readable(p->self.fd, 300);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_EQ(do_recv(&p->self, 100, 0), 100);
    CHECK_EQ(do_recv(&p->self, 200, 0), 200);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), ECONNRESET);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
}

static void reset_wakes_recv(struct pair *p)
{
    do_send(&p->self, 10, 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN, HANG_MS), POLLIN);
    peer_start(p, 20, do_close, 0, 0);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), ECONNRESET);
    peer_finish(p);
}

static void close_wakes_recv(struct pair *p)
{
    peer_start(p, 20, do_close, 0, 0);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    peer_finish(p);
}

/* Full is not for ever: for a while after EAGAIN late acknowledgements and window
 * probes still make room, so a send may succeed before one sleeps. */
static ssize_t send_until_error(int fd)
{
    ssize_t n;
    while ((n = send(fd, buffer, sizeof buffer, MSG_NOSIGNAL)) > 0)
        ;
    return n;
}

/* A writer that sleeps on a full buffer learns of the reset. */
/* The part is the answer of the call; the reset is told to the next one. */
static void reset_behind_a_part(struct pair *p, bool asks)
{
    size_t len = 64 << 20; /* more than TCP's buffers hold */
    char *much = calloc(1, len);
    peer_start(p, 20, do_close, 0, 0);
    ssize_t n = send(p->self.fd, much, len, MSG_NOSIGNAL);
    CHECK(n > 0 && (size_t)n < len);
    free(much);
    if (asks)
        CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), ECONNRESET);
    else
        CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), ECONNRESET);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    peer_finish(p);
}

static void reset_behind_a_part_seen_by_send(struct pair *p)
{
    reset_behind_a_part(p, false);
}

static void reset_behind_a_part_so_error(struct pair *p)
{
    reset_behind_a_part(p, true);
}

static void reset_wakes_send(struct pair *p)
{
    do_fill(&p->self, 8192, 0);
    peer_start(p, 20, do_close, 0, 0);
    CHECK_ERRNO(send_until_error(p->self.fd), ECONNRESET);
    peer_finish(p);
}

static void reset_wakes_poll_out(struct pair *p)
{
    do_fill(&p->self, 8192, 0);
    peer_start(p, 20, do_close, 0, 0);
    CHECK_EQ(poll_once(p->self.fd, POLLOUT, HANG_MS), POLLOUT | POLLERR | POLLHUP);
    peer_finish(p);
}

/* ---- SO_LINGER ------------------------------------------------------------------- */

/* {1, 0}: close() is a reset. */
static void linger_zero(struct pair *p)
{
    CHECK_EQ(peer_do(p, do_linger, 1, 0), 0);
    CHECK_EQ(peer_do(p, do_close, 0, 0), 0);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), ECONNRESET);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
}

static void linger_zero_with_data_queued(struct pair *p)
{
    peer_do(p, do_send, 100, 0);
    await_readable(p->self.fd, 100);
    peer_do(p, do_linger, 1, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_EQ(do_recv(&p->self, 100, 0), 100);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), ECONNRESET);
}

/* The process ends without close(): the option still holds. */
static void linger_zero_at_exit(struct pair *p)
{
    peer_do(p, do_linger, 1, 0);
    peer_end(p, do_exit);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), ECONNRESET);
}

/* shutdown() before makes no difference to the reset. */
static void linger_zero_after_shutdown(struct pair *p)
{
    peer_do(p, do_linger, 1, 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, GONE);
}

/* With a time, close() waits for the bytes to be taken by our kernel, not by us. */
static void linger_with_a_time(struct pair *p)
{
    peer_do(p, do_linger, 1, 2 * HANG_MS / 1000);
    peer_do(p, do_send, 1000, 0);
    uint64_t start = now_ms();
    CHECK_EQ(peer_do(p, do_close, 0, 0), 0);
    CHECK(now_ms() - start < HANG_MS);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(do_recv(&p->self, 1000, 0), 1000);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
}

/* With more than the buffers hold it waits until we have read enough; nothing is
 * lost. */
static void linger_with_a_slow_reader(struct pair *p)
{
    enum { LEN = 3 << 20 };
    peer_do(p, do_linger, 1, 2 * HANG_MS / 1000);
    peer_start(p, 0, do_send_and_close, LEN, 0);
    for (int i = 0; i < 10; i++) {
        sleep_ms(5);
        CHECK_EQ(do_recv(&p->self, LEN / 10, 0), LEN / 10);
    }
    CHECK_EQ(do_recv(&p->self, LEN % 10, 0), LEN % 10);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
    CHECK_EQ(peer_finish(p), 0);
}

static void linger_is_remembered(struct pair *p)
{
    struct linger linger = {1, 7};
    CHECK_EQ(setsockopt(p->self.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger), 0);
    linger = (struct linger){0, 0};
    socklen_t len = sizeof linger;
    CHECK_EQ(getsockopt(p->self.fd, SOL_SOCKET, SO_LINGER, &linger, &len), 0);
    CHECK_EQ(linger.l_onoff, 1);
    CHECK_EQ(linger.l_linger, 7);
    CHECK_EQ(do_linger(&p->self, 0, 0), 0);
    self_close(p);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* ---- the process goes ------------------------------------------------------------ */

/* The kernel closes what a dead process had: to us it is an orderly end, or a
 * reset if it left bytes unread. At once, not after a time-out. */

static void peer_exits(struct pair *p)
{
    peer_do(p, do_send, 100, 0);
    peer_end(p, do_exit);
    CHECK_EQ(do_recv(&p->self, 100, 0), 100);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
}

static void peer_is_killed(struct pair *p)
{
    peer_end(p, do_die);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(do_send_once(&p->self, 10, 0), 10);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
}

/* poll() has something to tell, room, and yet tells of the death. */
static void death_shows_beside_room(struct pair *p)
{
    peer_end(p, do_die);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(do_send_once(&p->self, 10, 0), 10);
    CHECK_MASK(p->self.fd, GONE);
}

static void peer_is_killed_with_data_queued_for_us(struct pair *p)
{
    peer_do(p, do_send, 1000, 0);
    peer_end(p, do_die);
    CHECK_EQ(do_recv(&p->self, 1000, 0), 1000);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
}

static void peer_is_killed_with_our_data_unread(struct pair *p)
{
    do_send(&p->self, 100, 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN, HANG_MS), POLLIN);
    peer_end(p, do_die);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), ECONNRESET);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
}

/* Waits until the end of the TCP connection has arrived, and asks past the library: a library
 * learns nothing by it. */
static void await_the_kernels_end(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLRDHUP};
    struct timespec patience = {HANG_MS / 1000, 0};
    CHECK_EQ(past_libc(SYS_ppoll, (long)&entry, 1, (long)&patience, 0, 0), 1);
}

/* Nobody has to read to find out. */
static void shutdown_after_a_death(struct pair *p)
{
    struct sockaddr_storage name;
    socklen_t len = sizeof name;
    do_send(&p->self, 100, 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN, HANG_MS), POLLIN);
    peer_end(p, do_die);
    await_the_kernels_end(p->self.fd);
    CHECK_ERRNO(shutdown(p->self.fd, SHUT_RD), ENOTCONN);
    CHECK_ERRNO(getpeername(p->self.fd, (struct sockaddr *)&name, &len), ENOTCONN);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), ECONNRESET);
}

/* Nobody has sent urgent data. */
static void death_is_not_urgent(struct pair *p)
{
    do_send(&p->self, 100, 0);
    peer_do(p, do_send, 10, 0);
    await_readable(p->self.fd, 10);
    peer_end(p, do_die);
    CHECK_EQ(poll_once(p->self.fd, POLLIN | POLLPRI | POLLRDHUP, HANG_MS) & POLLPRI, 0);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
}

/* Counting what is there tells nobody of the reset. */
static void counting_takes_no_reset(struct pair *p)
{
    int queued = -1;
    do_send(&p->self, 100, 0);
    peer_do(p, do_poll, POLLIN, HANG_MS);
    peer_do(p, do_close, 0, 0);
    CHECK_EQ(poll_once(p->self.fd, POLLIN, HANG_MS), POLLIN | POLLERR | POLLHUP);
    CHECK_EQ(ioctl(p->self.fd, FIONREAD, &queued), 0);
    CHECK_EQ(queued, 0);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), ECONNRESET);
}

/* A receive without room sleeps, and once it has slept it returns 0 whatever has come:
 * also a reset, of which the next call hears. */
static long do_reset(struct end *end, long a, long b)
{
    do_linger(end, 1, 0);
    return do_close(end, a, b);
}

static void reset_wakes_who_has_no_room(struct pair *p)
{
    peer_start(p, 20, do_reset, 0, 0);
    CHECK_EQ(recv(p->self.fd, buffer, 0, 0), 0);
    CHECK_EQ(peer_finish(p), 0);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), ECONNRESET);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
}

/* The peer ends in order, and its program without a word: what is sent to it later was
 * not unread when it ended. */
static void send_after_exit(struct pair *p)
{
    peer_end(p, do_exit);
    await_the_kernels_end(p->self.fd);
    CHECK_EQ(send(p->self.fd, buffer, 10, MSG_NOSIGNAL), 10);
    CHECK_MASK(p->self.fd, GONE);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_ERRNO(send(p->self.fd, buffer, 10, MSG_NOSIGNAL), EPIPE);
}

/* A sleeper is woken by the death. */
static void order_death(struct pair *p)
{
    /* The peer never answers this one; pair_close() only collects the child. */
    peer_start(p, 20, do_die, 0, 0);
}

static void collect_death(struct pair *p)
{
    await_child(p->process);
    p->process = 0;
}

static void death_wakes_recv(struct pair *p)
{
    order_death(p);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    collect_death(p);
}

static void death_wakes_poll(struct pair *p)
{
    order_death(p);
    CHECK_EQ(poll_once(p->self.fd, POLLIN | POLLRDHUP, HANG_MS), POLLIN | POLLRDHUP);
    collect_death(p);
}

static void death_wakes_send(struct pair *p)
{
    do_fill(&p->self, 8192, 0);
    order_death(p);
    CHECK_ERRNO(send_until_error(p->self.fd), ECONNRESET);
    collect_death(p);
}

static void death_wakes_epoll(struct pair *p)
{
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.u64 = 42};
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, p->self.fd, &event), 0);
    order_death(p);
    CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    CHECK_EQ(event.events, EPOLLIN | EPOLLRDHUP);
    CHECK_EQ(event.data.u64, 42);
    close(set);
    collect_death(p);
}

/* Killed in the middle of a stream: what we get is a prefix, then an end. */
static long do_send_for_ever(struct end *end, long a, long b)
{
    (void)a, (void)b;
    while (do_send(end, 1000, 0) > 0)
        ;
    return 0;
}

static void killed_in_the_middle(struct pair *p)
{
    peer_start(p, 0, do_send_for_ever, 0, 0);
    CHECK_EQ(do_recv(&p->self, 300000, 0), 300000);
    kill(p->process, SIGKILL);
    long n;
    while ((n = do_recv_once(&p->self, 1 << 16, 0)) > 0)
        ;
    CHECK_EQ(n, 0); /* nothing of ours was unread there, so no reset */
    collect_death(p);
}

/* ---- details --------------------------------------------------------------------- */

static void close_twice(struct pair *p)
{
    int fd = p->self.fd;
    CHECK_EQ(self_close(p), 0);
    CHECK_ERRNO(close(fd), EBADF);
    CHECK_ERRNO(recv(fd, buffer, 1, 0), EBADF);
    CHECK_ERRNO(send(fd, buffer, 1, 0), EBADF);
    CHECK_EQ(poll_once(fd, POLLIN, 0), POLLNVAL);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* The number comes back for something else; the past does not stick to it. */
static void number_reused(struct pair *p)
{
    int fd = p->self.fd;
    CHECK_EQ(self_close(p), 0);
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    for (int i = 0; i < 2; i++) { /* out of the way, one of them is the number */
        int high = fcntl(ends[i], F_DUPFD, 100);
        close(ends[i]);
        ends[i] = high;
    }
    CHECK_EQ(dup2(ends[0], fd), fd);
    close(ends[0]);
    CHECK_EQ(write(ends[1], "pipe", 4), 4);
    CHECK_EQ(read(fd, buffer, 100), 4);
    CHECK_ERRNO(send(fd, "x", 1, 0), ENOTSOCK);
    close(ends[1]);
    CHECK_EQ(read(fd, buffer, 100), 0);
    close(fd);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* A sender that never waits hears of it, too: it is not told EAGAIN for ever. */
static void death_is_told_to_who_fills(struct pair *p)
{
    do_fill(&p->self, 4096, 0);
    peer_end(p, do_die);
    uint64_t deadline = now_ms() + HANG_MS;
    long n;
    do
        n = do_send_once(&p->self, 4096, MSG_DONTWAIT | MSG_NOSIGNAL);
    while ((n >= 0 || errno == EAGAIN) && now_ms() < deadline);
    CHECK_EQ(n, -1);
    CHECK_EQ(errno, ECONNRESET);
}

/* ---- young connections ------------------------------------------------------------ */

enum { YOUNG_MAX = 6 };

/* A connection after a few messages: a library that moves the stream is in the middle of
 * that, a little further with each. */
static void open_young(struct pair *young, int messages)
{
    pair_open(young, (struct setting){.place = SAME_THREAD});
    for (int i = 0; i < messages; i++) {
        CHECK_EQ(do_send(&young->self, 1, 0), 1);
        CHECK_EQ(peer_do(young, do_recv, 1, 0), 1);
        CHECK_EQ(peer_do(young, do_send, 1, 0), 1);
        CHECK_EQ(do_recv(&young->self, 1, 0), 1);
    }
}

/* Our own SHUT_RD is not the peer's end, and a recv() of nothing sees it, too. */
static void young_self_rd(struct pair *p)
{
    (void)p;
    for (int messages = 0; messages < YOUNG_MAX; messages++) {
        struct pair young;
        char bytes[10];
        open_young(&young, messages);
        CHECK_EQ(shutdown(young.self.fd, SHUT_RD), 0);
        CHECK_EQ(recv(young.self.fd, bytes, 0, MSG_DONTWAIT), 0);
        CHECK_EQ(do_send(&young.self, 11000, 0), 11000);
        CHECK_EQ(recv(young.self.fd, bytes, 10, MSG_DONTWAIT), 0);
        CHECK_EQ(peer_do(&young, do_recv, 11000, 0), 11000);
        CHECK_EQ(recv(young.self.fd, bytes, 10, MSG_DONTWAIT), 0);
        pair_close(&young);
    }
}

/* A reset is told to whoever asks first. */
static void young_reset(struct pair *p)
{
    (void)p;
    for (int messages = 0; messages < YOUNG_MAX; messages++) {
        struct pair young;
        char byte;
        for (int by_option = 0; by_option < 2; by_option++) {
            open_young(&young, messages);
            peer_do(&young, do_linger, 1, 0);
            peer_do(&young, do_close, 0, 0);
            if (by_option)
                CHECK_EQ(get_int(young.self.fd, SOL_SOCKET, SO_ERROR), ECONNRESET);
            else
                CHECK_ERRNO(recv(young.self.fd, &byte, 1, 0), ECONNRESET);
            CHECK_EQ(recv(young.self.fd, &byte, 1, 0), 0);
            pair_close(&young);
        }
    }
}

/* What is sent after the peer's close is answered with a reset. */
static void young_late_write(struct pair *p)
{
    (void)p;
    for (int messages = 0; messages < YOUNG_MAX; messages++) {
        struct pair young;
        open_young(&young, messages);
        peer_do(&young, do_close, 0, 0);
        CHECK_EQ(send(young.self.fd, "x", 1, MSG_NOSIGNAL), 1);
        CHECK_MASK(young.self.fd, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
        CHECK_EQ(get_int(young.self.fd, SOL_SOCKET, SO_ERROR), EPIPE);
        CHECK_ERRNO(shutdown(young.self.fd, SHUT_WR), ENOTCONN);
        pair_close(&young);
    }
}

static const struct test tests[] = {
    {"orderly", orderly, FAMILIES},
    {"data_queued_for_us", data_queued_for_us, 0},
    {"data_beyond_the_buffers", data_beyond_the_buffers, ACTIVE_PEER},
    {"writes_after_close", writes_after_close, 0},
    {"writes_after_close_so_error", writes_after_close_so_error, 0},
    {"writes_after_close_with_data_queued", writes_after_close_with_data_queued, 0},
    {"peer_leaves_our_data_unread", peer_leaves_our_data_unread, 0},
    {"peer_leaves_our_data_partly_unread", peer_leaves_our_data_partly_unread, 0},
    {"reset_seen_by_send", reset_seen_by_send, 0},
    {"reset_behind_the_end", reset_behind_the_end, 0},
    {"reset_seen_by_a_send_of_nothing", reset_seen_by_a_send_of_nothing, 0},
    {"reset_seen_by_send_behind_our_end", reset_seen_by_send_behind_our_end, 0},
    {"reset_behind_the_end_seen_by_send", reset_behind_the_end_seen_by_send, 0},
    {"reset_with_data_queued_for_us", reset_with_data_queued_for_us, 0},
    {"reset_wakes_recv", reset_wakes_recv, ACTIVE_PEER | SLOW},
    {"close_wakes_recv", close_wakes_recv, ACTIVE_PEER | SLOW},
    {"reset_behind_a_part_seen_by_send", reset_behind_a_part_seen_by_send, ACTIVE_PEER | SLOW},
    {"reset_behind_a_part_so_error", reset_behind_a_part_so_error, ACTIVE_PEER | SLOW},
    {"reset_wakes_send", reset_wakes_send, ACTIVE_PEER | SLOW},
    {"reset_wakes_poll_out", reset_wakes_poll_out, ACTIVE_PEER | SLOW},
    {"linger_zero", linger_zero, FAMILIES},
    {"linger_zero_with_data_queued", linger_zero_with_data_queued, 0},
    {"linger_zero_at_exit", linger_zero_at_exit, PROCESS_ONLY},
    {"linger_zero_after_shutdown", linger_zero_after_shutdown, 0},
    {"linger_with_a_time", linger_with_a_time, PROCESS_ONLY},
    {"linger_with_a_slow_reader", linger_with_a_slow_reader, ACTIVE_PEER | SLOW},
    {"linger_is_remembered", linger_is_remembered, 0},
    {"peer_exits", peer_exits, PROCESS_ONLY},
    {"peer_is_killed", peer_is_killed, PROCESS_ONLY},
    {"death_shows_beside_room", death_shows_beside_room, PROCESS_ONLY},
    {"peer_is_killed_with_data_queued_for_us", peer_is_killed_with_data_queued_for_us,
     PROCESS_ONLY},
    {"peer_is_killed_with_our_data_unread", peer_is_killed_with_our_data_unread, PROCESS_ONLY},
    {"shutdown_after_a_death", shutdown_after_a_death, PROCESS_ONLY},
    {"death_is_not_urgent", death_is_not_urgent, PROCESS_ONLY},
    {"counting_takes_no_reset", counting_takes_no_reset, 0},
    {"reset_wakes_who_has_no_room", reset_wakes_who_has_no_room, ACTIVE_PEER | SLOW},
    {"send_after_exit", send_after_exit, PROCESS_ONLY},
    {"death_wakes_recv", death_wakes_recv, PROCESS_ONLY | SLOW},
    {"death_wakes_poll", death_wakes_poll, PROCESS_ONLY | SLOW},
    {"death_wakes_send", death_wakes_send, PROCESS_ONLY | SLOW},
    {"death_wakes_epoll", death_wakes_epoll, PROCESS_ONLY | SLOW},
    {"death_is_told_to_who_fills", death_is_told_to_who_fills, PROCESS_ONLY},
    {"killed_in_the_middle", killed_in_the_middle, PROCESS_ONLY},
    {"close_twice", close_twice, 0},
    {"number_reused", number_reused, 0},
    {"young_self_rd", young_self_rd, SLOW},
    {"young_reset", young_reset, SLOW},
    {"young_late_write", young_late_write, SLOW},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
