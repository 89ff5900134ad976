/* epoll.c: every way to be told, and how often. The law is epoll(7), epoll_ctl(2). */
#include "support.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>

enum { BRIEF_MS = 10 };

/* ---- level ----------------------------------------------------------------------- */

static void level(struct pair *p)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    CHECK_EQ(fcntl(set, F_GETFD), FD_CLOEXEC);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN, WORD), 0);
    CHECK_SILENT(set);
    arrive(p, 10);
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(one_event(set, WORD, HANG_MS), EPOLLIN);
        CHECK_EQ(one_event(set, WORD, 0), EPOLLIN);
        CHECK_EQ(do_recv(&p->self, 1, 0), 1);
    }
    CHECK_SILENT(set);
    CHECK_EQ(epoll_mod(set, p->self.fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 5), 0);
    CHECK_EQ(one_event(set, 5, 0), EPOLLOUT);
    CHECK_EQ(one_event(set, 5, 0), EPOLLOUT);
    arrive(p, 10);
    CHECK_EQ(one_event(set, 5, 0), EPOLLIN | EPOLLOUT);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(one_event(set, 5, 0), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    do_recv(&p->self, 10, 0);
    CHECK_EQ(one_event(set, 5, 0), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    close(set);
}

/* RDHUP only if asked; HUP and ERR always. */
static void what_is_reported_unasked(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN, 1), 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN);
    epoll_mod(set, p->self.fd, EPOLLRDHUP, 1);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLRDHUP);
    epoll_mod(set, p->self.fd, 0, 1);
    CHECK_SILENT(set);
    shutdown(p->self.fd, SHUT_WR);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLHUP);
    close(set);
}

static void reset_is_reported_unasked(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, 0, 1), 0);
    CHECK_SILENT(set);
    peer_do(p, do_linger, 1, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLERR | EPOLLHUP);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), ECONNRESET);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLHUP);
    close(set);
}

/* ---- edge ------------------------------------------------------------------------ */

/* One report for each arrival; none for what a short read leaves. A move in between repeats one, as
 * long as there is something to read (docs/limitations.md). */
static void edge_in(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLET, WORD), 0);
    CHECK_SILENT(set);
    for (int i = 0; i < 5; i++) {
        arrive(p, 10);
        CHECK_EQ(one_event(set, WORD, HANG_MS), EPOLLIN);
        CHECK_SILENT(set);
        CHECK_EQ(do_recv(&p->self, 4, 0), 4); /* the rest stays */
        CHECK_SILENT(set);
    }
    /* Everything taken: nothing to say. */
    CHECK_EQ(do_recv(&p->self, 30, 0), 30);
    CHECK_SILENT(set);
    arrive(p, 1);
    CHECK_EQ(one_event(set, WORD, HANG_MS), EPOLLIN);
    /* Arrived and taken before anybody asked: silent. */
    do_recv(&p->self, 1, 0);
    arrive(p, 1);
    do_recv(&p->self, 1, 0);
    CHECK_SILENT(set);
    /* Two arrivals before anybody asked: one report. */
    arrive(p, 1);
    arrive(p, 1);
    CHECK_EQ(one_event(set, WORD, HANG_MS), EPOLLIN);
    CHECK_SILENT(set);
    close(set);
}

/* ADD and MOD look at the state afresh. */
static void edge_after_add_and_mod(struct pair *p)
{
    int set = epoll_create1(0);
    arrive(p, 10);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLET, 1), 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN);
    CHECK_SILENT(set);
    for (int i = 2; i < 5; i++) {
        CHECK_EQ(epoll_mod(set, p->self.fd, EPOLLIN | EPOLLET, i), 0);
        CHECK_EQ(one_event(set, i, HANG_MS), EPOLLIN);
        CHECK_SILENT(set);
    }
    do_recv(&p->self, 10, 0);
    CHECK_EQ(epoll_mod(set, p->self.fd, EPOLLIN | EPOLLET, 9), 0);
    CHECK_SILENT(set);
    close(set);
}

/* The usual registration of event loops: both directions at once. Each report shows
 * the whole state. */
static void edge_in_and_out(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1), 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLOUT);
    CHECK_SILENT(set);
    arrive(p, 10);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN | EPOLLOUT);
    CHECK_SILENT(set);
    do_recv(&p->self, 10, 0);
    CHECK_SILENT(set);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    CHECK_SILENT(set);
    close(set);
}

/* The edge of OUT is the way from full to roomy. */
static void edge_out(struct pair *p)
{
    int set = epoll_create1(0);
    set_nonblock(p->self.fd, true);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLOUT | EPOLLET, 1), 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLOUT);
    for (int i = 0; i < 2; i++) {
        long total = do_fill(&p->self, 8192, 0);
        CHECK_SILENT(set);
        CHECK_EQ(peer_do(p, do_recv, total, 0), total);
        CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLOUT);
        /* Late acknowledgements may repeat it, but not for ever. */
        for (int again = 0; again < 50 && one_event(set, 1, 50); again++)
            ;
        CHECK_SILENT(set);
    }
    close(set);
}

/* One's own shutdown is an edge, although it changes nothing of what is to be told. */
static void edge_by_own_shutdown(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLOUT | EPOLLET, 1), 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLOUT);
    CHECK_EQ(shutdown(p->self.fd, SHUT_RD), 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLOUT);
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLOUT | EPOLLHUP);
    close(set);
}

/* A send that was taken in part is as good as EAGAIN: many loops wait after it. */
static void edge_out_after_a_part(struct pair *p)
{
    int set = epoll_create1(0);
    set_nonblock(p->self.fd, true);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLOUT | EPOLLET, 1), 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLOUT);
    for (int i = 0; i < 5; i++) {
        long total = 0, n;
        while ((n = do_send_once(&p->self, STAGE_SIZE, 0)) == STAGE_SIZE)
            total += n;
        total += n > 0 ? n : 0;
        CHECK_EQ(peer_do(p, do_recv, total, 0), total);
        CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLOUT);
    }
    close(set);
}

