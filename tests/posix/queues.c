/* queues.c: how much waits to be read (FIONREAD) and to be taken (TIOCOUTQ). */
#include "support.h"

#include <linux/sockios.h>

static unsigned char buffer[20000];

static int ask(int fd, unsigned long request)
{
    int value = -1;
    return ioctl(fd, request, &value) < 0 ? -1 : value;
}

/* Waits until TIOCOUTQ says 0: acknowledgements take their time. */
static int output_after_a_while(int fd)
{
    uint64_t deadline = now_ms() + HANG_MS;
    int queued;
    while ((queued = ask(fd, TIOCOUTQ)) > 0 && now_ms() < deadline)
        sleep_ms(1);
    return queued;
}

static void input_counts_bytes(struct pair *p)
{
    CHECK_EQ(ask(p->self.fd, FIONREAD), 0);
    long total = 0;
    for (int i = 1; i <= 8; i++) { /* ten segments may travel unacknowledged */
        peer_do(p, do_send, i * 35, 0);
        total += i * 35;
        await_readable(p->self.fd, (int)total);
        CHECK_EQ(ask(p->self.fd, FIONREAD), total);
        CHECK_EQ(ask(p->self.fd, SIOCINQ), total);
    }
    CHECK_EQ(recv(p->self.fd, buffer, 50, MSG_PEEK), 50);
    CHECK_EQ(ask(p->self.fd, FIONREAD), total);
    CHECK_EQ(do_recv(&p->self, 50, 0), 50);
    CHECK_EQ(ask(p->self.fd, FIONREAD), total - 50);
    CHECK_EQ(do_recv(&p->self, total - 50, 0), total - 50);
    CHECK_EQ(ask(p->self.fd, FIONREAD), 0);
}

/* The end of the stream is not a byte. */
static void input_at_the_end(struct pair *p)
{
    peer_do(p, do_send, 100, 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(ask(p->self.fd, FIONREAD), 100);
    do_recv(&p->self, 100, 0);
    CHECK_EQ(ask(p->self.fd, FIONREAD), 0);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
    CHECK_EQ(ask(p->self.fd, FIONREAD), 0);
}

/* Once the peer has read everything, nothing is outstanding. (Before, TCP counts
 * what was not acknowledged, which on one host is soon nothing either, so no more
 * than that can be asserted.) */
static void output_is_empty_in_the_end(struct pair *p)
{
    CHECK_EQ(output_after_a_while(p->self.fd), 0);
    for (int i = 1; i <= 20; i++) {
        do_send(&p->self, i * 100, 0);
        CHECK_BETWEEN(ask(p->self.fd, TIOCOUTQ), 0, i * 100);
        CHECK_EQ(peer_do(p, do_recv, i * 100, 0), i * 100);
        CHECK_EQ(output_after_a_while(p->self.fd), 0);
        CHECK_EQ(ask(p->self.fd, SIOCOUTQNSD), 0);
    }
}

/* With full buffers something is outstanding, but not more than was sent. */
static void output_of_a_full_socket(struct pair *p)
{
    long total = do_fill(&p->self, 8192, 0);
    CHECK_BETWEEN(ask(p->self.fd, TIOCOUTQ), 1, total);
    peer_start(p, 0, do_recv, total, 0);
    CHECK_EQ(peer_finish(p), total);
    CHECK_EQ(output_after_a_while(p->self.fd), 0);
}

static void of_a_listener(struct pair *p)
{
    (void)p;
    struct sockaddr_storage address;
    socklen_t len;
    int listener = make_listener(V4, &address, &len), value;
    CHECK_ERRNO(ioctl(listener, FIONREAD, &value), EINVAL);
    CHECK_ERRNO(ioctl(listener, TIOCOUTQ, &value), EINVAL);
    close(listener);
}

static const struct test tests[] = {
    {"input_counts_bytes", input_counts_bytes, 0},
    {"input_at_the_end", input_at_the_end, 0},
    {"output_is_empty_in_the_end", output_is_empty_in_the_end, 0},
    {"output_of_a_full_socket", output_of_a_full_socket, ACTIVE_PEER},
    {"of_a_listener", of_a_listener, ALONE},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
