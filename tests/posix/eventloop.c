/* eventloop.c: what event loops do with a connection from its first moment on, when nothing
 * is decided about it yet: it may end at once, or live on and move in the middle. The law is
 * epoll(7), epoll_ctl(2). */
#include "support.h"

/* What a set was told of a connection before its bytes have moved holds afterwards. */
static void told_before_the_first_message(struct pair *p)
{
    int set = epoll_create1(0), other = epoll_create1(0);
    CHECK_ERRNO(epoll_mod(set, p->self.fd, EPOLLIN, 1), ENOENT);
    CHECK_ERRNO(epoll_ctl(set, EPOLL_CTL_DEL, p->self.fd, NULL), ENOENT);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLOUT, 1), 0);
    CHECK_ERRNO(epoll_add(set, p->self.fd, EPOLLIN, 2), EEXIST);
    CHECK_ERRNO(epoll_mod(other, p->self.fd, EPOLLIN, 3), ENOENT);
    CHECK_EQ(epoll_mod(set, p->self.fd, EPOLLIN, WORD), 0);
    CHECK_SILENT(set);
    pair_warm(p);
    CHECK_SILENT(set);
    arrive(p, 3);
    CHECK_EQ(one_event(set, WORD, HANG_MS), EPOLLIN);
    CHECK_SILENT(other);
    CHECK_ERRNO(epoll_add(set, p->self.fd, EPOLLIN, 2), EEXIST);
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_DEL, p->self.fd, NULL), 0);
    CHECK_SILENT(set);
    CHECK_EQ(epoll_add(other, p->self.fd, EPOLLIN, 4), 0);
    CHECK_EQ(one_event(other, 4, HANG_MS), EPOLLIN);
    close(set);
    close(other);
}

/* The same with a second set, of which the first knows nothing. */
static void two_sets_before_the_first_message(struct pair *p)
{
    int first = epoll_create1(0), second = epoll_create1(0);
    CHECK_EQ(epoll_add(first, p->self.fd, EPOLLIN, 1), 0);
    CHECK_EQ(epoll_add(second, p->self.fd, EPOLLIN, 2), 0);
    pair_warm(p);
    arrive(p, 1);
    CHECK_EQ(one_event(first, 1, HANG_MS), EPOLLIN);
    CHECK_EQ(one_event(second, 2, HANG_MS), EPOLLIN);
    close(first);
    CHECK_EQ(one_event(second, 2, 0), EPOLLIN);
    close(second);
}

/* A set is closed, the next has its number, and knows nothing of the connection. */
static void set_closed_before_the_first_message(struct pair *p)
{
    int set = epoll_create1(0);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN | EPOLLOUT, 1), 0);
    close(set);
    int next = epoll_create1(0);
    CHECK_EQ(next, set);
    pair_warm(p);
    arrive(p, 1);
    CHECK_SILENT(next);
    CHECK_ERRNO(epoll_mod(next, p->self.fd, EPOLLIN, 2), ENOENT);
    CHECK_EQ(epoll_add(next, p->self.fd, EPOLLIN, 2), 0);
    CHECK_EQ(one_event(next, 2, HANG_MS), EPOLLIN);
    close(next);
}

/* ---- a server -------------------------------------------------------------------- */

/* How a server asks for events. */
enum habit {
    LEVEL,     /* once, for input */
    EDGE,      /* once, for both directions, edge-triggered */
    REGISTERS, /* deletes and adds the descriptor around every answer */
    MODIFIES,  /* asks for output when it has an answer, and for input afterwards */
    HABITS,
};

enum { CONNECTIONS = 24, MOST_ROUNDS = 60 };

struct server {
    int listener, set;
    enum habit habit;
    struct end ends[1024]; /* by descriptor */
    long owed[1024];       /* bytes to be echoed */
    int closed;
};

static const uint32_t wanted[HABITS] = {EPOLLIN, EPOLLIN | EPOLLOUT | EPOLLET, EPOLLIN, EPOLLIN};

/* The length of a message: by its connection and number, so that both ends know. */
static size_t length_of(int connection, int round)
{
    return (size_t)(connection * 131 + round * 17) % 3000 + 1;
}

static void accept_all(struct server *s)
{
    int fd;
    while ((fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        s->ends[fd] = (struct end){.fd = fd, .send_salt = 2, .receive_salt = 1};
        s->owed[fd] = 0;
        CHECK_EQ(epoll_add(s->set, fd, wanted[s->habit], (uint64_t)fd), 0);
    }
    CHECK(errno == EAGAIN);
}

/* Takes in what there is. False: the connection has ended. */
static bool take_in(struct server *s, int fd)
{
    char buffer[1000];
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) {
        CHECK(take_bytes(&s->ends[fd], buffer, (size_t)n));
        s->owed[fd] += n;
    }
    CHECK(n == 0 || errno == EAGAIN);
    return n != 0;
}

/* In one piece: parts would wait for each other's acknowledgement. */
static void echo(struct server *s, int fd)
{
    size_t n = (size_t)s->owed[fd];
    if (n > 0)
        CHECK_EQ(send(fd, next_bytes(&s->ends[fd], n), n, MSG_NOSIGNAL), n);
    s->owed[fd] = 0;
}

/* What is to be asked for next, as the habit has it. */
static void ask(struct server *s, int fd, bool has_answered)
{
    if (s->habit == REGISTERS && has_answered) {
        CHECK_EQ(epoll_ctl(s->set, EPOLL_CTL_DEL, fd, NULL), 0);
        CHECK_EQ(epoll_add(s->set, fd, EPOLLIN, (uint64_t)fd), 0);
    }
    if (s->habit == MODIFIES)
        CHECK_EQ(epoll_mod(s->set, fd, s->owed[fd] ? EPOLLOUT : EPOLLIN, (uint64_t)fd), 0);
}

