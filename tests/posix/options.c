/* options.c: socket options and names; the socket stays an honest TCP socket. */
#include "support.h"

#include <sys/syscall.h>

static unsigned char buffer[1000];

static void identity(struct pair *p)
{
    int fd = p->self.fd;
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
    int domain = p->setting.family == V4 ? AF_INET
                 : p->setting.family == V6 ? AF_INET6
                 : p->setting.family == MAPPED ? (p->setting.client ? AF_INET6 : AF_INET)
                                               : (p->setting.client ? AF_INET : AF_INET6);
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_DOMAIN), domain);
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_ACCEPTCONN), 0);
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_ERROR), 0);
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_INCOMING_CPU) < 0, 0);
}

static long do_name(struct end *end, long of_peer, long b)
{
    (void)b;
    struct sockaddr_storage *name = shared_scratch();
    socklen_t len = sizeof *name;
    return of_peer ? getpeername(end->fd, (struct sockaddr *)name, &len)
                   : getsockname(end->fd, (struct sockaddr *)name, &len);
}

static in_port_t port_of_name(const void *name)
{
    const struct sockaddr_storage *address = name;
    return address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)name)->sin6_port
                                          : ((const struct sockaddr_in *)name)->sin_port;
}

/* What we call the other end, it calls itself, and the other way round. */
static void names_agree(struct pair *p)
{
    bool mixed = p->setting.family == MAPPED || p->setting.family == DUAL;
    for (int ours = 0; ours < 2; ours++) {
        struct sockaddr_storage name;
        memset(&name, 0, sizeof name);
        socklen_t len = sizeof name;
        memset(shared_scratch(), 0, sizeof name);
        if (ours) {
            CHECK_EQ(getsockname(p->self.fd, (struct sockaddr *)&name, &len), 0);
            CHECK_EQ(peer_do(p, do_name, 1, 0), 0);
        } else {
            CHECK_EQ(getpeername(p->self.fd, (struct sockaddr *)&name, &len), 0);
            CHECK_EQ(peer_do(p, do_name, 0, 0), 0);
        }
        CHECK(port_of_name(&name) != 0);
        CHECK_EQ(port_of_name(&name), port_of_name(shared_scratch()));
        if (!mixed)
            CHECK_EQ(memcmp(&name, shared_scratch(), len), 0);
        CHECK_EQ(len, name.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                 : sizeof(struct sockaddr_in));
    }
}

