/*
 * shutdown.c: the end of one or both directions, in every order, with and without
 * data on the way. Masks are for interest IN|PRI|OUT|RDHUP.
 */
#include "support.h"

static unsigned char buffer[1000];

/* ---- the peer ends its direction ------------------------------------------------- */

static void peer_wr(struct pair *p)
{
    CHECK_EQ(peer_do(p, do_shutdown, SHUT_WR, 0), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(recv(p->self.fd, buffer, 10, MSG_DONTWAIT), 0); /* for ever */
    CHECK_EQ(read(p->self.fd, buffer, 10), 0);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
    /* Our direction is as good as before. */
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(do_send(&p->self, 100, 0), 100);
        CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
    }
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
}

static void peer_wr_with_data_queued(struct pair *p)
{
    peer_do(p, do_send, 1000, 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(do_recv(&p->self, 400, 0), 400);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(do_recv(&p->self, 600, 0), 600);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
}

/* The end wakes a sleeping reader and a sleeping poll. */
static void peer_wr_wakes(struct pair *p)
{
    peer_start(p, 20, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(poll_once(p->self.fd, POLLIN | POLLRDHUP, HANG_MS), POLLIN | POLLRDHUP);
    CHECK_EQ(peer_finish(p), 0);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
}

static void peer_wr_wakes_recv(struct pair *p)
{
    peer_start(p, 20, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(peer_finish(p), 0);
}

/* ---- we end ours ----------------------------------------------------------------- */

static void self_wr(struct pair *p)
{
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    CHECK_MASK(p->self.fd, POLLOUT);
    int before = sigpipes();
    CHECK_ERRNO(send(p->self.fd, "x", 1, 0), EPIPE);
    CHECK_EQ(sigpipes() - before, 1);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_ERRNO(send(p->self.fd, "x", 0, MSG_NOSIGNAL), EPIPE); /* even nothing */
    struct iovec nothing[2] = {{buffer, 0}, {buffer, 0}};
    CHECK_EQ(writev(p->self.fd, nothing, 2), 0); /* but this never gets to the socket */
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0); /* twice is harmless */
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    /* The peer still talks to us. */
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(peer_do(p, do_send, 100, 0), 100);
        CHECK_EQ(do_recv(&p->self, 100, 0), 100);
    }
    peer_do(p, do_send, 10, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, MSG_DONTWAIT), EAGAIN);
}

/* What was sent before arrives before the end. */
static void self_wr_after_data(struct pair *p)
{
    do_send(&p->self, 5000, 0);
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    CHECK_EQ(peer_do(p, do_recv, 5000, 0), 5000);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* The classic request: send, half-close, read the answer to its end. */
static void half_close_request(struct pair *p)
{
    do_send(&p->self, 3000, 0);
    shutdown(p->self.fd, SHUT_WR);
    peer_do(p, do_recv, 3000, 0);
    peer_do(p, do_recv_eof, 0, 0);
    peer_do(p, do_send, 9000, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_EQ(do_recv(&p->self, 9000, 0), 9000);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
}

/* ---- reading is over ------------------------------------------------------------- */

/* After SHUT_RD reads do not wait: they give what is or comes in, else 0. Nothing
 * is sent to the peer, whose sends go on. */
static void self_rd(struct pair *p)
{
    CHECK_EQ(shutdown(p->self.fd, SHUT_RD), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(recv(p->self.fd, buffer, 0, 0), 0);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(do_send(&p->self, 10, 0), 10);
    CHECK_EQ(peer_do(p, do_recv, 10, 0), 10);
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLOUT | POLLRDHUP, 0), POLLOUT);
    CHECK_EQ(peer_do(p, do_send, 50, 0), 50);
    await_readable(p->self.fd, 50);
    CHECK_EQ(do_recv(&p->self, 50, 0), 50);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(shutdown(p->self.fd, SHUT_RD), 0);
}

static void self_rd_with_data_queued(struct pair *p)
{
    peer_do(p, do_send, 100, 0);
    await_readable(p->self.fd, 100);
    CHECK_EQ(shutdown(p->self.fd, SHUT_RD), 0);
    CHECK_EQ(do_recv(&p->self, 100, 0), 100);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(recv(p->self.fd, buffer, 10, MSG_WAITALL), 0);
}

static void self_rd_then_wr(struct pair *p)
{
    shutdown(p->self.fd, SHUT_RD);
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

static void self_rdwr(struct pair *p)
{
    do_send(&p->self, 100, 0);
    CHECK_EQ(shutdown(p->self.fd, SHUT_RDWR), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    /* The peer sees the end of our direction only. */
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP);
}

/* Late data for an end that has shut down both directions is not wanted by anybody:
 * the kernel answers it with a reset, and both ends learn of it. (With SHUT_RD
 * alone it is still delivered, see self_rd.) */
static void late_data_after_rdwr(struct pair *p)
{
    CHECK_EQ(shutdown(p->self.fd, SHUT_RDWR), 0);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    CHECK_EQ(peer_do(p, do_send_once, 30, MSG_NOSIGNAL), 30);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), ECONNRESET);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLOUT | POLLRDHUP, HANG_MS),
             POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
    CHECK_EQ(peer_do(p, do_send_once, 1, MSG_NOSIGNAL), -1);
    CHECK_EQ(errno, EPIPE);
}