/* The everyday loop of an edge-triggered server that has much to say, from the first
 * moment of a connection: whatever carries the bytes meanwhile, no report is lost. */
static void edge_bulk_out(struct pair *p)
{
    enum { LEN = 8 << 20 };
    int set = epoll_create1(0);
    set_nonblock(p->self.fd, true);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1), 0);
    peer_start(p, 0, do_recv, LEN, 0);
    long left = LEN;
    while (left > 0) {
        if (!CHECK(one_event(set, 1, HANG_MS) & EPOLLOUT))
            break;
        long n, chunk;
        do {
            chunk = left < STAGE_SIZE ? left : STAGE_SIZE;
            n = do_send_once(&p->self, chunk, 0);
            left -= n > 0 ? n : 0;
        } while (n == chunk && left > 0);
        CHECK(n > 0 || errno == EAGAIN);
    }
    CHECK_EQ(left, 0);
    CHECK_EQ(peer_finish(p), LEN);
    close(set);
}

/* … while the writer sleeps in epoll_wait. */
static void edge_out_wakes(struct pair *p)
{
    int set = epoll_create1(0);
    long total = do_fill(&p->self, 8192, 0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLOUT | EPOLLET, 1), 0);
    peer_start(p, 15, do_recv, total, 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLOUT);
    CHECK_EQ(peer_finish(p), total);
    close(set);
}

/* An end is an edge, and so is a reset after it. */
static void edge_at_the_end(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 1), 0);
    arrive(p, 100);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN);
    peer_do(p, do_close, 0, 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN | EPOLLRDHUP);
    CHECK_SILENT(set);
    do_recv(&p->self, 100, 0);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
    CHECK_SILENT(set);
    CHECK_EQ(do_send_once(&p->self, 1, 0), 1);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP);
    CHECK_SILENT(set);
    close(set);
}

/* The everyday loop of an edge-triggered server: a megabyte in odd pieces, read to
 * EAGAIN at each report. A lost report would leave it asleep. */
static void edge_bulk(struct pair *p)
{
    enum { LEN = 1 << 20 };
    int set = epoll_create1(0);
    set_nonblock(p->self.fd, true);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLET, 1), 0);
    peer_start(p, 0, do_send, LEN, 0);
    long left = LEN;
    while (left > 0) {
        if (!CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN))
            break;
        long n;
        while ((n = do_recv_once(&p->self, 1777, 0)) > 0)
            left -= n;
        CHECK_EQ(errno, EAGAIN);
    }
    CHECK_EQ(left, 0);
    CHECK_EQ(peer_finish(p), LEN);
    close(set);
}

/* Many small requests, each answered: nothing may be lost between two waits. */
static void edge_ping_pong(struct pair *p)
{
    enum { ROUNDS = 300 };
    int set = epoll_create1(0);
    set_nonblock(p->self.fd, true);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLET, 1), 0);
    peer_start(p, 0, do_echo, 32, ROUNDS);
    for (int i = 0; i < ROUNDS; i++) {
        do_send(&p->self, 32, 0);
        long left = 32;
        while (left > 0) {
            if (!CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN))
                return;
            long n;
            while ((n = do_recv_once(&p->self, 100, 0)) > 0)
                left -= n;
        }
    }
    CHECK_EQ(peer_finish(p), 0);
    close(set);
}

/* ---- one-shot -------------------------------------------------------------------- */

static void one_shot(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLONESHOT, 1), 0);
    arrive(p, 10);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN);
    CHECK_SILENT(set);
    arrive(p, 10);
    CHECK_SILENT(set); /* until armed again */
    CHECK_EQ(epoll_mod(set, p->self.fd, EPOLLIN | EPOLLONESHOT, 2), 0);
    CHECK_EQ(one_event(set, 2, HANG_MS), EPOLLIN);
    do_recv(&p->self, 20, 0);
    /* Not even the end or a reset is told. */
    peer_do(p, do_linger, 1, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
    CHECK_SILENT(set);
    CHECK_EQ(epoll_mod(set, p->self.fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 3), 0);
    CHECK_EQ(one_event(set, 3, HANG_MS), EPOLLIN | EPOLLERR | EPOLLHUP);
    CHECK_SILENT(set);
    close(set);
}

/* One report until armed again, whatever becomes of the connection meanwhile: it may move, and has
 * something new to tell before, in the middle and after. */
