/*
 * rights.c: a connection is passed to another process by SCM_RIGHTS. Whoever has the
 * descriptor continues the stream; who passed it may close its own, or end.
 */
#include "support.h"

static char buffer[2000];

static pid_t start_child(void)
{
    fflush(NULL);
    return fork();
}

#define IN_CHILD(...)                \
    ({                               \
        pid_t child_ = start_child(); \
        if (child_ == 0) {           \
            __VA_ARGS__;             \
            _exit(0);                \
        }                            \
        child_;                      \
    })

/* Passes up to three descriptors beside some bytes. */
static void pass(int over, const int *fds, int count, const char *text)
{
    char control[CMSG_SPACE(3 * sizeof(int))] = {0};
    struct iovec part = {(void *)text, strlen(text)};
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = CMSG_SPACE(count * sizeof(int)),
    };
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, count * sizeof(int));
    CHECK_EQ(sendmsg(over, &message, MSG_NOSIGNAL), (long)strlen(text));
    CHECK_EQ(memcmp(CMSG_DATA(header), fds, count * sizeof(int)), 0);
}

static void pass_one(int over, int fd)
{
    pass(over, &fd, 1, "here");
}

/* Exactly `count` descriptors come, and exactly these bytes. */
static void take(int over, int *fds, int count, const char *text, int flags)
{
    char control[CMSG_SPACE(3 * sizeof(int))];
    struct iovec part = {buffer, sizeof buffer};
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = CMSG_SPACE(count * sizeof(int)),
    };
    CHECK_EQ(recvmsg(over, &message, flags), (long)strlen(text));
    CHECK_EQ(memcmp(buffer, text, strlen(text)), 0);
    CHECK_EQ(message.msg_flags & MSG_CTRUNC, 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!CHECK(header != NULL))
        return;
    CHECK_EQ(header->cmsg_type, SCM_RIGHTS);
    CHECK_EQ(header->cmsg_len, (long)CMSG_LEN(count * sizeof(int)));
    memcpy(fds, CMSG_DATA(header), count * sizeof(int));
}

static int take_one(int over)
{
    int fd = -1;
    take(over, &fd, 1, "here", 0);
    return fd;
}

static void ask(struct pair *p, long len, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        CHECK_EQ(peer_do(p, do_send, len, 0), len);
        CHECK_EQ(peer_do(p, do_recv, len, 0), len);
    }
}

/* A process that has nothing of the connection: it was forked before. It takes the
 * connection and goes on from there. */
static long do_take(struct end *end, long over, long positions)
{
    end->fd = take_one((int)over);
    end->sent = end->received = positions;
    return CHECK(end->fd >= 0) ? 0 : -1;
}

struct stranger {
    int over; /* to it */
    pid_t child;
};

/* Makes a pair, but forks the stranger before it. */
static struct stranger with_stranger(struct pair *p, struct setting setting, unsigned salt,
                                     peer_action *action, long a, long b, long positions)
{
    struct stranger stranger;
    int ways[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ways), 0);
    stranger.over = ways[0];
    stranger.child = IN_CHILD({
        close(ways[0]);
        struct end end = {.send_salt = salt, .receive_salt = salt + 5};
        if (do_take(&end, ways[1], positions) == 0)
            CHECK_EQ(action(&end, a, b), 0);
    });
    close(ways[1]);
    CHECK(pair_open(p, setting));
    return stranger;
}

static const struct setting settings[] = {
    {.place = OTHER_PROCESS, .warm = true, .client = true},
    {.place = OTHER_PROCESS, .warm = true, .client = false},
};

#define WARMED 8

#define SALT(setting) ((setting).client ? 17 : 91)

static long echo_to_the_end(struct end *end, long len, long rounds)
{
    CHECK_EQ(do_echo(end, len, rounds), 0);
    CHECK_EQ(do_recv_eof(end, 0, 0), 0);
    return 0;
}

static void to_a_stranger(struct pair *unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        struct pair p;
        struct stranger stranger =
            with_stranger(&p, settings[i], SALT(settings[i]), echo_to_the_end, 70, 15, WARMED);
        pass_one(stranger.over, p.self.fd);
        self_close(&p);
        ask(&p, 70, 15);
        peer_do(&p, do_shutdown, SHUT_WR, 0);
        CHECK_EQ(await_child(stranger.child), 0);
        CHECK_EQ(peer_do(&p, do_recv_eof, 0, 0), 0);
        close(stranger.over);
        pair_close(&p);
    }
}

