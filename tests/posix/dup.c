/*
 * dup.c: several descriptors for one socket, and descriptors that change under it.
 * A socket lives until its last descriptor is closed; numbers are always the lowest
 * free ones.
 */
#include "support.h"

static char buffer[1000];

/* A few messages each way through this descriptor. */
static void talk(struct pair *p, int fd)
{
    int own = p->self.fd;
    p->self.fd = fd;
    for (int i = 1; i < 6; i++) {
        CHECK_EQ(do_send(&p->self, i * 10, 0), i * 10);
        CHECK_EQ(peer_do(p, do_recv, i * 10, 0), i * 10);
        CHECK_EQ(peer_do(p, do_send, i * 10, 0), i * 10);
        CHECK_EQ(do_recv(&p->self, i * 10, 0), i * 10);
    }
    p->self.fd = own;
}

/* The peer has not seen an end. */
static void still_open(struct pair *p)
{
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLRDHUP, 0), 0);
}

static void both_work(struct pair *p, int twin)
{
    CHECK(twin >= 0);
    CHECK(twin != p->self.fd);
    talk(p, twin);
    talk(p, p->self.fd);
    talk(p, twin);
    /* What one leaves unread the other reads. */
    peer_do(p, do_send, 20, 0);
    CHECK_EQ(do_recv(&p->self, 5, 0), 5);
    int own = p->self.fd;
    p->self.fd = twin;
    CHECK_EQ(do_recv(&p->self, 15, 0), 15);
    p->self.fd = own;
    /* Closing either keeps the other. */
    CHECK_EQ(close(p->self.fd), 0);
    p->self.fd = twin;
    still_open(p);
    talk(p, twin);
    CHECK_EQ(self_close(p), 0);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

static void by_dup(struct pair *p)
{
    both_work(p, dup(p->self.fd));
}

static void by_dup2(struct pair *p)
{
    int target = open("/dev/null", O_RDONLY);
    CHECK_EQ(dup2(p->self.fd, target), target);
    both_work(p, target);
}

static void by_dup3(struct pair *p)
{
    CHECK_EQ(dup3(p->self.fd, 200, O_CLOEXEC), 200);
    CHECK_EQ(fcntl(200, F_GETFD), FD_CLOEXEC);
    CHECK_EQ(fcntl(p->self.fd, F_GETFD), 0);
    both_work(p, 200);
}

static void by_fcntl(struct pair *p)
{
    int twin = fcntl(p->self.fd, F_DUPFD, 300);
    CHECK_BETWEEN(twin, 300, 400);
    CHECK_EQ(fcntl(twin, F_GETFD), 0);
    both_work(p, twin);
}

static void by_fcntl_cloexec(struct pair *p)
{
    int twin = fcntl(p->self.fd, F_DUPFD_CLOEXEC, 0);
    CHECK_EQ(fcntl(twin, F_GETFD), FD_CLOEXEC);
    both_work(p, twin);
}

/* A duplicate of a duplicate, the first ones closed. */
static void chain(struct pair *p)
{
    for (int i = 0; i < 10; i++) {
        int next = dup(p->self.fd);
        close(p->self.fd);
        p->self.fd = next;
        peer_do(p, do_send, 10, 0);
        CHECK_EQ(do_recv(&p->self, 10, 0), 10);
        CHECK_EQ(do_send(&p->self, 10, 0), 10);
        peer_do(p, do_recv, 10, 0);
    }
    still_open(p);
}

/* Status flags, options and shutdown() belong to the socket. */
static void shared_state(struct pair *p)
{
    int twin = dup(p->self.fd);
    CHECK_EQ(set_nonblock(twin, true), 0);
    CHECK_ERRNO(recv(p->self.fd, buffer, 1, 0), EAGAIN);
    set_int(twin, SOL_SOCKET, SO_RCVLOWAT, 50);
    CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, SO_RCVLOWAT), 50);
    CHECK_EQ(shutdown(twin, SHUT_WR), 0);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    close(twin);
}

