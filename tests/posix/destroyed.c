/*
 * destroyed.c: connections that end from outside, in the middle of a message: by an
 * administrator (`ss -K`, SOCK_DESTROY of inet_diag(7)), or because the other end does not
 * answer any more. That is never a clean end: ECONNABORTED where the socket was destroyed,
 * ECONNRESET at the other end, ETIMEDOUT where nobody answered; told once, behind the bytes
 * that had come, and as end of input and EPIPE after that. A process that is killed is
 * another matter: its end is in order.
 */
#include "support.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <sched.h>
#include <sys/syscall.h>

/* POLLIN and its like at the end of a connection. */
#define OVER (POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP)

/* ---- destroying ------------------------------------------------------------------------ */

static void put_name(const struct sockaddr_storage *name, __be16 *port, __be32 *address)
{
    if (name->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)name;
        *port = in->sin_port;
        memcpy(address, &in->sin_addr, sizeof in->sin_addr);
    } else {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)name;
        *port = in6->sin6_port;
        memcpy(address, &in6->sin6_addr, sizeof in6->sin6_addr);
    }
}

/* Asks the kernel to destroy the socket with these names; 0, or an error number. */
static int destroy_named(const struct sockaddr_storage *local, const struct sockaddr_storage *peer)
{
    struct {
        struct nlmsghdr header;
        struct inet_diag_req_v2 body;
    } request = {
        .header = {
            .nlmsg_len = sizeof request,
            .nlmsg_type = SOCK_DESTROY,
            .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
        },
        .body = {
            .sdiag_family = (__u8)local->ss_family,
            .sdiag_protocol = IPPROTO_TCP,
            .idiag_states = ~0u,
            .id.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE},
        },
    };
    put_name(local, &request.body.id.idiag_sport, request.body.id.idiag_src);
    put_name(peer, &request.body.id.idiag_dport, request.body.id.idiag_dst);
    struct {
        struct nlmsghdr header;
        struct nlmsgerr body;
        char rest[256];
    } answer = {.body.error = -EIO};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    CHECK_EQ(send(fd, &request, sizeof request, 0), sizeof request);
    CHECK(recv(fd, &answer, sizeof answer, 0) > 0);
    close(fd);
    return -answer.body.error;
}

/* Whether this can be tried at all; says what is lacking. */
static bool can_destroy(void)
{
    struct sockaddr_storage nobody = {.ss_family = AF_INET};
    int error = destroy_named(&nobody, &nobody);
    if (error == ENOENT)
        return true;
    fprintf(stderr, "destroyed.c: sockets cannot be destroyed here (%s): %s\n", strerror(error),
            error == EPERM ? "it takes CAP_NET_ADMIN"
                           : "it takes a kernel with CONFIG_INET_DIAG_DESTROY");
    return false;
}

static long destroy(int fd, bool its_peer)
{
    struct sockaddr_storage local, peer;
    socklen_t len = sizeof local;
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&local, &len), 0);
    len = sizeof peer;
    CHECK_EQ(getpeername(fd, (struct sockaddr *)&peer, &len), 0);
    return its_peer ? destroy_named(&peer, &local) : destroy_named(&local, &peer);
}

/* The peer's own end, or the script's, destroyed by the peer. */
static long do_destroy(struct end *end, long its_peer, long b)
{
    (void)b;
    return destroy(end->fd, its_peer);
}

/* ---- what each call says ----------------------------------------------------------------- */

/* Runs a script twice, on a connection of its own each time: once where the socket is
 * destroyed, and once at the other end. */
static void at_both_ends(struct pair *p, void script(struct pair *, bool here))
{
    if (!can_destroy())
        return;
    script(p, true);
    struct pair other;
    if (CHECK(pair_open(&other, p->setting))) {
        script(&other, false);
        pair_close(&other);
    }
}

static int error_at(bool here)
{
    return here ? ECONNABORTED : ECONNRESET;
}

/* Half a message has come, and the other half never will. */
static void read_half_a_message(struct pair *p, bool here)
{
    arrive(p, 100);
    CHECK_EQ(destroy(p->self.fd, !here), 0);
    CHECK_MASK(p->self.fd, OVER);
    CHECK_EQ(do_recv_once(&p->self, 200, 0), 100);
    CHECK_ERRNO(do_recv_once(&p->self, 200, 0), error_at(here));
    CHECK_EQ(do_recv_once(&p->self, 200, 0), 0);
    CHECK_EQ(do_recv_once(&p->self, 200, 0), 0);
    int before = sigpipes();
    CHECK_ERRNO(do_send_once(&p->self, 1, 0), EPIPE);
    CHECK_EQ(sigpipes(), before + 1);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
}