static long echo_late(struct end *end, long len, long rounds)
{
    CHECK_EQ(do_recv(end, len, 0), len);
    CHECK_EQ(do_send(end, len, 0), len);
    (void)rounds;
    return 0;
}

static long take_the_rest(struct end *end, long len, long b)
{
    (void)b;
    CHECK_EQ(do_recv(end, len, 0), len);
    CHECK_EQ(do_recv_eof(end, 0, 0), 0);
    return 0;
}

/* Bytes lie unread, and the peer has closed, when it arrives. */
static void with_bytes_unread(struct pair *unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        struct pair p;
        struct stranger stranger =
            with_stranger(&p, settings[i], SALT(settings[i]), take_the_rest, 9000, 0, WARMED);
        peer_do(&p, do_send, 9000, 0);
        peer_do(&p, do_close, 0, 0);
        pass_one(stranger.over, p.self.fd);
        self_close(&p);
        CHECK_EQ(await_child(stranger.child), 0);
        close(stranger.over);
        pair_close(&p);
    }
}

/* Sender and receiver by turns, one stream. */
static void both_go_on(struct pair *unused)
{
    (void)unused;
    struct pair p;
    struct stranger stranger =
        with_stranger(&p, settings[0], SALT(settings[0]), echo_late, 100, 0, WARMED);
    pass_one(stranger.over, p.self.fd);
    ask(&p, 100, 1);
    CHECK_EQ(await_child(stranger.child), 0);
    CHECK_EQ(peer_do(&p, do_poll, POLLIN | POLLRDHUP, 0), 0);
    p.self.sent += 100;
    p.self.received += 100;
    for (int i = 0; i < 5; i++) {
        peer_do(&p, do_send, 50, 0);
        CHECK_EQ(do_recv(&p.self, 50, 0), 50);
        CHECK_EQ(do_send(&p.self, 50, 0), 50);
        CHECK_EQ(peer_do(&p, do_recv, 50, 0), 50);
    }
    close(stranger.over);
    pair_close(&p);
}

/* In one process: it comes back under another number. */
static void to_itself(struct pair *p)
{
    int ways[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ways), 0);
    pass_one(ways[0], p->self.fd);
    int again = take_one(ways[1]);
    CHECK(again != p->self.fd);
    struct end end = p->self;
    end.fd = again;
    peer_do(p, do_send, 100, 0);
    CHECK_EQ(do_recv(&end, 60, 0), 60);
    p->self.received += 60;
    CHECK_EQ(do_recv(&p->self, 40, 0), 40);
    close(again);
    CHECK_EQ(do_send(&p->self, 100, 0), 100);
    CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
    close(ways[0]);
    close(ways[1]);
}

/* … after the only other descriptor was closed: it lived on its way. */
static void only_on_its_way(struct pair *p)
{
    int ways[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ways), 0);
    for (int i = 0; i < 3; i++) {
        pass_one(ways[0], p->self.fd);
        CHECK_EQ(close(p->self.fd), 0);
        CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLRDHUP, 0), 0);
        CHECK_EQ(peer_do(p, do_send, 100, 0), 100);
        p->self.fd = take_one(ways[1]);
        CHECK_EQ(do_recv(&p->self, 100, 0), 100);
        CHECK_EQ(do_send(&p->self, 100, 0), 100);
        CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
    }
    close(ways[0]);
    close(ways[1]);
}

/* Never taken: it ends when the way is closed. */
static void lost_on_its_way(struct pair *p)
{
    int ways[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ways), 0);
    pass_one(ways[0], p->self.fd);
    self_close(p);
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLRDHUP, 0), 0);
    close(ways[0]);
    close(ways[1]);
    CHECK_EQ(peer_do(p, do_poll, POLLIN, HANG_MS) & POLLIN, POLLIN);
}