/* Error and end are seen once or for ever, whichever descriptor looks. */
static void shared_reset(struct pair *p)
{
    int twin = dup(p->self.fd);
    peer_do(p, do_linger, 1, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
    CHECK_ERRNO(recv(twin, buffer, 1, 0), ECONNRESET);
    CHECK_EQ(recv(p->self.fd, buffer, 1, 0), 0);
    close(twin);
}

/* ---- replacing ------------------------------------------------------------------- */

/* dup2() over the only descriptor is a close(). */
static void dup2_over_it(struct pair *p)
{
    int ends[2], fd = p->self.fd;
    CHECK_EQ(pipe(ends), 0);
    do_send(&p->self, 100, 0);
    CHECK_EQ(dup2(ends[0], fd), fd);
    CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    /* The number is a pipe now. */
    CHECK_EQ(write(ends[1], "pipe", 4), 4);
    CHECK_EQ(read(fd, buffer, 100), 4);
    CHECK_ERRNO(send(fd, "x", 1, 0), ENOTSOCK);
    close(ends[0]), close(ends[1]);
}

static void dup3_over_it(struct pair *p)
{
    int null = open("/dev/null", O_RDWR), fd = p->self.fd;
    CHECK_EQ(dup3(null, fd, 0), fd);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    CHECK_EQ(read(fd, buffer, 1), 0);
    CHECK_EQ(write(fd, buffer, 10), 10);
    close(null);
}

/* A socket over another: the first ends, the second has two numbers. */
static void socket_over_socket(struct pair *p)
{
    struct pair other;
    pair_open(&other, (struct setting){.place = SAME_THREAD, .warm = !p->setting.warm});
    CHECK_EQ(dup2(other.self.fd, p->self.fd), p->self.fd);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    talk(&other, p->self.fd);
    talk(&other, other.self.fd);
    close(other.self.fd);
    talk(&other, p->self.fd);
    other.self.fd = p->self.fd;
    p->self.fd = -1;
    pair_close(&other);
}

/* Two connections change numbers; each keeps its own stream. */
static void exchanged(struct pair *p)
{
    struct pair other;
    pair_open(&other, (struct setting){.place = SAME_THREAD, .warm = true});
    int first = p->self.fd, second = other.self.fd, third = dup(first);
    peer_do(p, do_send, 11, 0);
    peer_do(&other, do_send, 22, 0);
    CHECK_EQ(dup2(second, first), first);
    CHECK_EQ(dup2(third, second), second);
    close(third);
    p->self.fd = second;
    other.self.fd = first;
    CHECK_EQ(do_recv(&p->self, 11, 0), 11);
    CHECK_EQ(do_recv(&other.self, 22, 0), 22);
    talk(p, second);
    talk(&other, first);
    pair_close(&other);
}

static void to_itself(struct pair *p)
{
    CHECK_EQ(dup2(p->self.fd, p->self.fd), p->self.fd);
    CHECK_ERRNO(dup3(p->self.fd, p->self.fd, 0), EINVAL);
    if (IS_GLIBC)
        CHECK_ERRNO(dup3(p->self.fd, 200, 12345), EINVAL);
    CHECK_ERRNO(dup2(p->self.fd, -1), EBADF);
    CHECK_ERRNO(dup2(-1, p->self.fd), EBADF);
    CHECK_ERRNO(dup2(987, 987), EBADF);
    CHECK_ERRNO(fcntl(p->self.fd, F_DUPFD, -1), EINVAL);
    talk(p, p->self.fd);
}

/* ---- closing many ---------------------------------------------------------------- */

static void by_close_range(struct pair *p)
{
    int fd = fcntl(p->self.fd, F_DUPFD, 500);
    close(p->self.fd);
    p->self.fd = fd;
    still_open(p);
    CHECK_ERRNO(close_range(fd, fd, 12345), EINVAL);
    CHECK_ERRNO(close_range(fd, fd - 1, 0), EINVAL);
    CHECK_EQ(close_range(fd, fd, CLOSE_RANGE_CLOEXEC), 0);
    CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    talk(p, fd);
    CHECK_EQ(close_range(fd, fd + 20, 0), 0);
    CHECK_ERRNO(send(fd, "x", 1, 0), EBADF);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    p->self.fd = -1;
}

/* In a child, that starts by closing all it does not know, as daemons do: our own
 * connection is not hurt, and the child can make new ones. */
static void everything_is_closed_in_a_child(struct pair *p)
{
    for (int way = 0; way < 3; way++) {
        pid_t child = fork();
        if (child == 0) {
            if (way == 0)
                CHECK_EQ(close_range(3, ~0U, 0), 0);
            else if (way == 1)
                closefrom(3);
            else
                for (int fd = 3; fd < 1024; fd++)
                    close(fd);
            CHECK_ERRNO(send(p->self.fd, "x", 1, 0), EBADF);
            /* Nothing is left, so the next number is 3. */
            int fd = dup(0);
            CHECK_EQ(fd, 3);
            close(fd);
            struct pair own;
            CHECK(pair_open(&own, (struct setting){.place = SAME_THREAD, .warm = true}));
            talk(&own, own.self.fd);
            pair_close(&own);
            _exit(0);
        }
        CHECK_EQ(await_child(child), 0);
        still_open(p);
        talk(p, p->self.fd);
    }
}

/* The same in the process that has the connection: it ends like any other, and new
 * ones work. */
static void everything_is_closed_here(struct pair *p)
{
    (void)p;
    for (int way = 0; way < 3; way++) {
        pid_t child = fork();
        if (child == 0) {
            struct pair old, new;
            pair_open(&old, (struct setting){.place = SAME_THREAD, .warm = true});
            int highest = old.self.fd > old.peer.fd ? old.self.fd : old.peer.fd;
            if (way == 0)
                CHECK_EQ(close_range(3, ~0U, 0), 0);
            else if (way == 1)
                closefrom(3);
            else
                for (int fd = 3; fd < 1024; fd++)
                    close(fd);
            for (int fd = 3; fd <= highest; fd++)
                CHECK_ERRNO(recv(fd, buffer, 1, MSG_DONTWAIT), EBADF);
            for (int i = 0; i < 3; i++) {
                CHECK(pair_open(&new, (struct setting){.place = SAME_THREAD, .warm = true}));
                talk(&new, new.self.fd);
                pair_close(&new);
            }
            _exit(0);
        }
        CHECK_EQ(await_child(child), 0);
    }
}

/* Everything is closed but the connection itself, which goes on. */
static void everything_else_is_closed(struct pair *p)
{
    pid_t child = fork();
    if (child == 0) {
        struct pair own;
        pair_open(&own, (struct setting){.place = SAME_THREAD, .warm = p->setting.warm});
        CHECK_EQ(dup2(own.self.fd, 600), 600);
        CHECK_EQ(dup2(own.peer.fd, 601), 601);
        own.self.fd = 600;
        own.peer.fd = 601;
        closefrom(602);
        CHECK_EQ(close_range(3, 599, 0), 0);
        talk(&own, 600);
        pair_warm(&own);
        pair_close(&own);
        _exit(0);
    }
    CHECK_EQ(await_child(child), 0);
}

/* ---- numbers --------------------------------------------------------------------- */

/* POSIX: a new descriptor has the lowest free number. Shells, inetd and everybody
 * who does close(0); dup(fd) live by it. */
static void numbers_are_the_lowest(struct pair *p)
{
    (void)p;
    int low = dup(0);
    close(low);
    struct sockaddr_storage address;
    socklen_t len;
    int listener = make_listener(V4, &address, &len);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(connect(client, (struct sockaddr *)&address, len), 0);
    int server = accept(listener, NULL, NULL);
    CHECK_EQ(listener, low);
    CHECK_EQ(client, low + 1);
    CHECK_EQ(server, low + 2);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(send(client, "ping", 4, 0), 4);
        CHECK_EQ(recv(server, buffer, 4, 0), 4);
        CHECK_EQ(send(server, "pong", 4, 0), 4);
        CHECK_EQ(recv(client, buffer, 4, 0), 4);
    }
    int next = dup(0);
    CHECK_EQ(next, low + 3);
    close(next);
    close(client);
    CHECK_EQ(dup(server), low + 1);
    CHECK_EQ(epoll_create1(0), low + 3);
    close(low + 1), close(low + 3), close(server), close(listener);
    next = dup(0);
    CHECK_EQ(next, low);
    close(next);
}