static void one_shot_through_a_move(struct pair *p)
{
    for (int rearmed = 0; rearmed < 3; rearmed++) {
        int set = epoll_create1(0);
        CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLONESHOT, 1), 0);
        if (rearmed == 1)
            CHECK_EQ(epoll_mod(set, p->self.fd, EPOLLIN, 1), 0);
        if (rearmed > 0)
            CHECK_EQ(epoll_mod(set, p->self.fd, EPOLLIN | EPOLLONESHOT, 1), 0);
        arrive(p, 1);
        CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN);
        for (int i = 0; i < 20; i++) {
            CHECK_SILENT(set);
            CHECK_EQ(do_recv(&p->self, 1, 0), 1);
            CHECK_EQ(do_send(&p->self, 1, 0), 1);
            CHECK_EQ(peer_do(p, do_recv, 1, 0), 1);
            arrive(p, 1);
        }
        CHECK_SILENT(set);
        CHECK_EQ(epoll_mod(set, p->self.fd, EPOLLIN | EPOLLONESHOT, 2), 0);
        CHECK_EQ(one_event(set, 2, HANG_MS), EPOLLIN);
        CHECK_SILENT(set);
        CHECK_EQ(do_recv(&p->self, 1, 0), 1);
        /* Armed in vain, and for all that comes. */
        CHECK_EQ(epoll_mod(set, p->self.fd, EPOLLIN | EPOLLONESHOT, 3), 0);
        CHECK_SILENT(set);
        CHECK_EQ(epoll_mod(set, p->self.fd, EPOLLIN, 4), 0);
        arrive(p, 1);
        CHECK_EQ(one_event(set, 4, HANG_MS), EPOLLIN);
        CHECK_EQ(one_event(set, 4, HANG_MS), EPOLLIN);
        CHECK_EQ(do_recv(&p->self, 1, 0), 1);
        CHECK_EQ(epoll_ctl(set, EPOLL_CTL_DEL, p->self.fd, NULL), 0);
        CHECK_ERRNO(epoll_mod(set, p->self.fd, EPOLLIN | EPOLLONESHOT, 5), ENOENT);
        CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLONESHOT, 6), 0);
        CHECK_ERRNO(epoll_add(set, p->self.fd, EPOLLIN | EPOLLONESHOT, 7), EEXIST);
        arrive(p, 1);
        CHECK_EQ(one_event(set, 6, HANG_MS), EPOLLIN);
        CHECK_SILENT(set);
        CHECK_EQ(do_recv(&p->self, 1, 0), 1);
        close(set);
    }
}

/* ---- exclusive ------------------------------------------------------------------- */

static void exclusive(struct pair *p)
{
    int one = epoll_create1(0), two = epoll_create1(0);
    CHECK_EQ(epoll_add(one, p->self.fd, EPOLLIN | EPOLLEXCLUSIVE, 1), 0);
    CHECK_EQ(epoll_add(two, p->self.fd, EPOLLIN | EPOLLEXCLUSIVE, 2), 0);
    CHECK_ERRNO(epoll_mod(one, p->self.fd, EPOLLIN, 1), EINVAL);
    CHECK_ERRNO(epoll_mod(one, p->self.fd, EPOLLIN | EPOLLEXCLUSIVE, 1), EINVAL);
    CHECK_EQ(epoll_ctl(two, EPOLL_CTL_DEL, p->self.fd, NULL), 0);
    CHECK_ERRNO(epoll_add(two, p->self.fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 2), EINVAL);
    CHECK_EQ(epoll_add(two, p->self.fd, EPOLLIN | EPOLLEXCLUSIVE, 2), 0);
    arrive(p, 1);
    /* At least one of the two is told; level triggered, the one that asks sees it. */
    uint32_t first = one_event(one, 1, BRIEF_MS), second = one_event(two, 2, BRIEF_MS);
    CHECK_EQ(first | second, EPOLLIN);
    close(one), close(two);
}

/* ---- sets of sets ---------------------------------------------------------------- */

static void nested(struct pair *p)
{
    int inner = epoll_create1(0), outer = epoll_create1(0);
    CHECK_EQ(epoll_add(inner, p->self.fd, EPOLLIN, 1), 0);
    CHECK_EQ(epoll_add(outer, inner, EPOLLIN, 2), 0);
    CHECK_SILENT(outer);
    CHECK_EQ(poll_once(inner, POLLIN, 0), 0);
    arrive(p, 10);
    CHECK_EQ(one_event(outer, 2, HANG_MS), EPOLLIN);
    CHECK_EQ(poll_once(outer, POLLIN, 0), POLLIN);
    CHECK_EQ(poll_once(inner, POLLIN, 0), POLLIN);
    CHECK_EQ(one_event(inner, 1, HANG_MS), EPOLLIN);
    do_recv(&p->self, 10, 0);
    CHECK_SILENT(inner);
    CHECK_SILENT(outer);
    CHECK_EQ(poll_once(inner, POLLIN, 0), 0);
    CHECK_ERRNO(epoll_add(inner, outer, EPOLLIN, 3), ELOOP);
    CHECK_ERRNO(epoll_add(inner, inner, EPOLLIN, 3), EINVAL);
    close(inner), close(outer);
}

/* Asleep on the outer one. */
static void nested_wakes(struct pair *p)
{
    int inner = epoll_create1(0), outer = epoll_create1(0);
    CHECK_EQ(epoll_add(inner, p->self.fd, EPOLLIN, 1), 0);
    CHECK_EQ(epoll_add(outer, inner, EPOLLIN, 2), 0);
    for (int i = 0; i < 3; i++) {
        peer_start(p, 15, do_send, 1, 0);
        CHECK_EQ(one_event(outer, 2, HANG_MS), EPOLLIN);
        CHECK_EQ(one_event(inner, 1, 0), EPOLLIN);
        peer_finish(p);
        do_recv(&p->self, 1, 0);
    }
    close(inner), close(outer);
}

/* What the kernel has refused, or has let go of again, is no circle. */
static void nested_the_other_way_round(struct pair *p)
{
    int a = epoll_create1(0), b = epoll_create1(0);
    struct epoll_event event;
    CHECK_EQ(epoll_add(a, b, EPOLLIN, 2), 0);
    CHECK_ERRNO(epoll_add(b, a, EPOLLIN, 3), ELOOP);
    CHECK_ERRNO(epoll_add(a, a, EPOLLIN, 3), EINVAL);
    CHECK_EQ(epoll_ctl(a, EPOLL_CTL_DEL, b, &event), 0);
    CHECK_ERRNO(epoll_ctl(a, EPOLL_CTL_DEL, b, &event), ENOENT);
    CHECK_EQ(epoll_add(b, a, EPOLLIN, 4), 0);
    CHECK_SILENT(b);
    CHECK_EQ(poll_once(b, POLLIN, 0), 0);
    CHECK_EQ(epoll_add(a, p->self.fd, EPOLLIN, 1), 0);
    arrive(p, 10);
    CHECK_EQ(one_event(b, 4, HANG_MS), EPOLLIN);
    CHECK_EQ(poll_once(b, POLLIN, 0), POLLIN);
    do_recv(&p->self, 10, 0);
    CHECK_SILENT(b);
    close(a), close(b);
}