/* Among others, with close-on-exec asked for. */
static void among_others(struct pair *p)
{
    int ways[2], others[2], fds[3];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ways), 0);
    CHECK_EQ(pipe(others), 0);
    int sent[3] = {others[0], p->self.fd, others[1]};
    pass(ways[0], sent, 3, "three");
    take(ways[1], fds, 3, "three", MSG_CMSG_CLOEXEC);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
    CHECK_EQ(write(fds[2], "x", 1), 1);
    CHECK_EQ(read(fds[0], buffer, 10), 1);
    struct end end = p->self;
    end.fd = fds[1];
    CHECK_EQ(do_send(&end, 30, 0), 30);
    p->self.sent += 30;
    CHECK_EQ(peer_do(p, do_recv, 30, 0), 30);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    close(others[0]);
    close(others[1]);
    close(ways[0]);
    close(ways[1]);
}

/* To a child of the sender, which has it by fork as well. */
static void to_a_child(struct pair *p)
{
    int ways[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ways), 0);
    pid_t child = IN_CHILD({
        close(ways[0]);
        close(p->self.fd);
        struct end end = p->self;
        end.fd = take_one(ways[1]);
        CHECK_EQ(do_echo(&end, 40, 10), 0);
    });
    sleep_ms(20);
    pass_one(ways[0], p->self.fd);
    self_close(p);
    ask(p, 40, 10);
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    close(ways[0]);
    close(ways[1]);
}

/* From hand to hand, each ending at once. */
static void through_many_hands(struct pair *p)
{
    enum { HANDS = 5 };
    struct end *end = shared_scratch();
    int ways[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ways), 0);
    *end = p->self;
    pass_one(ways[0], p->self.fd);
    self_close(p);
    for (int i = 0; i < HANDS; i++) {
        pid_t child = IN_CHILD({
            end->fd = take_one(ways[1]);
            CHECK_EQ(do_echo(end, 40, 3), 0);
            pass_one(ways[0], end->fd);
        });
        ask(p, 40, 3);
        CHECK_EQ(await_child(child), 0);
    }
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLRDHUP, 0), 0);
    close(take_one(ways[1]));
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    close(ways[0]);
    close(ways[1]);
}

static int lines_with(const char *path, const char *text)
{
    int count = 0;
    char line[400];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        count += strstr(line, text) != NULL;
    if (file)
        fclose(file);
    return count;
}

/* A worker that gets many connections, one after the other, each with another peer
 * process: nothing of those that are over stays with it. */
static void one_after_the_other(struct pair *unused)
{
    (void)unused;
    enum { CONNECTIONS = 12 };
    int ways[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ways), 0);
    pid_t worker = IN_CHILD({
        close(ways[0]);
        int before = lines_with("/proc/self/maps", "sidestep-slab");
        for (int i = 0; i < CONNECTIONS; i++) {
            struct end end = {.send_salt = 17, .receive_salt = 22};
            if (do_take(&end, ways[1], WARMED) < 0)
                break;
            CHECK_EQ(do_echo(&end, 40, 3), 0);
            CHECK_EQ(do_recv_eof(&end, 0, 0), 0);
            close(end.fd);
        }
        CHECK_BETWEEN(lines_with("/proc/self/maps", "sidestep-slab"), before, before + 2);
    });
    close(ways[1]);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct pair p;
        CHECK(pair_open(&p, settings[0]));
        pass_one(ways[0], p.self.fd);
        self_close(&p);
        ask(&p, 40, 3);
        pair_close(&p);
    }
    CHECK_EQ(await_child(worker), 0);
    close(ways[0]);
}

/* ---- before its first byte ------------------------------------------------------- */

static const struct setting fresh = {.place = OTHER_PROCESS, .warm = false, .client = false};

/* Echoes, and then the bytes have left TCP, if there is a library that can do that. */
static long echo_and_move(struct end *end, long len, long rounds)
{
    CHECK_EQ(do_echo(end, len, rounds), 0);
    CHECK_EQ(is_moved(end->fd), getenv("LD_PRELOAD") != NULL);
    return 0;
}

static long echo_by_tcp(struct end *end, long len, long rounds)
{
    CHECK_EQ(do_echo(end, len, rounds), 0);
    CHECK(!is_moved(end->fd));
    return 0;
}

/* One process accepts, another serves. */
static void undecided(struct pair *unused)
{
    (void)unused;
    struct pair p;
    struct stranger stranger =
        with_stranger(&p, fresh, SALT(fresh), echo_and_move, 70, 15, 0);
    CHECK_EQ(fcntl(p.self.fd, F_SETFD, FD_CLOEXEC), 0);
    pass_one(stranger.over, p.self.fd);
    self_close(&p);
    ask(&p, 70, 15);
    CHECK_EQ(await_child(stranger.child), 0);
    CHECK_EQ(peer_do(&p, do_recv_eof, 0, 0), 0);
    close(stranger.over);
    pair_close(&p);
}