static void reads(struct pair *p)
{
    at_both_ends(p, read_half_a_message);
}

static void wait_for_all(struct pair *p, bool here)
{
    arrive(p, 100);
    CHECK_EQ(destroy(p->self.fd, !here), 0);
    CHECK_EQ(do_recv_once(&p->self, 200, MSG_WAITALL), 100);
    CHECK_ERRNO(do_recv_once(&p->self, 200, MSG_WAITALL), error_at(here));
    CHECK_EQ(do_recv_once(&p->self, 200, MSG_WAITALL), 0);
}

static void reads_of_a_whole_message(struct pair *p)
{
    at_both_ends(p, wait_for_all);
}

static void read_nothing(struct pair *p, bool here)
{
    CHECK_EQ(destroy(p->self.fd, !here), 0);
    CHECK_ERRNO(do_recv_once(&p->self, 200, MSG_DONTWAIT), error_at(here));
    CHECK_EQ(do_recv_once(&p->self, 200, MSG_DONTWAIT), 0);
}

static void reads_without_waiting(struct pair *p)
{
    at_both_ends(p, read_nothing);
}

static void write_first(struct pair *p, bool here)
{
    CHECK_EQ(destroy(p->self.fd, !here), 0);
    CHECK_MASK(p->self.fd, OVER);
    CHECK_ERRNO(do_send_once(&p->self, 100, 0), error_at(here));
    int before = sigpipes();
    CHECK_ERRNO(do_send_once(&p->self, 100, 0), EPIPE);
    CHECK_ERRNO(do_send_once(&p->self, 100, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(sigpipes(), before + 1);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 0);
}

static void writes(struct pair *p)
{
    at_both_ends(p, write_first);
}

static void ask_for_the_error(struct pair *p, bool here)
{
    CHECK_EQ(destroy(p->self.fd, !here), 0);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), error_at(here));
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 0);
    CHECK_ERRNO(do_send_once(&p->self, 1, MSG_NOSIGNAL), EPIPE);
}

static void socket_error(struct pair *p)
{
    at_both_ends(p, ask_for_the_error);
}