/* Linux takes five sets in a row, and tells through all of them. */
static void nested_deeply(struct pair *p)
{
    enum { DEPTH = 5 };
    int sets[DEPTH + 1];
    for (int i = 0; i <= DEPTH; i++)
        sets[i] = epoll_create1(0);
    CHECK_EQ(epoll_add(sets[0], p->self.fd, EPOLLIN, 1), 0);
    for (int i = 1; i < DEPTH; i++)
        CHECK_EQ(epoll_add(sets[i], sets[i - 1], EPOLLIN, 2), 0);
    CHECK_ERRNO(epoll_add(sets[DEPTH], sets[DEPTH - 1], EPOLLIN, 2), ELOOP);
    CHECK_SILENT(sets[DEPTH - 1]);
    arrive(p, 10);
    CHECK_EQ(one_event(sets[DEPTH - 1], 2, HANG_MS), EPOLLIN);
    CHECK_SILENT(sets[DEPTH]);
    do_recv(&p->self, 10, 0);
    CHECK_SILENT(sets[DEPTH - 1]);
    for (int i = 0; i <= DEPTH; i++)
        close(sets[i]);
}

/* However many there were before, and under whatever number and data the live one stands. */
static void nested_again_and_again(struct pair *p)
{
    int live = epoll_create1(0), outer = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.u64 = 7}};
    CHECK_EQ(epoll_add(live, p->self.fd, EPOLLIN, 1), 0);
    for (int i = 0; i < 40; i++) {
        int passing = epoll_create1(0);
        CHECK_EQ(epoll_add(outer, passing, EPOLLIN, 100 + i), 0);
        if (i % 2)
            CHECK_EQ(epoll_ctl(outer, EPOLL_CTL_DEL, passing, &event), 0);
        close(passing);
    }
    CHECK_EQ(epoll_add(outer, live, EPOLLIN, 2), 0);
    CHECK_SILENT(outer);
    arrive(p, 1);
    CHECK_EQ(one_event(outer, 2, HANG_MS), EPOLLIN);
    CHECK_EQ(poll_once(outer, POLLIN, 0), POLLIN);
    CHECK_EQ(epoll_ctl(outer, EPOLL_CTL_MOD, live, &event), 0);
    CHECK_EQ(one_event(outer, 7, HANG_MS), EPOLLIN);
    do_recv(&p->self, 1, 0);
    CHECK_SILENT(outer);
    CHECK_EQ(epoll_ctl(outer, EPOLL_CTL_DEL, live, &event), 0);
    arrive(p, 1);
    CHECK_SILENT(outer);
    CHECK_EQ(one_event(live, 1, HANG_MS), EPOLLIN);
    do_recv(&p->self, 1, 0);
    close(live), close(outer);
}

/* A pointer that leads nowhere is the kernel's to refuse. */
static void nested_without_an_event(struct pair *p)
{
    (void)p;
    int inner = epoll_create1(0), outer = epoll_create1(0);
    void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_ERRNO(epoll_ctl(outer, EPOLL_CTL_ADD, inner, NULL), EFAULT);
    CHECK_ERRNO(epoll_ctl(outer, EPOLL_CTL_ADD, inner, nowhere), EFAULT);
    CHECK_ERRNO(epoll_ctl(outer, EPOLL_CTL_MOD, inner, nowhere), EFAULT);
    CHECK_EQ(epoll_add(outer, inner, EPOLLIN, 1), 0);
    CHECK_EQ(epoll_ctl(outer, EPOLL_CTL_DEL, inner, nowhere), 0);
    munmap(nowhere, 4096);
    close(inner), close(outer);
}

/* The set itself is polled, selected, by somebody who sleeps. */
static void set_is_polled(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN, 1), 0);
    CHECK_EQ(poll_once(set, POLLIN, 0), 0);
    peer_start(p, 15, do_send, 1, 0);
    CHECK_EQ(poll_once(set, POLLIN, HANG_MS), POLLIN);
    peer_finish(p);
    CHECK_EQ(one_event(set, 1, 0), EPOLLIN);
    do_recv(&p->self, 1, 0);
    CHECK_EQ(poll_once(set, POLLIN, 0), 0);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(set, &in);
    peer_start(p, 15, do_send, 1, 0);
    CHECK_EQ(select(set + 1, &in, NULL, NULL, &(struct timeval){60, 0}), 1);
    peer_finish(p);
    CHECK_EQ(one_event(set, 1, 0), EPOLLIN);
    close(set);
}

/* One descriptor in two sets: both tell, each by its own rules. */
static void in_two_sets(struct pair *p)
{
    int level = epoll_create1(0), edge = epoll_create1(0);
    CHECK_EQ(epoll_add(level, p->self.fd, EPOLLIN, 1), 0);
    CHECK_EQ(epoll_add(edge, p->self.fd, EPOLLIN | EPOLLET, 2), 0);
    for (int i = 0; i < 3; i++) {
        arrive(p, 2);
        CHECK_EQ(one_event(edge, 2, HANG_MS), EPOLLIN);
        CHECK_SILENT(edge);
        CHECK_EQ(one_event(level, 1, HANG_MS), EPOLLIN);
        CHECK_EQ(one_event(level, 1, HANG_MS), EPOLLIN);
        CHECK_EQ(do_recv(&p->self, 2, 0), 2);
        CHECK_SILENT(level);
        CHECK_SILENT(edge);
    }
    close(level), close(edge);
}