/* ---- both ends ------------------------------------------------------------------- */

static void both_wr_ours_first(struct pair *p)
{
    shutdown(p->self.fd, SHUT_WR);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    CHECK_EQ(peer_do(p, do_shutdown, SHUT_WR, 0), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
}

static void both_wr_peer_first(struct pair *p)
{
    CHECK_EQ(peer_do(p, do_shutdown, SHUT_WR, 0), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLOUT | POLLRDHUP, 100),
             POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
}

/* Both ends gone, data still on the way in both directions: all of it arrives. */
static void both_wr_with_data_queued(struct pair *p)
{
    do_send(&p->self, 700, 0);
    peer_do(p, do_send, 900, 0);
    shutdown(p->self.fd, SHUT_WR);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    CHECK_EQ(do_recv(&p->self, 900, 0), 900);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
    CHECK_EQ(peer_do(p, do_recv, 700, 0), 700);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

static void peer_rdwr(struct pair *p)
{
    CHECK_EQ(peer_do(p, do_shutdown, SHUT_RDWR, 0), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0);
    CHECK_EQ(shutdown(p->self.fd, SHUT_RDWR), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
}

/* Both directions end in one change: a thread that has found the first one sends in vain. */
static void peer_rdwr_refuses_at_once(struct pair *p)
{
    ssize_t n;
    peer_start(p, 0, do_shutdown, SHUT_RDWR, 0);
    do {
        n = recv(p->self.fd, buffer, 10, MSG_DONTWAIT);
    } while (n < 0 && errno == EAGAIN);
    CHECK_EQ(n, 0);
    CHECK_EQ(send(p->self.fd, "x", 1, MSG_NOSIGNAL), 1); /* answered with a reset */
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(peer_finish(p), 0);
}

/* SHUT_RD at the peer tells us nothing: we may send until it has enough. */
static void peer_rd(struct pair *p)
{
    CHECK_EQ(peer_do(p, do_shutdown, SHUT_RD, 0), 0);
    CHECK_MASK(p->self.fd, POLLOUT);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(do_send(&p->self, 100, 0), 100);
        CHECK_EQ(peer_do(p, do_recv, 100, MSG_WAITALL), 100);
    }
}

static void nonsense(struct pair *p)
{
    CHECK_ERRNO(shutdown(p->self.fd, 3), EINVAL);
    CHECK_ERRNO(shutdown(p->self.fd, -1), EINVAL);
    CHECK_ERRNO(shutdown(-1, SHUT_WR), EBADF);
    CHECK_MASK(p->self.fd, POLLOUT);
}

/* After both directions have ended the connection is over: no third shutdown. */
static void after_the_end(struct pair *p)
{
    shutdown(p->self.fd, SHUT_WR);
    peer_do(p, do_recv_eof, 0, 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    /* We ended first, so ours waits in TIME_WAIT … */
    CHECK_ERRNO(shutdown(p->self.fd, SHUT_RDWR), ENOTCONN);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
    /* … and the peer's is closed. */
    CHECK_EQ(peer_do(p, do_shutdown, SHUT_RDWR, 0), -1);
    CHECK_EQ(errno, ENOTCONN);
}

/* SHUT_WR wakes nobody on our side, SHUT_RD our readers: see threads.c. */

/* Whoever reads no more is still told of the room to write, however much comes. */
static void self_rd_before_a_flood(struct pair *p)
{
    CHECK_EQ(shutdown(p->self.fd, SHUT_RD), 0);
    CHECK(peer_do(p, do_fill, 4096, 0) > 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
}

static const struct test tests[] = {
    {"self_rd_before_a_flood", self_rd_before_a_flood, 0},
    {"peer_wr", peer_wr, FAMILIES},
    {"peer_wr_with_data_queued", peer_wr_with_data_queued, 0},
    {"peer_wr_wakes", peer_wr_wakes, ACTIVE_PEER | SLOW},
    {"peer_wr_wakes_recv", peer_wr_wakes_recv, ACTIVE_PEER | SLOW},
    {"self_wr", self_wr, 0},
    {"self_wr_after_data", self_wr_after_data, 0},
    {"half_close_request", half_close_request, 0},
    {"self_rd", self_rd, 0},
    {"self_rd_with_data_queued", self_rd_with_data_queued, 0},
    {"self_rd_then_wr", self_rd_then_wr, 0},
    {"self_rdwr", self_rdwr, 0},
    {"late_data_after_rdwr", late_data_after_rdwr, 0},
    {"both_wr_ours_first", both_wr_ours_first, 0},
    {"both_wr_peer_first", both_wr_peer_first, 0},
    {"both_wr_with_data_queued", both_wr_with_data_queued, 0},
    {"peer_rdwr", peer_rdwr, 0},
    {"peer_rdwr_refuses_at_once", peer_rdwr_refuses_at_once, ACTIVE_PEER},
    {"peer_rd", peer_rd, 0},
    {"nonsense", nonsense, 0},
    {"after_the_end", after_the_end, 0},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