/* Nothing is left over after many connections. */
static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void no_leak(struct pair *p)
{
    (void)p;
    int before = 0;
    for (int round = 0; round < 20; round++) {
        struct pair made;
        pair_open(&made, (struct setting){.place = SAME_THREAD, .warm = true, .client = round % 2});
        pair_close(&made);
        if (round == 0)
            before = open_descriptors();
    }
    CHECK_EQ(open_descriptors(), before);
}

static const struct test tests[] = {
    {"by_dup", by_dup, FAMILIES},
    {"by_dup2", by_dup2, 0},
    {"by_dup3", by_dup3, 0},
    {"by_fcntl", by_fcntl, 0},
    {"by_fcntl_cloexec", by_fcntl_cloexec, 0},
    {"chain", chain, 0},
    {"shared_state", shared_state, 0},
    {"shared_reset", shared_reset, 0},
    {"dup2_over_it", dup2_over_it, 0},
    {"dup3_over_it", dup3_over_it, 0},
    {"socket_over_socket", socket_over_socket, 0},
    {"exchanged", exchanged, 0},
    {"to_itself", to_itself, 0},
    {"by_close_range", by_close_range, 0},
    {"everything_is_closed_in_a_child", everything_is_closed_in_a_child, SLOW},
    {"everything_is_closed_here", everything_is_closed_here, ALONE},
    {"everything_else_is_closed", everything_else_is_closed, SLOW},
    {"numbers_are_the_lowest", numbers_are_the_lowest, ALONE},
    {"no_leak", no_leak, ALONE},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
