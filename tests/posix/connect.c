/*
 * connect.c: how a connection comes about, and what the socket shows before.
 * Connecting never waits for the other program, only for its kernel.
 */
#include "support.h"

static struct sockaddr_storage address;
static socklen_t len;
static unsigned char buffer[1000];

static int tcp_socket(int flags)
{
    return socket(address.ss_family ? address.ss_family : AF_INET, SOCK_STREAM | flags, 0);
}

static int connect_to(int fd)
{
    return connect(fd, (struct sockaddr *)&address, len);
}

/* Both ends by hand in one thread; a few messages prove that the pair works. */
static void talk(int a, int b)
{
    struct end left = {.fd = a, .receive_salt = 1}, right = {.fd = b, .send_salt = 1};
    set_int(a, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(b, IPPROTO_TCP, TCP_NODELAY, 1);
    for (int i = 1; i < 12; i++) {
        do_send(&left, i, 0);
        await_readable(b, i);
        do_recv(&right, i, 0);
        do_send(&right, i * 2, 0);
        await_readable(a, i * 2);
        do_recv(&left, i * 2, 0);
    }
}

static void blocking(struct pair *p)
{
    (void)p;
    for (int family = V4; family <= V6; family++) {
        int listener = make_listener((enum family)family, &address, &len);
        int client = tcp_socket(0);
        CHECK_EQ(connect_to(client), 0); /* nobody is in accept() */
        CHECK_ERRNO(connect_to(client), EISCONN);
        int server = accept(listener, NULL, NULL);
        CHECK(server >= 0);
        talk(client, server);
        CHECK_ERRNO(connect_to(client), EISCONN);
        CHECK_ERRNO(connect_to(server), EISCONN);
        close(client), close(server), close(listener);
    }
}

/* After EINPROGRESS and success the second connect() says 0, once, and from then
 * on EISCONN. */
static void nonblocking(struct pair *p)
{
    (void)p;
    int listener = make_listener(V4, &address, &len);
    int client = tcp_socket(SOCK_NONBLOCK);
    CHECK_ERRNO(connect_to(client), EINPROGRESS);
    CHECK_EQ(poll_once(client, POLLOUT, HANG_MS), POLLOUT);
    CHECK_EQ(get_int(client, SOL_SOCKET, SO_ERROR), 0);
    CHECK_EQ(connect_to(client), 0);
    CHECK_ERRNO(connect_to(client), EISCONN);
    CHECK_ERRNO(connect_to(client), EISCONN);
    CHECK_MASK(client, POLLOUT);
    int server = accept(listener, NULL, NULL);
    talk(client, server);
    CHECK_ERRNO(connect_to(client), EISCONN);
    close(client), close(server), close(listener);
}

/* Data may be sent before the other program accepts, and is there when it does. */
static void data_before_accept(struct pair *p)
{
    (void)p;
    int listener = make_listener(V4, &address, &len);
    int client = tcp_socket(0);
    CHECK_EQ(connect_to(client), 0);
    struct end left = {.fd = client};
    for (int i = 0; i < 20; i++)
        do_send(&left, 100, 0);
    CHECK_EQ(do_recv_once(&left, 10, MSG_DONTWAIT), -1);
    int server = accept(listener, NULL, NULL);
    struct end right = {.fd = server};
    CHECK_EQ(do_recv(&right, 2000, 0), 2000);
    close(client), close(server), close(listener);
}

/* … even if the client is gone by then. */
static void client_closed_before_accept(struct pair *p)
{
    (void)p;
    int listener = make_listener(V4, &address, &len);
    int client = tcp_socket(0);
    CHECK_EQ(connect_to(client), 0);
    CHECK_EQ(send(client, "farewell", 8, 0), 8);
    CHECK_EQ(close(client), 0);
    int server = accept(listener, NULL, NULL);
    CHECK_EQ(recv(server, buffer, 100, 0), 8);
    CHECK_EQ(recv(server, buffer, 100, 0), 0);
    close(server), close(listener);
}

static void server_speaks_first(struct pair *p)
{
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(peer_do(p, do_send, 100, 0), 100);
        CHECK_EQ(do_recv(&p->self, 100, 0), 100);
    }
    do_send(&p->self, 5, 0);
    CHECK_EQ(peer_do(p, do_recv, 5, 0), 5);
}

/* Only one side ever speaks. */
static void only_one_side_speaks(struct pair *p)
{
    for (int i = 1; i < 60; i++) {
        do_send(&p->self, i * 10, 0);
        CHECK_EQ(peer_do(p, do_recv, i * 10, 0), i * 10);
    }
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, MSG_DONTWAIT), EAGAIN);
}