static void ask_a_set(struct pair *p, bool here)
{
    int level = epoll_create1(EPOLL_CLOEXEC), edge = epoll_create1(EPOLL_CLOEXEC);
    CHECK_EQ(epoll_add(level, p->self.fd, EPOLLIN | EPOLLRDHUP, WORD), 0);
    CHECK_EQ(epoll_add(edge, p->self.fd, EPOLLIN | EPOLLRDHUP | EPOLLET, WORD), 0);
    CHECK_SILENT(level);
    CHECK_SILENT(edge);
    CHECK_EQ(destroy(p->self.fd, !here), 0);
    CHECK_EQ(one_event(level, WORD, 2000), EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
    CHECK_EQ(one_event(edge, WORD, 2000), EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
    CHECK_SILENT(edge);
    CHECK_ERRNO(do_recv_once(&p->self, 100, 0), error_at(here));
    CHECK_EQ(one_event(level, WORD, 0), EPOLLIN | EPOLLHUP | EPOLLRDHUP);
    close(level);
    close(edge);
}

static void sets(struct pair *p)
{
    at_both_ends(p, ask_a_set);
}

static void see_both(struct pair *p, bool here)
{
    CHECK_EQ(destroy(p->self.fd, !here), 0);
    CHECK_ERRNO(do_recv_once(&p->self, 100, 0), error_at(here));
    CHECK_ERRNO(peer_do(p, do_recv_once, 100, 0), error_at(!here));
    CHECK_EQ(peer_do(p, do_recv_once, 100, 0), 0);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 0);
}

static void both_are_told(struct pair *p)
{
    at_both_ends(p, see_both);
}

/* The end that was destroyed is closed at once, by a program that has not looked or has. */
static void close_the_other(struct pair *p, bool looks)
{
    arrive(p, 100);
    CHECK_EQ(destroy(p->self.fd, true), 0);
    if (looks)
        CHECK_ERRNO(peer_do(p, do_recv_once, 100, 0), ECONNABORTED);
    CHECK_EQ(peer_do(p, do_close, 0, 0), 0);
    CHECK_EQ(do_recv_once(&p->self, 200, 0), 100);
    CHECK_ERRNO(do_recv_once(&p->self, 200, 0), ECONNRESET);
    CHECK_EQ(do_recv_once(&p->self, 200, 0), 0);
}

static void closed_before_it_is_seen(struct pair *p)
{
    at_both_ends(p, close_the_other);
}

/* ---- behind an end in order ---------------------------------------------------------------- */

static void after_its_fin(struct pair *p, bool here)
{
    arrive(p, 10);
    CHECK_EQ(peer_do(p, do_shutdown, SHUT_WR, 0), 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(destroy(p->self.fd, !here), 0);
    CHECK_MASK(p->self.fd, OVER);
    CHECK_EQ(do_recv_once(&p->self, 200, 0), 10);
    CHECK_EQ(do_recv_once(&p->self, 200, 0), 0);
    CHECK_ERRNO(do_send_once(&p->self, 10, MSG_NOSIGNAL), here ? ECONNABORTED : EPIPE);
    CHECK_ERRNO(do_send_once(&p->self, 10, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(do_recv_once(&p->self, 200, 0), 0);
}

static void behind_the_end(struct pair *p)
{
    at_both_ends(p, after_its_fin);
}

static void after_our_fin(struct pair *p, bool here)
{
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    CHECK_EQ(destroy(p->self.fd, !here), 0);
    CHECK_MASK(p->self.fd, OVER);
    CHECK_ERRNO(do_recv_once(&p->self, 200, 0), error_at(here));
    CHECK_EQ(do_recv_once(&p->self, 200, 0), 0);
}

static void behind_our_end(struct pair *p)
{
    at_both_ends(p, after_our_fin);
}

/* ---- asleep ---------------------------------------------------------------------------------- */

/* The peer destroys one of the ends while the script sleeps, or is about to. */
static void sleep_in_recv(struct pair *p, bool here)
{
    arrive(p, 10);
    CHECK_EQ(do_recv_once(&p->self, 10, 0), 10);
    peer_start(p, 50, do_destroy, here, 0);
    CHECK_ERRNO(do_recv_once(&p->self, 100, 0), error_at(here));
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 0);
    CHECK_EQ(peer_finish(p), 0);
}

static void wakes_recv(struct pair *p)
{
    at_both_ends(p, sleep_in_recv);
}

static void sleep_in_send(struct pair *p, bool here)
{
    do_fill(&p->self, 64 << 10, 0);
    peer_start(p, 50, do_destroy, here, 0);
    long n;
    do
        n = do_send_once(&p->self, STAGE_SIZE, MSG_NOSIGNAL);
    while (n > 0);
    CHECK_EQ(errno, error_at(here));
    CHECK_ERRNO(do_send_once(&p->self, 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(peer_finish(p), 0);
}

static void wakes_send(struct pair *p)
{
    at_both_ends(p, sleep_in_send);
}

static void sleep_in_poll(struct pair *p, bool here)
{
    peer_start(p, 50, do_destroy, here, 0);
    CHECK_EQ(poll_once(p->self.fd, POLLIN | POLLRDHUP, 5000), OVER & ~POLLOUT);
    CHECK_ERRNO(do_recv_once(&p->self, 100, 0), error_at(here));
    CHECK_EQ(peer_finish(p), 0);
}

static void wakes_poll(struct pair *p)
{
    at_both_ends(p, sleep_in_poll);
}

static void sleep_in_a_set(struct pair *p, bool here)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN, WORD), 0);
    CHECK_SILENT(set);
    peer_start(p, 50, do_destroy, here, 0);
    CHECK_EQ(one_event(set, WORD, 5000), EPOLLIN | EPOLLERR | EPOLLHUP);
    CHECK_ERRNO(do_recv_once(&p->self, 100, 0), error_at(here));
    CHECK_EQ(peer_finish(p), 0);
    close(set);
}

static void wakes_epoll(struct pair *p)
{
    at_both_ends(p, sleep_in_a_set);
}

/* ---- no answer any more ------------------------------------------------------------------------ */

static bool switch_loopback(bool on)
{
    struct {
        char name[16];
        short flags;
        char rest[64];
    } request = {.name = "lo", .flags = (short)on /* IFF_UP */};
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    bool done = ioctl(any, SIOCSIFFLAGS, &request) == 0;
    return close(any) == 0 && done;
}

/* What is not acknowledged is sent again, for a quarter of an hour, and nothing is probed. */
static bool await_acknowledged(int fd)
{
    struct tcp_info info = {.tcpi_unacked = 1};
    uint64_t deadline = now_ms() + 5000;
    socklen_t len;
    while (info.tcpi_unacked && now_ms() < deadline) {
        sleep_ms(1);
        len = sizeof info;
        CHECK_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
    }
    return CHECK_EQ(info.tcpi_unacked, 0);
}

static void cut_off(void)
{
    struct pair made;
    if (!CHECK(switch_loopback(true)) ||
        !CHECK(pair_open(&made, (struct setting){.place = OTHER_PROCESS, .warm = true})))
        return;
    CHECK_EQ(set_int(made.self.fd, IPPROTO_TCP, TCP_KEEPIDLE, 1), 0);
    CHECK_EQ(set_int(made.self.fd, IPPROTO_TCP, TCP_KEEPINTVL, 1), 0);
    CHECK_EQ(set_int(made.self.fd, IPPROTO_TCP, TCP_KEEPCNT, 1), 0);
    CHECK_EQ(set_int(made.self.fd, SOL_SOCKET, SO_KEEPALIVE, 1), 0);
    arrive(&made, 100);
    CHECK(await_acknowledged(made.self.fd));
    CHECK(switch_loopback(false));
    CHECK_EQ(do_recv_once(&made.self, 200, 0), 100);
    CHECK_ERRNO(do_recv_once(&made.self, 200, 0), ETIMEDOUT);
    CHECK_EQ(do_recv_once(&made.self, 200, 0), 0);
    CHECK_ERRNO(do_send_once(&made.self, 1, MSG_NOSIGNAL), EPIPE);
    CHECK(switch_loopback(true));
    pair_close(&made);
}

/* Keepalive probes that nobody answers, because the cable is cut. */
static void keepalive(struct pair *p)
{
    (void)p;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWNET) < 0)
            fprintf(stderr, "destroyed.c: without CAP_SYS_ADMIN no cable can be cut\n");
        else
            cut_off();
        _exit(0);
    }
    CHECK_EQ(await_child(child), 0);
}