/* The one that accepted is slower to close than the other to serve. */
static void undecided_and_closed_late(struct pair *unused)
{
    (void)unused;
    struct pair p;
    struct stranger stranger =
        with_stranger(&p, fresh, SALT(fresh), echo_and_move, 70, 15, 0);
    CHECK_EQ(fcntl(p.self.fd, F_SETFD, FD_CLOEXEC), 0);
    pass_one(stranger.over, p.self.fd);
    ask(&p, 70, 5);
    self_close(&p);
    ask(&p, 70, 10);
    CHECK_EQ(await_child(stranger.child), 0);
    close(stranger.over);
    pair_close(&p);
}

/* Both have it: first one serves, then the other. */
static void undecided_and_kept(struct pair *unused)
{
    (void)unused;
    struct pair p;
    struct stranger stranger = with_stranger(&p, fresh, SALT(fresh), echo_by_tcp, 70, 15, 0);
    CHECK_EQ(fcntl(p.self.fd, F_SETFD, FD_CLOEXEC), 0);
    pass_one(stranger.over, p.self.fd);
    ask(&p, 70, 15);
    CHECK_EQ(await_child(stranger.child), 0);
    p.self.sent = p.self.received = 70 * 15;
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(peer_do(&p, do_send, 70, 0), 70);
        CHECK_EQ(do_recv(&p.self, 70, 0), 70);
        CHECK_EQ(do_send(&p.self, 70, 0), 70);
        CHECK_EQ(peer_do(&p, do_recv, 70, 0), 70);
    }
    close(stranger.over);
    pair_close(&p);
}

/* Two others have it, and nobody knows of both: the second one goes on. */
static void undecided_to_two(struct pair *unused)
{
    (void)unused;
    struct pair p;
    int ways[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ways), 0);
    pid_t second = IN_CHILD({
        close(ways[0]);
        struct end end = {.send_salt = SALT(fresh), .receive_salt = SALT(fresh) + 5};
        if (do_take(&end, ways[1], 70 * 15) == 0) {
            CHECK_EQ(read(ways[1], buffer, 1), 1); /* its turn */
            CHECK_EQ(echo_by_tcp(&end, 70, 10), 0);
        }
    });
    close(ways[1]);
    struct stranger stranger = with_stranger(&p, fresh, SALT(fresh), echo_by_tcp, 70, 15, 0);
    CHECK_EQ(fcntl(p.self.fd, F_SETFD, FD_CLOEXEC), 0);
    pass_one(stranger.over, p.self.fd);
    pass_one(ways[0], p.self.fd);
    self_close(&p);
    ask(&p, 70, 15);
    CHECK_EQ(await_child(stranger.child), 0);
    CHECK_EQ(write(ways[0], "x", 1), 1);
    ask(&p, 70, 10);
    CHECK_EQ(await_child(second), 0);
    CHECK_EQ(peer_do(&p, do_recv_eof, 0, 0), 0);
    close(ways[0]);
    close(stranger.over);
    pair_close(&p);
}

static const struct test tests[] = {
    {"to_a_stranger", to_a_stranger, ALONE},
    {"with_bytes_unread", with_bytes_unread, ALONE},
    {"both_go_on", both_go_on, ALONE},
    {"one_after_the_other", one_after_the_other, ALONE},
    {"undecided", undecided, ALONE},
    {"undecided_and_closed_late", undecided_and_closed_late, ALONE},
    {"undecided_and_kept", undecided_and_kept, ALONE},
    {"undecided_to_two", undecided_to_two, ALONE},
    {"to_itself", to_itself, PROCESS_ONLY},
    {"only_on_its_way", only_on_its_way, PROCESS_ONLY},
    {"lost_on_its_way", lost_on_its_way, PROCESS_ONLY},
    {"among_others", among_others, PROCESS_ONLY},
    {"to_a_child", to_a_child, PROCESS_ONLY | SLOW},
    {"through_many_hands", through_many_hands, PROCESS_ONLY},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