/* Both sides speak at the same time. */
static long do_send_then_recv(struct end *end, long bytes, long rounds)
{
    while (rounds-- > 0)
        if (do_send(end, bytes, 0) < 0 || do_recv(end, bytes, 0) < 0)
            return -1;
    return 0;
}

static void both_speak_at_once(struct pair *p)
{
    peer_start(p, 0, do_send_then_recv, 333, 50);
    CHECK_EQ(do_send_then_recv(&p->self, 333, 50), 0);
    CHECK_EQ(peer_finish(p), 0);
}

/* ---- refused --------------------------------------------------------------------- */

static void free_port(void)
{
    int listener = make_listener(V4, &address, &len);
    close(listener);
}

static void refused_blocking(struct pair *p)
{
    (void)p;
    free_port();
    int fd = tcp_socket(0);
    CHECK_ERRNO(connect_to(fd), ECONNREFUSED);
    /* connect() has reported it, and the socket is as new. */
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_ERROR), 0);
    CHECK_MASK(fd, POLLOUT | POLLHUP);
    CHECK_ERRNO(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_ERRNO(recv(fd, buffer, 1, 0), ENOTCONN);
    /* The socket may try again. */
    int listener = make_listener(V4, &address, &len);
    CHECK_EQ(connect_to(fd), 0);
    int server = accept(listener, NULL, NULL);
    talk(fd, server);
    close(fd), close(server), close(listener);
}