/* ---- life of a registration ------------------------------------------------------ */

static void errors(struct pair *p)
{
    int set = epoll_create1(0), fd = p->self.fd;
    struct epoll_event event = {.events = EPOLLIN};
    CHECK_ERRNO(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), ENOENT);
    CHECK_ERRNO(epoll_ctl(set, EPOLL_CTL_DEL, fd, &event), ENOENT);
    CHECK_EQ(epoll_add(set, fd, EPOLLIN, 1), 0);
    CHECK_ERRNO(epoll_add(set, fd, EPOLLIN, 1), EEXIST);
    CHECK_ERRNO(epoll_ctl(set, 99, fd, &event), EINVAL);
    CHECK_ERRNO(epoll_ctl(fd, EPOLL_CTL_ADD, fd, &event), EINVAL);
    CHECK_ERRNO(epoll_ctl(set, EPOLL_CTL_ADD, -1, &event), EBADF);
    CHECK_ERRNO(epoll_ctl(-1, EPOLL_CTL_ADD, fd, &event), EBADF);
    CHECK_ERRNO(epoll_wait(set, &event, 0, 0), EINVAL);
    volatile int negative = -1;
    CHECK_ERRNO(epoll_wait(set, &event, negative, 0), EINVAL);
    CHECK_ERRNO(epoll_wait(fd, &event, 1, 0), EINVAL);
    CHECK_ERRNO(epoll_wait(-1, &event, 1, 0), EBADF);
    int file = open("/proc/self/exe", O_RDONLY);
    CHECK_ERRNO(epoll_add(set, file, EPOLLIN, 1), EPERM);
    close(file);
    CHECK_ERRNO(epoll_create1(12345), EINVAL);
    if (IS_GLIBC)
        CHECK_ERRNO(epoll_create(0), EINVAL);
    close(set);
}

static void del_stops(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN, 1), 0);
    arrive(p, 1);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN);
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_DEL, p->self.fd, NULL), 0);
    CHECK_SILENT(set);
    arrive(p, 1);
    CHECK_SILENT(set);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLET, 2), 0);
    CHECK_EQ(one_event(set, 2, HANG_MS), EPOLLIN);
    close(set);
}

/* close() of the last descriptor takes it out of all sets. */
static void close_removes(struct pair *p)
{
    int set = epoll_create1(0), fd = p->self.fd;
    CHECK_EQ(epoll_add(set, fd, EPOLLIN, 1), 0);
    arrive(p, 1);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN);
    self_close(p);
    CHECK_SILENT(set);
    CHECK_ERRNO(epoll_mod(set, fd, EPOLLIN, 1), EBADF);
    close(set);
}

/* … but a duplicate keeps the registration alive under the old number (epoll(7),
 * question 6). */
static void duplicate_keeps_it(struct pair *p)
{
    int set = epoll_create1(0), twin = dup(p->self.fd);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN, 1), 0);
    CHECK_EQ(epoll_add(set, twin, EPOLLIN, 2), 0); /* another number, another entry */
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_DEL, twin, NULL), 0);
    close(p->self.fd);
    p->self.fd = twin;
    arrive(p, 1);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN);
    CHECK_EQ(do_recv(&p->self, 1, 0), 1);
    CHECK_SILENT(set);
    self_close(p);
    CHECK_SILENT(set);
    close(set);
}

/* Opens another connection under a number, which closes what was there. */
static void take_number(struct pair *other, int fd, bool warm)
{
    pair_open(other, (struct setting){.place = SAME_THREAD, .warm = warm});
    CHECK_EQ(dup2(other->self.fd, fd), fd);
    close(other->self.fd);
    other->self.fd = fd;
}

/* A registration belongs to a number and what was open there. */
static void registration_stays_behind(struct pair *p)
{
    int set = epoll_create1(0), fd = p->self.fd, twin = dup(fd);
    CHECK_EQ(epoll_add(set, fd, EPOLLIN | EPOLLET, 1), 0);
    struct pair other;
    take_number(&other, fd, p->setting.warm);
    p->self.fd = twin;
    for (int i = 0; i < 20; i++) { /* may move by now */
        peer_do(p, do_send, 1, 0);
        CHECK_EQ(do_recv(&p->self, 1, 0), 1);
        CHECK_EQ(do_send(&p->self, 1, 0), 1);
        CHECK_EQ(peer_do(p, do_recv, 1, 0), 1);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 2};
    CHECK_ERRNO(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), ENOENT);
    arrive(p, 1);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN);
    self_close(p);
    pair_close(&other);
    close(set);
}