static void handle(struct server *s, int fd, uint32_t events)
{
    if ((events & EPOLLIN) && !take_in(s, fd)) {
        close(fd);
        s->closed++;
        return;
    }
    bool may_answer = s->habit != MODIFIES || (events & EPOLLOUT);
    bool has_answered = may_answer && s->owed[fd] > 0;
    if (may_answer)
        echo(s, fd);
    ask(s, fd, has_answered);
}

static void *serve(void *at)
{
    struct server *s = at;
    while (s->closed < CONNECTIONS) {
        struct epoll_event events[8];
        int n = epoll_wait(s->set, events, 8, HANG_MS);
        if (!CHECK(n > 0))
            break;
        for (int i = 0; i < n; i++) {
            int fd = (int)events[i].data.u64;
            if (fd == s->listener)
                accept_all(s);
            else
                handle(s, fd, events[i].events);
        }
    }
    return NULL;
}

/* Connections of one message, of some, and of many, which grow beside each other. */
static void serves(struct pair *p)
{
    (void)p;
    for (int habit = LEVEL; habit < HABITS; habit++) {
        static struct server server;
        server = (struct server){.habit = (enum habit)habit, .set = epoll_create1(EPOLL_CLOEXEC)};
        struct sockaddr_storage address;
        socklen_t len = sizeof address;
        server.listener = make_listener(V4, &address, &len);
        CHECK_EQ(fcntl(server.listener, F_SETFL, O_NONBLOCK), 0);
        CHECK_EQ(epoll_add(server.set, server.listener, EPOLLIN, (uint64_t)server.listener), 0);
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, serve, &server), 0);

        struct end clients[CONNECTIONS];
        for (int i = 0; i < CONNECTIONS; i++) {
            int fd = socket(address.ss_family, SOCK_STREAM, 0);
            CHECK_EQ(connect(fd, (struct sockaddr *)&address, len), 0);
            clients[i] = (struct end){.fd = fd, .send_salt = 1, .receive_salt = 2};
        }
        for (int round = 0; round < MOST_ROUNDS; round++)
            for (int i = 0; i < CONNECTIONS; i++) {
                int rounds = i % 3 == 0 ? 1 : i % 3 == 1 ? 12 : MOST_ROUNDS;
                if (round < rounds) {
                    do_send(&clients[i], (long)length_of(i, round), 0);
                    do_recv(&clients[i], (long)length_of(i, round), 0);
                }
                if (round == rounds - 1)
                    CHECK_EQ(close(clients[i].fd), 0);
            }
        pthread_join(thread, NULL);
        CHECK_EQ(server.closed, CONNECTIONS);
        close(server.listener);
        close(server.set);
    }
}

/* ---- two threads ----------------------------------------------------------------- */

struct changes {
    int set, fd;
    volatile bool done;
};

/* Adds, modifies and deletes until told to stop; the descriptor is in the set afterwards. */
static void *change(void *at)
{
    struct changes *c = at;
    while (!c->done) {
        CHECK_EQ(epoll_add(c->set, c->fd, EPOLLIN, 1), 0);
        CHECK_EQ(epoll_mod(c->set, c->fd, EPOLLIN | EPOLLRDHUP, 2), 0);
        CHECK_EQ(epoll_ctl(c->set, EPOLL_CTL_DEL, c->fd, NULL), 0);
    }
    CHECK_EQ(epoll_add(c->set, c->fd, EPOLLIN, WORD), 0);
    return NULL;
}

/* One thread asks for events while another sends: whenever the connection moves, what was
 * asked last holds. */
static void changed_while_it_moves(struct pair *p)
{
    struct changes changes = {.set = epoll_create1(0), .fd = p->self.fd};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, change, &changes), 0);
    for (int i = 0; i < 40; i++) {
        do_send(&p->self, 1 + i, 0);
        peer_do(p, do_recv, 1 + i, 0);
    }
    changes.done = true;
    pthread_join(thread, NULL);
    arrive(p, 5);
    CHECK_EQ(one_event(changes.set, WORD, HANG_MS), EPOLLIN);
    do_recv(&p->self, 5, 0);
    CHECK_SILENT(changes.set);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(one_event(changes.set, WORD, HANG_MS), EPOLLIN);
    close(changes.set);
}

/* O_NONBLOCK that was set at the first moment, by either call, holds to the last. */
static void nonblocking_from_the_first_moment(struct pair *p)
{
    int on = 1;
    CHECK_EQ(ioctl(p->self.fd, FIONBIO, &on), 0);
    CHECK_ERRNO(recv(p->self.fd, &on, 1, 0), EAGAIN);
    for (int i = 0; i < 40; i++) {
        peer_do(p, do_send, 3, 0);
        await_readable(p->self.fd, 3);
        do_recv(&p->self, 3, 0);
        CHECK_ERRNO(recv(p->self.fd, &on, 1, 0), EAGAIN);
    }
    CHECK_EQ(fcntl(p->self.fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    CHECK_EQ(fcntl(p->self.fd, F_SETFL, fcntl(p->self.fd, F_GETFL) & ~O_NONBLOCK), 0);
    peer_do(p, do_send, 3, 0);
    do_recv(&p->self, 3, 0);
}

static const struct test tests[] = {
    {"told_before_the_first_message", told_before_the_first_message, FAMILIES},
    {"two_sets_before_the_first_message", two_sets_before_the_first_message, 0},
    {"set_closed_before_the_first_message", set_closed_before_the_first_message, 0},
    {"serves", serves, ALONE},
    {"changed_while_it_moves", changed_while_it_moves, 0},
    {"nonblocking_from_the_first_moment", nonblocking_from_the_first_moment, 0},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