static void refused_nonblocking(struct pair *p)
{
    (void)p;
    free_port();
    int fd = tcp_socket(SOCK_NONBLOCK);
    CHECK_ERRNO(connect_to(fd), EINPROGRESS);
    CHECK_MASK(fd, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_ERROR), 0);
    CHECK_MASK(fd, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    CHECK_ERRNO(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(recv(fd, buffer, 1, 0), 0);
    close(fd);
}

/* Whoever looks first gets the error: connect(), recv() or send(). */
static void refused_is_reported_once(struct pair *p)
{
    (void)p;
    for (int way = 0; way < 3; way++) {
        free_port();
        int fd = tcp_socket(SOCK_NONBLOCK);
        CHECK_ERRNO(connect_to(fd), EINPROGRESS);
        CHECK_EQ(poll_once(fd, POLLOUT, HANG_MS) & POLLERR, POLLERR);
        if (way == 0)
            CHECK_ERRNO(connect_to(fd), ECONNREFUSED);
        else if (way == 1)
            CHECK_ERRNO(recv(fd, buffer, 1, 0), ECONNREFUSED);
        else
            CHECK_ERRNO(send(fd, "x", 1, MSG_NOSIGNAL), ECONNREFUSED);
        CHECK_EQ(get_int(fd, SOL_SOCKET, SO_ERROR), 0);
        close(fd);
    }
}

/* ---- not connected --------------------------------------------------------------- */

static void unconnected(struct pair *p)
{
    (void)p;
    address.ss_family = AF_INET;
    int fd = tcp_socket(0);
    CHECK_MASK(fd, POLLOUT | POLLHUP);
    CHECK_ERRNO(recv(fd, buffer, 10, 0), ENOTCONN);
    CHECK_ERRNO(read(fd, buffer, 10), ENOTCONN);
    CHECK_ERRNO(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_ERRNO(shutdown(fd, SHUT_WR), ENOTCONN);
    CHECK_ERRNO(getpeername(fd, (struct sockaddr *)buffer, &(socklen_t){sizeof buffer}), ENOTCONN);
    CHECK_EQ(get_int(fd, SOL_SOCKET, SO_ERROR), 0);
    close(fd);
}

/* With the listener's queue full the kernel lets further attempts wait: neither
 * connected nor refused. */
static void connecting(struct pair *p)
{
    (void)p;
    int listener = make_listener(V4, &address, &len), clients[20], count = 0;
    CHECK_EQ(listen(listener, 0), 0);
    bool waiting = false;
    while (!waiting && count < 20) {
        int fd = clients[count++] = tcp_socket(SOCK_NONBLOCK);
        CHECK_ERRNO(connect_to(fd), EINPROGRESS);
        waiting = poll_once(fd, POLLOUT, 10) == 0;
    }
    if (CHECK(waiting)) {
        int fd = clients[count - 1];
        CHECK_EQ(poll_once(fd, POLLIN | POLLPRI | POLLOUT | POLLRDHUP, 0), 0);
        CHECK_ERRNO(recv(fd, buffer, 10, 0), EAGAIN);
        CHECK_ERRNO(send(fd, "x", 1, MSG_NOSIGNAL), EAGAIN);
        CHECK_ERRNO(connect_to(fd), EALREADY);
        CHECK_EQ(get_int(fd, SOL_SOCKET, SO_ERROR), 0);
    }
    while (count > 0)
        close(clients[--count]);
    close(listener);
}

static void listening(struct pair *p)
{
    (void)p;
    int listener = make_listener(V4, &address, &len);
    CHECK_MASK(listener, 0);
    CHECK_EQ(get_int(listener, SOL_SOCKET, SO_ACCEPTCONN), 1);
    CHECK_ERRNO(recv(listener, buffer, 10, 0), ENOTCONN);
    CHECK_ERRNO(send(listener, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_ERRNO(connect_to(listener), EISCONN);
    int client = tcp_socket(0);
    CHECK_EQ(connect_to(client), 0);
    CHECK_MASK(listener, POLLIN);
    /* shutdown() ends the listening; who waits there is refused. */
    CHECK_EQ(shutdown(listener, SHUT_RD), 0);
    CHECK_MASK(listener, POLLOUT | POLLHUP);
    CHECK_ERRNO(accept(listener, NULL, NULL), EINVAL);
    close(client), close(listener);
}

/* A socket that connects to its own address gets itself (simultaneous open), and
 * works as an echo in one thread. */
static void self_connect(struct pair *p)
{
    (void)p;
    address.ss_family = AF_INET;
    int fd = tcp_socket(0);
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t own_len = sizeof own;
    CHECK_EQ(bind(fd, (struct sockaddr *)&own, own_len), 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&own, &own_len), 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&own, own_len), 0);
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    struct end both = {.fd = fd};
    for (int i = 1; i < 20; i++) {
        CHECK_EQ(do_send(&both, i * 50, 0), i * 50);
        await_readable(fd, i * 50);
        CHECK_EQ(do_recv(&both, i * 50, 0), i * 50);
    }
    CHECK_ERRNO(recv(fd, buffer, 1, MSG_DONTWAIT), EAGAIN);
    do_send(&both, 10, 0);
    CHECK_EQ(shutdown(fd, SHUT_WR), 0);
    CHECK_EQ(do_recv(&both, 10, 0), 10);
    CHECK_EQ(recv(fd, buffer, 1, 0), 0);
    close(fd);
}

/* connect() to AF_UNSPEC breaks the connection; both ends see a reset, once. */
static void disconnect(struct pair *p)
{
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    CHECK_EQ(connect(p->self.fd, &nowhere, sizeof nowhere), 0);
    CHECK_ERRNO(recv(p->self.fd, buffer, 1, 0), ECONNRESET);
    CHECK_ERRNO(recv(p->self.fd, buffer, 1, 0), ENOTCONN);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLOUT | POLLRDHUP, HANG_MS) & (POLLERR | POLLHUP),
             POLLERR | POLLHUP);
    CHECK_EQ(peer_do(p, do_recv_once, 10, 0), -1);
    CHECK_EQ(errno, ECONNRESET);
    CHECK_EQ(peer_do(p, do_recv_once, 10, 0), 0);
}