/* The end is found through the other number, too, whatever the first one is by now. */
static void end_after_number_is_reused(struct pair *p)
{
    int set = epoll_create1(0), fd = p->self.fd, twin = dup(fd);
    CHECK_EQ(epoll_add(set, fd, EPOLLIN | EPOLLRDHUP, 1), 0);
    CHECK_SILENT(set);
    struct pair other;
    take_number(&other, fd, p->setting.warm);
    p->self.fd = twin;
    do_shutdown(&p->self, SHUT_WR, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_EQ(one_event(set, 1, HANG_MS), EPOLLIN | EPOLLRDHUP | EPOLLHUP);
    self_close(p);
    self_close(&other);
    close(set);
}

/* The number is used again for another connection: a new registration, no trace of
 * the old one. */
static void number_reused(struct pair *p)
{
    int set = epoll_create1(0), fd = p->self.fd;
    CHECK_EQ(epoll_add(set, fd, EPOLLIN | EPOLLET, 1), 0);
    arrive(p, 1);
    struct pair other;
    take_number(&other, fd, p->setting.warm); /* closes the first connection */
    p->self.fd = -1;
    CHECK_SILENT(set);
    CHECK_EQ(epoll_add(set, fd, EPOLLIN, 2), 0);
    CHECK_SILENT(set);
    arrive(&other, 1);
    CHECK_EQ(one_event(set, 2, HANG_MS), EPOLLIN);
    pair_close(&other);
    close(set);
}

/* Registered before connecting, as every event loop does. */
static void add_before_connect(struct pair *p)
{
    (void)p;
    for (int edge = 0; edge < 2; edge++) {
        struct sockaddr_storage address;
        socklen_t len;
        int listener = make_listener(V4, &address, &len), set = epoll_create1(0);
        int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        uint32_t trigger = edge ? EPOLLET : 0;
        CHECK_EQ(epoll_add(set, client, EPOLLIN | EPOLLOUT | EPOLLRDHUP | trigger, 7), 0);
        CHECK_EQ(one_event(set, 7, 0), EPOLLOUT | EPOLLHUP);
        CHECK_ERRNO(connect(client, (struct sockaddr *)&address, len), EINPROGRESS);
        uint64_t deadline = now_ms() + HANG_MS;
        uint32_t got = 0;
        while (got != EPOLLOUT && now_ms() < deadline)
            got = one_event(set, 7, 1000);
        CHECK_EQ(got, EPOLLOUT);
        int server = accept(listener, NULL, NULL);
        struct end left = {.fd = client}, right = {.fd = server};
        for (int i = 0; i < 12; i++) {
            CHECK_EQ(do_send(&right, 10, 0), 10);
            await_readable(client, 10);
            CHECK_EQ(one_event(set, 7, HANG_MS), EPOLLIN | EPOLLOUT);
            CHECK_EQ(do_recv(&left, 10, 0), 10);
            CHECK_EQ(do_send(&left, 10, 0), 10);
            CHECK_EQ(do_recv(&right, 10, 0), 10);
            /* Acknowledgements may report OUT again on some paths; IN they may not. */
            CHECK_EQ(one_event(set, 7, 0) & EPOLLIN, 0);
        }
        close(server), close(client), close(listener), close(set);
    }
}

/* ---- several descriptors --------------------------------------------------------- */

static void mixed_kinds(struct pair *p)
{
    int set = epoll_create1(0), event = eventfd(0, EFD_NONBLOCK);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN, 1), 0);
    CHECK_EQ(epoll_add(set, event, EPOLLIN, 2), 0);
    CHECK_EQ(epoll_add(set, timer, EPOLLIN, 3), 0);
    CHECK_SILENT(set);
    uint64_t one = 1;
    CHECK_EQ(write(event, &one, sizeof one), sizeof one);
    CHECK_EQ(one_event(set, 2, HANG_MS), EPOLLIN);
    arrive(p, 1);
    timerfd_settime(timer, 0, &(struct itimerspec){.it_value.tv_nsec = 1000000}, NULL);
    sleep_ms(3);
    /* All three in one call: none may starve behind another. */
    struct epoll_event events[4];
    CHECK_EQ(epoll_wait(set, events, 4, HANG_MS), 3);
    uint64_t seen = 0;
    for (int i = 0; i < 3; i++)
        seen |= 1u << events[i].data.u64;
    CHECK_EQ(seen, 0xe);
    /* One at a time they take turns, so that each is seen within a few calls. */
    seen = 0;
    for (int i = 0; i < 12; i++) {
        CHECK_EQ(epoll_wait(set, events, 1, HANG_MS), 1);
        seen |= 1u << events[0].data.u64;
    }
    CHECK_EQ(seen, 0xe);
    CHECK_EQ(read(event, &one, sizeof one), sizeof one);
    CHECK_EQ(read(timer, &one, sizeof one), sizeof one);
    CHECK_EQ(one_event(set, 1, 0), EPOLLIN);
    close(set), close(event), close(timer);
}

/* A busy socket does not hide a quiet one, nor the reverse. */
static void busy_and_quiet(struct pair *p)
{
    (void)p;
    enum { COUNT = 50 };
    static struct pair pairs[COUNT];
    int set = epoll_create1(0);
    for (int i = 0; i < COUNT; i++) {
        struct setting setting = {.place = SAME_THREAD, .warm = i % 3, .client = i % 2};
        pair_open(&pairs[i], setting);
        epoll_add(set, pairs[i].self.fd, EPOLLIN, i);
    }
    for (int round = 0; round < 3; round++) {
        for (int i = round; i < COUNT; i += 5) {
            peer_do(&pairs[i], do_send, 1, 0);
            await_readable(pairs[i].self.fd, 1);
        }
        bool seen[COUNT] = {false};
        int distinct = 0;
        for (int call = 0; call < 100 && distinct < 10; call++) {
            struct epoll_event events[3];
            int n = epoll_wait(set, events, 3, HANG_MS);
            CHECK_BETWEEN(n, 1, 3);
            for (int i = 0; i < n; i++) {
                CHECK_EQ(events[i].data.u64 % 5, round);
                distinct += !seen[events[i].data.u64];
                seen[events[i].data.u64] = true;
            }
        }
        CHECK_EQ(distinct, 10);
        for (int i = round; i < COUNT; i += 5)
            do_recv(&pairs[i].self, 1, 0);
        CHECK_SILENT(set);
    }
    for (int i = 0; i < COUNT; i++)
        pair_close(&pairs[i]);
    close(set);
}

/* What became ready first is reported first, whichever descriptor is older. Of connections of which
 * some have moved and some are on TCP that is not promised (docs/limitations.md). */
