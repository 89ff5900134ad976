/* lowat.c: SO_RCVLOWAT, the least that is worth waking for. */
#include "support.h"

enum { LOWAT = 100 };

static unsigned char buffer[1 << 20];

static void set_and_read_back(struct pair *p)
{
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT), 1);
    CHECK_EQ(set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LOWAT), 0);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT), LOWAT);
    CHECK_EQ(set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, 0), 0); /* means 1 */
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT), 1);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_SNDLOWAT), 1);
    CHECK_ERRNO(set_int(p->self.fd, SOL_SOCKET, SO_SNDLOWAT, 10), ENOPROTOOPT);
}

static void poll_waits_for_it(struct pair *p)
{
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LOWAT);
    peer_do(p, do_send, LOWAT / 2, 0);
    await_readable(p->self.fd, LOWAT / 2);
    CHECK_MASK(p->self.fd, POLLOUT);
    peer_do(p, do_send, LOWAT - LOWAT / 2 - 1, 0);
    await_readable(p->self.fd, LOWAT - 1);
    CHECK_MASK(p->self.fd, POLLOUT);
    peer_do(p, do_send, 1, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT);
    CHECK_EQ(do_recv(&p->self, 1, 0), 1);
    CHECK_MASK(p->self.fd, POLLOUT);
    /* Less is enough again. */
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT);
    CHECK_EQ(do_recv(&p->self, LOWAT - 1, 0), LOWAT - 1);
}

/* Taking does not wait for it when told not to. */
static void dontwait_takes_less(struct pair *p)
{
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LOWAT);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, MSG_DONTWAIT), EAGAIN);
    peer_do(p, do_send, 30, 0);
    await_readable(p->self.fd, 30);
    CHECK_EQ(do_recv_once(&p->self, 1000, MSG_DONTWAIT), 30);
}

/* A smaller request is met at once. */
static void request_below_it(struct pair *p)
{
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LOWAT);
    peer_do(p, do_send, 30, 0);
    await_readable(p->self.fd, 30);
    CHECK_EQ(do_recv_once(&p->self, 30, 0), 30);
}

/* Two halves, and more after a while only for this reason: if the first half was
 * already there when recv() began, Linux takes it and then waits for as much as
 * the mark *again* (it wakes the reader only when that much is unread). */
static long do_send_halves(struct end *end, long a, long b)
{
    (void)a, (void)b;
    do_send(end, LOWAT / 2, 0);
    sleep_ms(5);
    do_send(end, LOWAT / 2, 0);
    sleep_ms(100);
    return do_send(end, LOWAT, 0);
}

static void recv_waits_for_it(struct pair *p)
{
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LOWAT);
    peer_start(p, 30, do_send_halves, 0, 0);
    long n = do_recv_once(&p->self, 2 * LOWAT, 0);
    CHECK_BETWEEN(n, LOWAT, 2 * LOWAT);
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    CHECK_EQ(do_recv(&p->self, 2 * LOWAT - n, 0), 2 * LOWAT - n);
    peer_finish(p);
}

/* Who sleeps is woken for that much, even if less had been enough for the call. */
static void sleeper_waits_for_it(struct pair *p)
{
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LOWAT);
    peer_start(p, 20, do_send_halves, 0, 0);
    CHECK_EQ(do_recv_once(&p->self, 1, 0), 1);
    int queued = 0;
    CHECK_EQ(ioctl(p->self.fd, FIONREAD, &queued), 0);
    CHECK_BETWEEN(queued, LOWAT - 1, 2 * LOWAT);
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    CHECK_EQ(do_recv(&p->self, 2 * LOWAT - 1, 0), 2 * LOWAT - 1);
    peer_finish(p);
}

static void poll_sleeps_for_it(struct pair *p)
{
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LOWAT);
    peer_do(p, do_send, LOWAT - 20, 0);
    CHECK_EQ(poll_once(p->self.fd, POLLIN, 30), 0);
    peer_start(p, 20, do_send, 20, 0);
    CHECK_EQ(poll_once(p->self.fd, POLLIN, HANG_MS), POLLIN);
    CHECK_EQ(peer_finish(p), 20);
    CHECK_EQ(do_recv(&p->self, LOWAT, 0), LOWAT);
}

/* epoll, edge triggered: the edge is the crossing, not the first byte. */
static void epoll_edge_is_the_crossing(struct pair *p)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u32 = 9};
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LOWAT);
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, p->self.fd, &event), 0);
    peer_do(p, do_send, LOWAT - 1, 0);
    await_readable(p->self.fd, LOWAT - 1);
    CHECK_EQ(epoll_wait(set, &event, 1, 10), 0);
    peer_do(p, do_send, 1, 0);
    CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    CHECK_EQ(event.events, EPOLLIN);
    CHECK_EQ(event.data.u32, 9);
    do_recv(&p->self, LOWAT, 0);
    close(set);
}

/* Setting a mark that is reached is an edge, setting one that is not is none. */
static void setting_it_is_an_edge(struct pair *p)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, p->self.fd, &event), 0);
    peer_do(p, do_send, LOWAT, 0);
    await_readable(p->self.fd, LOWAT);
    CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    CHECK_EQ(epoll_wait(set, &event, 1, 10), 0);
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LOWAT + 1);
    CHECK_EQ(epoll_wait(set, &event, 1, 10), 0);
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LOWAT);
    CHECK_EQ(epoll_wait(set, &event, 1, 10), 1);
    CHECK_EQ(event.events, EPOLLIN | EPOLLOUT);
    do_recv(&p->self, LOWAT, 0);
    close(set);
}

/* The end of the stream counts more than the mark. */
static void end_below_it(struct pair *p)
{
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LOWAT);
    peer_do(p, do_send, 30, 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(do_recv_once(&p->self, 1000, 0), 30);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
}

/* A mark above what any buffer may hold must not put a reader to sleep for ever
 * while the writer waits for room. */
static void mark_beyond_the_buffers(struct pair *p)
{
    enum { LEN = 200000 };
    CHECK_EQ(set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, LEN), 0);
    peer_start(p, 0, do_send, LEN, 0);
    CHECK_EQ(poll_once(p->self.fd, POLLIN, HANG_MS), POLLIN);
    set_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT, 1);
    CHECK_EQ(do_recv(&p->self, LEN, MSG_WAITALL), LEN);
    CHECK_EQ(peer_finish(p), LEN);
}

static const struct test tests[] = {
    {"set_and_read_back", set_and_read_back, 0},
    {"poll_waits_for_it", poll_waits_for_it, 0},
    {"dontwait_takes_less", dontwait_takes_less, 0},
    {"request_below_it", request_below_it, 0},
    {"recv_waits_for_it", recv_waits_for_it, ACTIVE_PEER | SLOW},
    {"sleeper_waits_for_it", sleeper_waits_for_it, ACTIVE_PEER | SLOW},
    {"poll_sleeps_for_it", poll_sleeps_for_it, ACTIVE_PEER | SLOW},
    {"epoll_edge_is_the_crossing", epoll_edge_is_the_crossing, 0},
    {"setting_it_is_an_edge", setting_it_is_an_edge, 0},
    {"end_below_it", end_below_it, 0},
    {"mark_beyond_the_buffers", mark_beyond_the_buffers, ACTIVE_PEER},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