/* ---- ends in order, though TCP may see a reset ---------------------------------------------------- */

enum { BELLS = 30 };

/* The peer waits by poll, so what wakes it lies in its TCP queue until it waits again. */
static long do_take_turns(struct end *end, long rounds, long b)
{
    (void)b;
    for (long i = 0; i < rounds; i++) {
        CHECK_EQ(poll_once(end->fd, POLLIN, 5000), POLLIN);
        if (do_recv(end, 1, 0) < 0 || do_send(end, 1, 0) < 0)
            return -1;
    }
    CHECK_EQ(poll_once(end->fd, POLLIN, 5000), POLLIN);
    return do_recv(end, 1, 0);
}

static void ring_bells(struct pair *p)
{
    peer_start(p, 0, do_take_turns, BELLS, 0);
    for (int i = 0; i < BELLS; i++) {
        if (i % 3 == 0)
            sleep_ms(6); /* let it fall asleep; it need not */
        CHECK_EQ(do_send(&p->self, 1, 0), 1);
        CHECK_EQ(do_recv(&p->self, 1, 0), 1);
    }
    sleep_ms(20);
    CHECK_EQ(do_send(&p->self, 1, 0), 1);
    CHECK_EQ(peer_finish(p), 1);
    arrive(p, 10);
}

static void killed(struct pair *p)
{
    ring_bells(p);
    peer_end(p, do_die);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 10);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 0);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
}

static void exited(struct pair *p)
{
    ring_bells(p);
    peer_end(p, do_exit);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 10);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 0);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
}

static void closed(struct pair *p)
{
    ring_bells(p);
    CHECK_EQ(peer_do(p, do_close, 0, 0), 0);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 10);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 0);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
}

/* The peer's process goes on as another program, in which the descriptor is closed. */
static long do_exec(struct end *end, long a, long b)
{
    (void)a, (void)b;
    CHECK_EQ(fcntl(end->fd, F_SETFD, FD_CLOEXEC), 0);
    execl("/bin/sleep", "sleep", "5", NULL);
    return -1;
}

static void closed_by_exec(struct pair *p)
{
    ring_bells(p);
    peer_start(p, 0, do_exec, 0, 0);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 10);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 0);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_ERROR), 0);
    kill(p->process, SIGKILL);
    await_child(p->process);
    p->process = 0;
}

static const struct test tests[] = {
    {"reads", reads, FAMILIES},
    {"reads_of_a_whole_message", reads_of_a_whole_message, 0},
    {"reads_without_waiting", reads_without_waiting, 0},
    {"writes", writes, 0},
    {"socket_error", socket_error, 0},
    {"sets", sets, 0},
    {"both_are_told", both_are_told, 0},
    {"closed_before_it_is_seen", closed_before_it_is_seen, 0},
    {"behind_the_end", behind_the_end, 0},
    {"behind_our_end", behind_our_end, 0},
    {"wakes_recv", wakes_recv, ACTIVE_PEER},
    {"wakes_send", wakes_send, ACTIVE_PEER},
    {"wakes_poll", wakes_poll, ACTIVE_PEER},
    {"wakes_epoll", wakes_epoll, ACTIVE_PEER},
    {"keepalive", keepalive, ALONE},
    {"killed", killed, PROCESS_ONLY},
    {"exited", exited, PROCESS_ONLY},
    {"closed", closed, PROCESS_ONLY},
    {"closed_by_exec", closed_by_exec, PROCESS_ONLY},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