static void in_the_order_of_arrival(struct pair *p)
{
    (void)p;
    enum { COUNT = 30, STEP = 7 }; /* without a common divisor: each has its turn */
    static struct pair pairs[COUNT];
    int set = epoll_create1(0);
    for (int i = 0; i < COUNT; i++) {
        pair_open(&pairs[i], (struct setting){.place = SAME_THREAD, .warm = true});
        epoll_add(set, pairs[i].self.fd, EPOLLIN, i);
    }
    CHECK_SILENT(set);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            struct pair *next = &pairs[(round + i * STEP) % COUNT];
            peer_do(next, do_send, 1, 0);
            await_readable(next->self.fd, 1);
        }
        struct epoll_event events[COUNT];
        CHECK_EQ(epoll_wait(set, events, COUNT, HANG_MS), COUNT);
        for (int i = 0; i < COUNT; i++) {
            CHECK_EQ(events[i].data.u64, (round + i * STEP) % COUNT);
            do_recv(&pairs[i].self, 1, 0);
        }
        CHECK_SILENT(set);
    }
    for (int i = 0; i < COUNT; i++)
        pair_close(&pairs[i]);
    close(set);
}

/* ---- sleeping -------------------------------------------------------------------- */

static void data_wakes(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLRDHUP, WORD), 0);
    for (int i = 0; i < 3; i++) {
        peer_start(p, 15, do_send, 1, 0);
        CHECK_EQ(one_event(set, WORD, i ? HANG_MS : -1), EPOLLIN);
        peer_finish(p);
        do_recv(&p->self, 1, 0);
    }
    peer_start(p, 15, do_close, 0, 0);
    CHECK_EQ(one_event(set, WORD, HANG_MS), EPOLLIN | EPOLLRDHUP);
    peer_finish(p);
    close(set);
}

struct sleeper {
    pthread_t thread;
    volatile pid_t id; /* 0: not yet at its call */
    int set;
    uint32_t events;
};

static void *sleep_in_set(void *argument)
{
    struct sleeper *sleeper = argument;
    sleeper->id = thread_id();
    sleeper->events = one_event(sleeper->set, 1, HANG_MS);
    return NULL;
}

static void start_sleeper(struct sleeper *sleeper)
{
    CHECK_EQ(pthread_create(&sleeper->thread, NULL, sleep_in_set, sleeper), 0);
    while (sleeper->id == 0)
        sleep_ms(1);
    await_asleep(sleeper->id);
}

/* A registration made by one thread wakes another that sleeps already. */
static void add_wakes_a_sleeper(struct pair *p)
{
    struct sleeper sleeper = {.set = epoll_create1(0)};
    arrive(p, 1);
    start_sleeper(&sleeper);
    CHECK_EQ(epoll_add(sleeper.set, p->self.fd, EPOLLIN, 1), 0);
    pthread_join(sleeper.thread, NULL);
    CHECK_EQ(sleeper.events, EPOLLIN);
    close(sleeper.set);
}

static void mod_wakes_a_sleeper(struct pair *p)
{
    struct sleeper sleeper = {.set = epoll_create1(0)};
    CHECK_EQ(epoll_add(sleeper.set, p->self.fd, EPOLLIN, 1), 0);
    start_sleeper(&sleeper);
    CHECK_EQ(epoll_mod(sleeper.set, p->self.fd, EPOLLOUT, 1), 0);
    pthread_join(sleeper.thread, NULL);
    CHECK_EQ(sleeper.events, EPOLLOUT);
    close(sleeper.set);
}

static void add_while_asleep_then_data(struct pair *p)
{
    struct sleeper sleeper = {.set = epoll_create1(0)};
    start_sleeper(&sleeper);
    CHECK_EQ(epoll_add(sleeper.set, p->self.fd, EPOLLIN | EPOLLET, 1), 0);
    sleep_ms(10);
    arrive(p, 1);
    pthread_join(sleeper.thread, NULL);
    CHECK_EQ(sleeper.events, EPOLLIN);
    close(sleeper.set);
}

/* One-shot and shared by threads: exactly one of them gets each event. */
static int workers_set;
static int worker_events;
static volatile bool workers_stop;

static void *worker(void *argument)
{
    (void)argument;
    struct epoll_event event;
    while (!workers_stop)
        if (epoll_wait(workers_set, &event, 1, 40) == 1)
            __atomic_add_fetch(&worker_events, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void shared_by_threads(struct pair *p)
{
    pthread_t threads[3];
    workers_set = epoll_create1(0);
    worker_events = 0;
    workers_stop = false;
    CHECK_EQ(epoll_add(workers_set, p->self.fd, EPOLLIN | EPOLLONESHOT, 1), 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, worker, NULL), 0);
    enum { EVENTS = 40 };
    for (int i = 1; i <= EVENTS; i++) {
        arrive(p, 1);
        uint64_t deadline = now_ms() + HANG_MS;
        while (__atomic_load_n(&worker_events, __ATOMIC_SEQ_CST) < i && now_ms() < deadline)
            sleep_ms(1);
        CHECK_EQ(worker_events, i);
        CHECK_EQ(do_recv(&p->self, 1, 0), 1);
        CHECK_EQ(do_send(&p->self, 1, 0), 1);
        CHECK_EQ(peer_do(p, do_recv, 1, 0), 1);
        if (i < EVENTS)
            CHECK_EQ(epoll_mod(workers_set, p->self.fd, EPOLLIN | EPOLLONESHOT, 1), 0);
    }
    sleep_ms(5); /* for a second report, which must not come */
    workers_stop = true;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(worker_events, EVENTS);
    close(workers_set);
}

static void timeouts(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN, 1), 0);
    struct epoll_event event;
    uint64_t start = now_ms();
    CHECK_EQ(epoll_wait(set, &event, 1, 30), 0);
    CHECK_BETWEEN(now_ms() - start, 29, HANG_MS);
    start = now_ms();
    struct timespec wait = {0, 30500000};
    CHECK_EQ(epoll_pwait2(set, &event, 1, &wait, NULL), 0);
    CHECK_BETWEEN(now_ms() - start, 30, HANG_MS);
    wait = (struct timespec){0, 0};
    CHECK_EQ(epoll_pwait2(set, &event, 1, &wait, NULL), 0);
    arrive(p, 1);
    CHECK_EQ(epoll_pwait2(set, &event, 1, NULL, NULL), 1); /* NULL: for ever */
    CHECK_EQ(event.data.u64, 1);
    wait = (struct timespec){0, 1000000000};
    CHECK_ERRNO(epoll_pwait2(set, &event, 1, &wait, NULL), EINVAL);
    close(set);
}