static void tcp_info(struct pair *p)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    CHECK_EQ(getsockopt(p->self.fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
    CHECK_EQ(info.tcpi_state, TCP_ESTABLISHED);
    CHECK(info.tcpi_snd_mss > 0);
    /* A short buffer gets a short answer. */
    len = 4;
    CHECK_EQ(getsockopt(p->self.fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
    CHECK_EQ(len, 4);
}

/* A few programs take CLOSE_WAIT as "the other side has hung up". */
static void tcp_info_after_the_end(struct pair *p)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(getsockopt(p->self.fd, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
    CHECK_EQ(info.tcpi_state, TCP_CLOSE_WAIT);
}

static int peer_name(struct pair *p, struct sockaddr_storage *name)
{
    socklen_t len = sizeof *name;
    memset(name, 0, sizeof *name);
    int result = getpeername(p->self.fd, (struct sockaddr *)name, &len), error = errno;
    CHECK_EQ(syscall(SYS_getpeername, p->self.fd, name, &len), result);
    errno = error;
    return result;
}

/* Half an end leaves the peer its name; what has ended has no peer, by which
 * memcached's tests and Perl's `connected` see it. */
static void peer_name_until_both_have_ended(struct pair *p)
{
    struct sockaddr_storage before, after;
    CHECK_EQ(peer_name(p, &before), 0);
    peer_do(p, do_send, 100, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(peer_name(p, &after), 0);
    CHECK_EQ(memcmp(&before, &after, sizeof before), 0);
    CHECK_EQ(do_recv(&p->self, 100, 0), 100);
    CHECK_EQ(recv(p->self.fd, buffer, 1, 0), 0);
    CHECK_EQ(peer_name(p, &after), 0);
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    CHECK_ERRNO(peer_name(p, &after), ENOTCONN);
}

static void no_peer_name_when_we_ended_first(struct pair *p)
{
    struct sockaddr_storage name;
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    CHECK_EQ(peer_name(p, &name), 0);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
    CHECK_ERRNO(peer_name(p, &name), ENOTCONN);
    CHECK_EQ(recv(p->self.fd, buffer, 1, 0), 0);
}

/* It closes with bytes unread, which is a reset. */
static void no_peer_name_after_a_reset(struct pair *p)
{
    struct sockaddr_storage name;
    CHECK_EQ(do_send(&p->self, 100, 0), 100);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR);
    CHECK_ERRNO(peer_name(p, &name), ENOTCONN);
}

/* Nobody reads any more what we write, and its answer is a reset. */
static void no_peer_name_after_a_late_write(struct pair *p)
{
    struct sockaddr_storage name;
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(send(p->self.fd, "late", 4, MSG_NOSIGNAL), 4);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP | POLLHUP | POLLERR);
    CHECK_ERRNO(peer_name(p, &name), ENOTCONN);
}

static void booleans(struct pair *p)
{
    static const struct { int level, name; } options[] = {
        {IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_TCP, TCP_CORK},    {SOL_SOCKET, SO_KEEPALIVE},
        {SOL_SOCKET, SO_OOBINLINE}, {SOL_SOCKET, SO_REUSEADDR}, {SOL_SOCKET, SO_DONTROUTE},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        for (int value = 0; value < 2; value++) {
            CHECK_EQ(set_int(p->self.fd, options[i].level, options[i].name, value), 0);
            CHECK_EQ(get_int(p->self.fd, options[i].level, options[i].name), value);
        }
    }
    set_int(p->self.fd, IPPROTO_TCP, TCP_CORK, 0);
    do_send(&p->self, 10, 0);
    CHECK_EQ(peer_do(p, do_recv, 10, 0), 10);
}

static void numbers(struct pair *p)
{
    static const struct { int level, name, value; } options[] = {
        {IPPROTO_TCP, TCP_KEEPIDLE, 33},   {IPPROTO_TCP, TCP_KEEPINTVL, 11},
        {IPPROTO_TCP, TCP_KEEPCNT, 4},     {IPPROTO_TCP, TCP_USER_TIMEOUT, 30000},
        {IPPROTO_TCP, TCP_SYNCNT, 5},      {SOL_SOCKET, SO_PRIORITY, 3},
        {IPPROTO_TCP, TCP_LINGER2, 20},    {IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        CHECK_EQ(set_int(p->self.fd, options[i].level, options[i].name, options[i].value), 0);
        CHECK_EQ(get_int(p->self.fd, options[i].level, options[i].name), options[i].value);
    }
    do_send(&p->self, 10, 0);
    CHECK_EQ(peer_do(p, do_recv, 10, 0), 10);
}

/* The kernel doubles the wish, for its own overhead (socket(7)), and has a least. */
static void buffer_sizes(struct pair *p)
{
    for (int name = SO_SNDBUF; name <= SO_RCVBUF; name++) {
        CHECK(get_int(p->self.fd, SOL_SOCKET, name) > 0);
        CHECK_EQ(set_int(p->self.fd, SOL_SOCKET, name, 50000), 0);
        CHECK_EQ(get_int(p->self.fd, SOL_SOCKET, name), 100000);
        CHECK_EQ(set_int(p->self.fd, SOL_SOCKET, name, 1), 0);
        CHECK_BETWEEN(get_int(p->self.fd, SOL_SOCKET, name), 1000, 10000);
    }
    do_send(&p->self, 500, 0);
    CHECK_EQ(peer_do(p, do_recv, 500, 0), 500);
    peer_do(p, do_send, 500, 0);
    CHECK_EQ(do_recv(&p->self, 500, 0), 500);
}

/* Small buffers do not stop bulk. */
static void bulk_through_small_buffers(struct pair *p)
{
    set_int(p->self.fd, SOL_SOCKET, SO_SNDBUF, 4096);
    set_int(p->self.fd, SOL_SOCKET, SO_RCVBUF, 4096);
    peer_start(p, 0, do_recv, 200000, 0);
    CHECK_EQ(do_send(&p->self, 200000, 0), 200000);
    CHECK_EQ(peer_finish(p), 200000);
}

/* Options set before connecting are there afterwards; the accepted socket has its
 * listener's. */
static void inherited(struct pair *p)
{
    (void)p;
    struct sockaddr_storage address;
    socklen_t len;
    int listener = make_listener(V4, &address, &len);
    set_int(listener, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(listener, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(listener, SOL_SOCKET, SO_RCVBUF, 60000);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    set_int(client, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(client, SOL_SOCKET, SO_SNDBUF, 70000);
    CHECK_EQ(connect(client, (struct sockaddr *)&address, len), 0);
    int server = accept(listener, NULL, NULL);
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(send(client, "ping", 4, 0), 4);
        CHECK_EQ(recv(server, buffer, 10, 0), 4);
        CHECK_EQ(send(server, "pong", 4, 0), 4);
        CHECK_EQ(recv(client, buffer, 10, 0), 4);
    }
    CHECK_EQ(get_int(client, IPPROTO_TCP, TCP_NODELAY), 1);
    CHECK_EQ(get_int(client, SOL_SOCKET, SO_SNDBUF), 140000);
    CHECK_EQ(get_int(server, IPPROTO_TCP, TCP_NODELAY), 1);
    CHECK_EQ(get_int(server, SOL_SOCKET, SO_KEEPALIVE), 1);
    CHECK_EQ(get_int(server, SOL_SOCKET, SO_RCVBUF), 120000);
    close(client), close(server), close(listener);
}

static void nonsense(struct pair *p)
{
    int fd = p->self.fd, value = 1;
    socklen_t len = sizeof value;
    CHECK_ERRNO(setsockopt(fd, SOL_SOCKET, 9999, &value, sizeof value), ENOPROTOOPT);
    CHECK_ERRNO(getsockopt(fd, SOL_SOCKET, 9999, &value, &len), ENOPROTOOPT);
    CHECK_ERRNO(setsockopt(fd, IPPROTO_TCP, 9999, &value, sizeof value), ENOPROTOOPT);
    CHECK_ERRNO(setsockopt(fd, SOL_SOCKET, SO_ERROR, &value, sizeof value), ENOPROTOOPT);
    CHECK_ERRNO(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, 1), EINVAL);
    CHECK_ERRNO(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, 1), EINVAL);
    CHECK_ERRNO(setsockopt(-1, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value), EBADF);
    /* Longer than an int is fine, the rest is ignored. */
    long wide = 0;
    CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &wide, sizeof wide), 0);
}

/* Descriptor flags and fstat go on as for any socket. */
static void descriptor(struct pair *p)
{
    CHECK_EQ(fcntl(p->self.fd, F_GETFL) & O_ACCMODE, O_RDWR);
    CHECK_EQ(fcntl(p->self.fd, F_SETFD, FD_CLOEXEC), 0);
    CHECK_EQ(fcntl(p->self.fd, F_GETFD), FD_CLOEXEC);
    CHECK_EQ(isatty(p->self.fd), 0);
    uint64_t cookie = 0;
    socklen_t len = sizeof cookie;
    CHECK_EQ(getsockopt(p->self.fd, SOL_SOCKET, SO_COOKIE, &cookie, &len), 0);
    CHECK(cookie != 0);
    char credentials[64];
    len = sizeof credentials;
    CHECK_EQ(getsockopt(p->self.fd, SOL_SOCKET, SO_PEERCRED, credentials, &len), 0);
}

static const struct test tests[] = {
    {"identity", identity, FAMILIES},
    {"names_agree", names_agree, FAMILIES},
    {"tcp_info", tcp_info, 0},
    {"tcp_info_after_the_end", tcp_info_after_the_end, 0},
    {"peer_name_until_both_have_ended", peer_name_until_both_have_ended, FAMILIES},
    {"no_peer_name_when_we_ended_first", no_peer_name_when_we_ended_first, 0},
    {"no_peer_name_after_a_reset", no_peer_name_after_a_reset, 0},
    {"no_peer_name_after_a_late_write", no_peer_name_after_a_late_write, 0},
    {"booleans", booleans, 0},
    {"numbers", numbers, 0},
    {"buffer_sizes", buffer_sizes, 0},
    {"bulk_through_small_buffers", bulk_through_small_buffers, ACTIVE_PEER},
    {"inherited", inherited, ALONE},
    {"nonsense", nonsense, 0},
    {"descriptor", descriptor, 0},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