/* An address that is not there is an error, before and after connect. */
static void bad_address(struct pair *p)
{
    long page = sysconf(_SC_PAGESIZE);
    int listener = make_listener(V4, &address, &len);
    char *pages = mmap(NULL, 2 * (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                       -1, 0);
    CHECK(pages != MAP_FAILED);
    CHECK_EQ(mprotect(pages + page, (size_t)page, PROT_NONE), 0);
    struct sockaddr *absent = (struct sockaddr *)(pages + page);
    struct sockaddr *half = (struct sockaddr *)(pages + page - sizeof(sa_family_t));
    half->sa_family = AF_INET;
    int fresh = socket(AF_INET, SOCK_STREAM, 0);
    for (int i = 0; i < 2; i++) {
        int fd = i == 0 ? fresh : p->self.fd;
        CHECK_ERRNO(connect(fd, absent, len), EFAULT);
        CHECK_ERRNO(connect(fd, half, len), EFAULT);
        CHECK_ERRNO(connect(fd, NULL, len), EFAULT);
        CHECK_ERRNO(connect(fd, absent, UINT_MAX), EINVAL);
    }
    /* Nothing has happened to either. */
    CHECK_EQ(connect_to(fresh), 0);
    int accepted = accept(listener, NULL, NULL);
    talk(fresh, accepted);
    CHECK_EQ(do_send(&p->self, 10, 0), 10);
    CHECK_EQ(peer_do(p, do_recv, 10, 0), 10);
    close(fresh), close(accepted), close(listener);
    munmap(pages, 2 * (size_t)page);
}

/* A socket that was never connected has nothing to lose, and connects as ever afterwards. */
static void disconnect_first(struct pair *p)
{
    (void)p;
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    int listener = make_listener(V4, &address, &len);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(connect(fd, &nowhere, sizeof nowhere), 0);
    CHECK_ERRNO(recv(fd, buffer, 1, 0), ENOTCONN);
    CHECK_EQ(connect_to(fd), 0);
    int accepted = accept(listener, NULL, NULL);
    talk(fd, accepted);
    close(fd), close(accepted), close(listener);
}

/* Many connections at once do not get mixed up. */
static void many_at_once(struct pair *p)
{
    (void)p;
    enum { COUNT = 100 };
    static int clients[COUNT], servers[COUNT];
    int listener = make_listener(V4, &address, &len);
    CHECK_EQ(listen(listener, COUNT), 0);
    for (int i = 0; i < COUNT; i++) {
        clients[i] = tcp_socket(0);
        CHECK_EQ(connect_to(clients[i]), 0);
        set_int(clients[i], IPPROTO_TCP, TCP_NODELAY, 1);
    }
    for (int i = 0; i < COUNT; i++) {
        servers[i] = accept(listener, NULL, NULL);
        set_int(servers[i], IPPROTO_TCP, TCP_NODELAY, 1);
    }
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < COUNT; i++)
            CHECK_EQ(send(clients[i], (int[]){i, round}, 8, 0), 8);
        for (int i = COUNT - 1; i >= 0; i--) {
            int got[2];
            CHECK_EQ(recv(servers[i], got, 8, MSG_WAITALL), 8);
            CHECK_EQ(got[0], i);
            CHECK_EQ(got[1], round);
            CHECK_EQ(send(servers[i], got, 8, 0), 8);
        }
        for (int i = 0; i < COUNT; i++) {
            int got[2];
            CHECK_EQ(recv(clients[i], got, 8, MSG_WAITALL), 8);
            CHECK_EQ(got[0], i);
            CHECK_EQ(got[1], round);
        }
    }
    for (int i = 0; i < COUNT; i++)
        close(clients[i]), close(servers[i]);
    close(listener);
}

/* Opening and closing again and again: numbers, ports and slots are reused, and a
 * new connection never sees an old one's bytes. */
static void again_and_again(struct pair *p)
{
    (void)p;
    int listener = make_listener(V4, &address, &len);
    for (int round = 0; round < 100; round++) {
        int client = tcp_socket(0);
        CHECK_EQ(connect_to(client), 0);
        int server = accept(listener, NULL, NULL);
        if (round % 2)
            talk(client, server);
        /* What is left unread here must not show up there. */
        send(client, "left over", 9, 0);
        if (round % 3 == 0) {
            await_readable(server, 9);
            CHECK_EQ(recv(server, buffer, 100, 0), 9);
        }
        close(round % 4 ? client : server);
        close(round % 4 ? server : client);
    }
    close(listener);
}

static const struct test tests[] = {
    {"blocking", blocking, ALONE},
    {"nonblocking", nonblocking, ALONE},
    {"data_before_accept", data_before_accept, ALONE},
    {"client_closed_before_accept", client_closed_before_accept, ALONE},
    {"server_speaks_first", server_speaks_first, FAMILIES},
    {"only_one_side_speaks", only_one_side_speaks, 0},
    {"both_speak_at_once", both_speak_at_once, ACTIVE_PEER},
    {"refused_blocking", refused_blocking, ALONE},
    {"refused_nonblocking", refused_nonblocking, ALONE},
    {"refused_is_reported_once", refused_is_reported_once, ALONE},
    {"unconnected", unconnected, ALONE},
    {"connecting", connecting, ALONE},
    {"listening", listening, ALONE},
    {"self_connect", self_connect, ALONE},
    {"disconnect", disconnect, 0},
    {"bad_address", bad_address, 0},
    {"disconnect_first", disconnect_first, ALONE},
    {"many_at_once", many_at_once, ALONE},
    {"again_and_again", again_and_again, ALONE},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