static volatile sig_atomic_t signals;

static void on_signal(int signal)
{
    (void)signal;
    signals++;
}

/* The mask holds exactly for the sleep: a signal that waits blocked ends it. */
static void mask_is_atomic(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN, 1), 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old_action;
    sigaction(SIGUSR1, &action, &old_action);
    sigset_t blocked, old, now;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, &old);
    signals = 0;
    struct epoll_event event;
    pthread_kill(pthread_self(), SIGUSR1);
    CHECK_ERRNO(epoll_pwait(set, &event, 1, HANG_MS, &old), EINTR);
    CHECK_EQ(signals, 1);
    pthread_kill(pthread_self(), SIGUSR1);
    struct timespec wait = {HANG_MS / 1000, 0};
    CHECK_ERRNO(epoll_pwait2(set, &event, 1, &wait, &old), EINTR);
    CHECK_EQ(signals, 2);
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    CHECK_EQ(sigismember(&now, SIGUSR1), 1);
    arrive(p, 1);
    pthread_kill(pthread_self(), SIGUSR1);
    CHECK_EQ(epoll_pwait(set, &event, 1, HANG_MS, &blocked), 1);
    CHECK_EQ(signals, 2);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    CHECK_EQ(signals, 3);
    sigaction(SIGUSR1, &old_action, NULL);
    close(set);
}

/* A duplicate of the set is the same set. */
static void duplicate_of_the_set(struct pair *p)
{
    int set = epoll_create1(0), twin = dup(set);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLET, 1), 0);
    arrive(p, 1);
    CHECK_EQ(one_event(twin, 1, HANG_MS), EPOLLIN);
    CHECK_SILENT(set);
    close(set);
    arrive(p, 1);
    CHECK_EQ(one_event(twin, 1, HANG_MS), EPOLLIN);
    close(twin);
}

static const struct test tests[] = {
    {"level", level, FAMILIES},
    {"what_is_reported_unasked", what_is_reported_unasked, 0},
    {"reset_is_reported_unasked", reset_is_reported_unasked, 0},
    {"edge_in", edge_in, FAMILIES | COUNTS_EDGES},
    {"edge_after_add_and_mod", edge_after_add_and_mod, 0},
    {"edge_in_and_out", edge_in_and_out, 0},
    {"edge_out", edge_out, ACTIVE_PEER | SLOW},
    {"edge_by_own_shutdown", edge_by_own_shutdown, COUNTS_EDGES},
    {"edge_out_after_a_part", edge_out_after_a_part, ACTIVE_PEER},
    {"edge_bulk_out", edge_bulk_out, ACTIVE_PEER | FAMILIES},
    {"edge_out_wakes", edge_out_wakes, ACTIVE_PEER | SLOW},
    {"edge_at_the_end", edge_at_the_end, 0},
    {"edge_bulk", edge_bulk, ACTIVE_PEER},
    {"edge_ping_pong", edge_ping_pong, ACTIVE_PEER},
    {"one_shot", one_shot, 0},
    {"one_shot_through_a_move", one_shot_through_a_move, 0},
    {"exclusive", exclusive, 0},
    {"nested", nested, 0},
    {"nested_the_other_way_round", nested_the_other_way_round, 0},
    {"nested_deeply", nested_deeply, 0},
    {"nested_again_and_again", nested_again_and_again, 0},
    {"nested_without_an_event", nested_without_an_event, 0},
    {"nested_wakes", nested_wakes, ACTIVE_PEER | SLOW},
    {"set_is_polled", set_is_polled, ACTIVE_PEER | SLOW},
    {"in_two_sets", in_two_sets, 0},
    {"errors", errors, 0},
    {"del_stops", del_stops, 0},
    {"close_removes", close_removes, 0},
    {"duplicate_keeps_it", duplicate_keeps_it, 0},
    {"number_reused", number_reused, 0},
    {"registration_stays_behind", registration_stays_behind, 0},
    {"end_after_number_is_reused", end_after_number_is_reused, 0},
    {"add_before_connect", add_before_connect, ALONE},
    {"mixed_kinds", mixed_kinds, 0},
    {"busy_and_quiet", busy_and_quiet, ALONE},
    {"in_the_order_of_arrival", in_the_order_of_arrival, ALONE | COUNTS_EDGES},
    {"data_wakes", data_wakes, ACTIVE_PEER | SLOW},
    {"add_wakes_a_sleeper", add_wakes_a_sleeper, SLOW},
    {"mod_wakes_a_sleeper", mod_wakes_a_sleeper, SLOW},
    {"add_while_asleep_then_data", add_while_asleep_then_data, SLOW},
    {"shared_by_threads", shared_by_threads, SLOW | COUNTS_EDGES},
    {"timeouts", timeouts, SLOW},
    {"mask_is_atomic", mask_is_atomic, 0},
    {"duplicate_of_the_set", duplicate_of_the_set, 0},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
