/*
 * fork.c: a connection in several processes. Parent and child share one socket: one
 * stream position, one end. The peer sees the end when the last of them is gone.
 */
#include "support.h"

#include <sched.h>
#include <spawn.h>
#include <sys/syscall.h>

static char buffer[1000];

/* The script's end lives in shared memory while a child works with it, so that both
 * processes count the same stream positions. They take turns. */
static struct end *shared_end(struct pair *p)
{
    struct end *end = shared_scratch();
    *end = p->self;
    return end;
}

static pid_t start_child(void)
{
    fflush(NULL);
    return fork();
}

#define IN_CHILD(body)               \
    ({                               \
        pid_t child_ = start_child(); \
        if (child_ == 0) {           \
            body;                    \
            _exit(0);                \
        }                            \
        child_;                      \
    })

static void talk(struct pair *p, struct end *end, int rounds)
{
    for (int i = 1; i <= rounds; i++) {
        CHECK_EQ(do_send(end, i * 10, 0), i * 10);
        CHECK_EQ(peer_do(p, do_recv, i * 10, 0), i * 10);
        CHECK_EQ(peer_do(p, do_send, i * 10, 0), i * 10);
        CHECK_EQ(do_recv(end, i * 10, 0), i * 10);
    }
}

static void still_open(struct pair *p)
{
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLRDHUP, 0), 0);
}

static void sees_end(struct pair *p)
{
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* The server's way: the child serves, the parent closes. */
static void child_serves(struct pair *p)
{
    struct end *end = shared_end(p);
    peer_start(p, 10, do_echo, 0, 0); /* nothing: only to be busy */
    peer_finish(p);
    pid_t child = IN_CHILD({
        CHECK_EQ(do_echo(end, 50, 20), 0);
        CHECK_EQ(do_recv_eof(end, 0, 0), 0);
    });
    self_close(p);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(peer_do(p, do_send, 50, 0), 50);
        CHECK_EQ(peer_do(p, do_recv, 50, 0), 50);
    }
    still_open(p);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    sees_end(p);
    CHECK_EQ(await_child(child), 0);
}

/* The parent serves on while a child comes and goes. */
static void child_does_nothing(struct pair *p)
{
    for (int i = 0; i < 3; i++) {
        pid_t child = IN_CHILD(do_close(&p->self, 0, 0));
        CHECK_EQ(await_child(child), 0);
        still_open(p);
        talk(p, &p->self, 3);
    }
    for (int i = 0; i < 3; i++) {
        pid_t child = IN_CHILD((void)0); /* exits without close() */
        CHECK_EQ(await_child(child), 0);
        still_open(p);
        talk(p, &p->self, 3);
    }
    self_close(p);
    sees_end(p);
}

/* First the parent talks, then the child, then the parent again. */
static void by_turns(struct pair *p)
{
    struct end *end = shared_end(p);
    for (int i = 0; i < 4; i++) {
        talk(p, end, 3);
        pid_t child = IN_CHILD({
            /* The child cannot command the peer, so it only sends and takes. */
            CHECK_EQ(do_send(end, 100, 0), 100);
            CHECK_EQ(do_recv(end, 40, 0), 40);
        });
        CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
        CHECK_EQ(peer_do(p, do_send, 100, 0), 100);
        CHECK_EQ(await_child(child), 0);
        CHECK_EQ(do_recv(end, 60, 0), 60); /* what the child left */
    }
}

/* The child writes, the parent reads, at the same time. */
static void child_writes_parent_reads(struct pair *p)
{
    struct end *end = shared_end(p);
    enum { LEN = 300000 };
    peer_start(p, 0, do_echo, LEN, 1);
    pid_t child = IN_CHILD({
        CHECK_EQ(do_send(end, LEN, 0), LEN);
    });
    struct end reader = p->self;
    CHECK_EQ(do_recv(&reader, LEN, 0), LEN);
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(peer_finish(p), 0);
    p->self = reader;
    p->self.sent += LEN;
    talk(p, &p->self, 3);
}

/* … and the other way round; the parent's send must not need the child's reading. */
static void parent_writes_child_reads(struct pair *p)
{
    struct end *end = shared_end(p);
    enum { LEN = 300000 };
    peer_start(p, 0, do_echo, LEN, 1);
    pid_t child = IN_CHILD({
        CHECK_EQ(do_recv(end, LEN, 0), LEN);
    });
    struct end writer = p->self;
    CHECK_EQ(do_send(&writer, LEN, 0), LEN);
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(peer_finish(p), 0);
}

/* What was queued before the fork is read by the child, the rest by the parent. */
static void data_queued_before(struct pair *p)
{
    struct end *end = shared_end(p);
    peer_do(p, do_send, 1000, 0);
    await_readable(p->self.fd, 1000);
    pid_t child = IN_CHILD(CHECK_EQ(do_recv(end, 300, 0), 300));
    CHECK_EQ(await_child(child), 0);
    int queued = 0;
    CHECK_EQ(ioctl(end->fd, FIONREAD, &queued), 0);
    CHECK_EQ(queued, 700);
    CHECK_EQ(do_recv(end, 700, 0), 700);
    CHECK_ERRNO(recv(end->fd, buffer, 1, MSG_DONTWAIT), EAGAIN);
}

/* The end is only seen when both have closed, whoever is last. */
static void last_one_ends_it(struct pair *p)
{
    int gate[2];
    CHECK_EQ(pipe(gate), 0);
    pid_t child = IN_CHILD({
        close(gate[1]);
        CHECK_EQ(read(gate[0], buffer, 1), 0);
    });
    close(gate[0]);
    self_close(p);
    still_open(p);
    sleep_ms(5);
    still_open(p);
    close(gate[1]); /* the child exits */
    CHECK_EQ(await_child(child), 0);
    sees_end(p);
}

static void last_one_is_killed(struct pair *p)
{
    struct end *end = shared_end(p);
    pid_t child = IN_CHILD({
        CHECK_EQ(do_send(end, 500, 0), 500);
        pause();
    });
    self_close(p);
    CHECK_EQ(peer_do(p, do_recv, 500, 0), 500);
    still_open(p);
    kill(child, SIGKILL);
    CHECK_EQ(await_child(child), SIGKILL);
    sees_end(p);
}

/* A child killed beside a living parent ends nothing. */
static void other_is_killed(struct pair *p)
{
    struct end *end = shared_end(p);
    pid_t child = IN_CHILD({
        CHECK_EQ(do_send(end, 500, 0), 500);
        do_recv(end, 1, 0); /* asleep in a receive when killed */
    });
    CHECK_EQ(peer_do(p, do_recv, 500, 0), 500);
    await_asleep(child);
    kill(child, SIGKILL);
    CHECK_EQ(await_child(child), SIGKILL);
    still_open(p);
    talk(p, end, 5);
}

/* shutdown() is for the socket, so for all its holders. */
static void shutdown_by_child(struct pair *p)
{
    pid_t child = IN_CHILD(CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0));
    CHECK_EQ(await_child(child), 0);
    sees_end(p);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
    peer_do(p, do_send, 10, 0);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
}

static void shutdown_wakes_the_other(struct pair *p)
{
    pid_t child = IN_CHILD(CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 0));
    await_asleep(child);
    CHECK_EQ(shutdown(p->self.fd, SHUT_RD), 0);
    CHECK_EQ(await_child(child), 0);
}

/* O_NONBLOCK is shared too, and seen by a process that did not set it. */
static void nonblock_by_child(struct pair *p)
{
    pid_t child = IN_CHILD(CHECK_EQ(set_nonblock(p->self.fd, true), 0));
    CHECK_EQ(await_child(child), 0);
    CHECK_ERRNO(recv(p->self.fd, buffer, 10, 0), EAGAIN);
    child = IN_CHILD(CHECK_EQ(set_nonblock(p->self.fd, false), 0));
    CHECK_EQ(await_child(child), 0);
    peer_start(p, 20, do_send, 10, 0);
    CHECK_EQ(do_recv_once(&p->self, 10, 0), 10);
    peer_finish(p);
}

/* The peer forks: its child goes on where it was, it closes. */
static long do_fork_echo(struct end *end, long len, long rounds)
{
    pid_t child = start_child();
    if (child == 0) {
        do_echo(end, len, rounds);
        do_recv_eof(end, 0, 0);
        _exit(0);
    }
    do_close(end, 0, 0);
    int status = await_child(child);
    return status;
}

static void peer_forks(struct pair *p)
{
    peer_start(p, 0, do_fork_echo, 70, 15);
    for (int i = 0; i < 15; i++) {
        CHECK_EQ(do_send(&p->self, 70, 0), 70);
        CHECK_EQ(do_recv(&p->self, 70, 0), 70);
    }
    shutdown(p->self.fd, SHUT_WR);
    CHECK_EQ(do_recv_eof(&p->self, 0, 0), 0);
    CHECK_EQ(peer_finish(p), 0);
}

/* Both ends move to children, and then to grandchildren. */
static void both_move(struct pair *p)
{
    struct end *end = shared_end(p);
    peer_start(p, 0, do_fork_echo, 70, 20);
    pid_t child = IN_CHILD({
        for (int i = 0; i < 10; i++) {
            CHECK_EQ(do_send(end, 70, 0), 70);
            CHECK_EQ(do_recv(end, 70, 0), 70);
        }
        pid_t grandchild = IN_CHILD({
            for (int i = 0; i < 10; i++) {
                CHECK_EQ(do_send(end, 70, 0), 70);
                CHECK_EQ(do_recv(end, 70, 0), 70);
            }
        });
        close(end->fd);
        CHECK_EQ(await_child(grandchild), 0);
    });
    self_close(p);
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(peer_finish(p), 0);
}

/* Several children on one connection: each message is taken by exactly one. */
static void several_children_read(struct pair *p)
{
    enum { CHILDREN = 3, MESSAGES = 60, LEN = 16 };
    int *taken = (int *)shared_scratch();
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++)
        children[i] = IN_CHILD({
            long n;
            while ((n = recv(p->self.fd, buffer, LEN, MSG_WAITALL)) > 0)
                __atomic_add_fetch(taken, (int)n, __ATOMIC_SEQ_CST);
            CHECK_EQ(n, 0);
        });
    for (int i = 0; i < MESSAGES; i++)
        CHECK_EQ(peer_do(p, do_send, LEN, 0), LEN);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    for (int i = 0; i < CHILDREN; i++)
        CHECK_EQ(await_child(children[i]), 0);
    CHECK_EQ(*taken, MESSAGES * LEN);
}

/* Other programs started meanwhile do not harm a connection, though they inherit it. */
static void other_programs(struct pair *p)
{
    CHECK_EQ(WEXITSTATUS(system("exit 3")), 3);
    talk(p, &p->self, 3);
    FILE *pipe = popen("echo hello", "r");
    CHECK(fgets(buffer, sizeof buffer, pipe) != NULL);
    CHECK_EQ(pclose(pipe), 0);
    talk(p, &p->self, 3);
    pid_t child;
    char *arguments[] = {"true", NULL};
    CHECK_EQ(posix_spawnp(&child, "true", NULL, NULL, arguments, NULL), 0);
    CHECK_EQ(await_child(child), 0);
    still_open(p);
    talk(p, &p->self, 3);
}

/* A set made before the fork still tells both about the same socket. */
static void epoll_over_fork(struct pair *p)
{
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, p->self.fd, &event), 0);
    peer_do(p, do_send, 10, 0);
    pid_t child = IN_CHILD({
        CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
        CHECK_EQ(event.data.u64, 77);
        CHECK_EQ(event.events, EPOLLIN);
    });
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    CHECK_EQ(event.data.u64, 77);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    /* Asleep in the child, woken by the peer. */
    child = IN_CHILD(CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1));
    await_asleep(child);
    peer_do(p, do_send, 10, 0);
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    close(set);
}

static const struct epoll_event watched = {.events = EPOLLIN, .data.u64 = 77};

/* A child closes what it watches while the parent still has it: the kernel may go on
 * reporting it (epoll(7), question 6), but only with what the child has registered. */
static void child_closes_what_it_watches(struct pair *p)
{
    int gate[2];
    CHECK_EQ(pipe(gate), 0);
    pid_t child = IN_CHILD({
        int set = epoll_create1(0);
        struct epoll_event event = watched;
        CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, p->self.fd, &event), 0);
        CHECK_EQ(close(p->self.fd), 0);
        CHECK_EQ(read(gate[0], buffer, 1), 1);
        for (int i = 0; i < 3; i++)
            if (epoll_wait(set, &event, 1, 10) == 1)
                CHECK_EQ(event.data.u64, 77);
    });
    sleep_ms(10);
    peer_do(p, do_send, 10, 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(write(gate[1], "x", 1), 1);
    CHECK_EQ(await_child(child), 0);
    close(gate[0]);
    close(gate[1]);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
}

/* The number under which a child watches its connection becomes another socket, while
 * the connection lives on under a second one: nobody takes bytes from the other socket. */
static void watched_number_is_reused(struct pair *p)
{
    struct end *end = shared_end(p);
    int strangers[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, strangers), 0);
    pid_t child = IN_CHILD({
        int set = epoll_create1(0);
        struct epoll_event event = watched;
        CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, end->fd, &event), 0);
        int number = end->fd;
        end->fd = dup(number);
        CHECK_EQ(dup2(strangers[0], number), number);
        CHECK_EQ(write(strangers[1], "!!!", 3), 3);
        CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
        CHECK_EQ(event.data.u64, 77);
        CHECK_EQ(do_echo(end, 10, 1), 0);
        CHECK_EQ(epoll_wait(set, &event, 1, 10), 0);
        CHECK_EQ(recv(number, buffer, 10, MSG_DONTWAIT), 3);
    });
    close(strangers[0]);
    close(strangers[1]);
    sleep_ms(5);
    CHECK_EQ(peer_do(p, do_send, 10, 0), 10);
    CHECK_EQ(peer_do(p, do_recv, 10, 0), 10);
    CHECK_EQ(await_child(child), 0);
}

/* ---- whole servers --------------------------------------------------------------- */

static struct sockaddr_storage address;
static socklen_t len;

static void serve(int fd)
{
    long n;
    while ((n = recv(fd, buffer, 100, 0)) > 0)
        CHECK_EQ(send(fd, buffer, n, MSG_NOSIGNAL), n);
    CHECK_EQ(n, 0);
    close(fd);
}

static void be_customer(int rounds)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&address, len), 0);
    for (int i = 0; i < rounds; i++) {
        char text[32], echo[32];
        int text_len = snprintf(text, sizeof text, "%d:%d", getpid(), i);
        CHECK_EQ(send(fd, text, text_len, 0), text_len);
        CHECK_EQ(recv(fd, echo, text_len, MSG_WAITALL), text_len);
        CHECK_EQ(memcmp(text, echo, text_len), 0);
    }
    close(fd);
}

/* A process for each connection. */
static void fork_per_connection(struct pair *p)
{
    (void)p;
    enum { CUSTOMERS = 8 };
    int listener = make_listener(V4, &address, &len);
    pid_t server = IN_CHILD({
        for (int i = 0; i < CUSTOMERS; i++) {
            int fd = accept(listener, NULL, NULL);
            IN_CHILD({
                close(listener);
                serve(fd);
            });
            close(fd);
        }
        for (int i = 0; i < CUSTOMERS; i++) {
            int status = -1;
            CHECK(wait(&status) > 0);
            CHECK_EQ(status, 0);
        }
    });
    close(listener);
    pid_t customers[CUSTOMERS];
    for (int i = 0; i < CUSTOMERS; i++)
        customers[i] = IN_CHILD(be_customer(20));
    for (int i = 0; i < CUSTOMERS; i++)
        CHECK_EQ(await_child(customers[i]), 0);
    CHECK_EQ(await_child(server), 0);
}

/* Workers that share one listener (pre-fork). */
static void workers_share_listener(struct pair *p)
{
    (void)p;
    enum { WORKERS = 3, CUSTOMERS = 9 };
    int listener = make_listener(V4, &address, &len);
    pid_t workers[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        workers[i] = IN_CHILD({
            signal(SIGTERM, SIG_DFL);
            for (;;) {
                int fd = accept(listener, NULL, NULL);
                CHECK(fd >= 0);
                serve(fd);
            }
        });
    for (int i = 0; i < CUSTOMERS; i++)
        be_customer(15);
    for (int i = 0; i < WORKERS; i++) {
        kill(workers[i], SIGTERM);
        CHECK_EQ(await_child(workers[i]), SIGTERM);
    }
    close(listener);
}

/* The connection is made by the parent, used by the child from the first byte. */
static void connect_then_fork(struct pair *p)
{
    (void)p;
    int listener = make_listener(V4, &address, &len);
    pid_t server = IN_CHILD({
        int fd = accept(listener, NULL, NULL);
        serve(fd);
    });
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&address, len), 0);
    for (int i = 0; i < 4; i++) {
        pid_t child = IN_CHILD({
            for (int round = 0; round < 10; round++) {
                CHECK_EQ(send(fd, "hello", 5, 0), 5);
                CHECK_EQ(recv(fd, buffer, 5, MSG_WAITALL), 5);
            }
        });
        CHECK_EQ(await_child(child), 0);
    }
    close(fd);
    CHECK_EQ(await_child(server), 0);
    close(listener);
}

/* A fork that fails leaves nothing behind: a connection moves after it, by whatever call it was
 * tried, and ends with this process's close. */
static void fails_to_fork(struct pair *p)
{
    (void)p;
    pid_t child = IN_CHILD({
        if (unshare(CLONE_NEWPID) < 0) {
            fprintf(stderr, "fork.c: without CAP_SYS_ADMIN no fork fails for certain\n");
            _exit(0);
        }
        /* A namespace whose first process has ended takes no other. */
        await_child(IN_CHILD(_exit(0)));
        unsigned long failed = failures();
        /* musl's clone begins by writing to the stack that it was not given. */
        for (int how = 0; how < (IS_GLIBC ? 4 : 3); how++) {
            struct pair made;
            CHECK(pair_open(&made, (struct setting){.place = SAME_THREAD, .client = how % 2}));
            for (int i = 0; i < 3; i++) {
                errno = 0;
                pid_t none = how == 0   ? fork()
                             : how == 1 ? _Fork()
                             : how == 2 ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL)
                                        : clone(NULL, NULL, SIGCHLD, NULL);
                if (!CHECK_EQ(none, -1))
                    _exit(2);
                CHECK_EQ(errno, how == 3 ? EINVAL : ENOMEM);
            }
            pair_warm(&made);
            witness_move(made.self.fd);
            CHECK_EQ(self_close(&made), 0);
            CHECK_EQ(do_recv_eof(&made.peer, 0, 0), 0);
            pair_close(&made);
        }
        _exit(failures() != failed);
    });
    CHECK_EQ(await_child(child), 0);
}

static const struct test tests[] = {
    {"child_serves", child_serves, ACTIVE_PEER | FAMILIES},
    {"child_does_nothing", child_does_nothing, PROCESS_ONLY},
    {"by_turns", by_turns, PROCESS_ONLY},
    {"child_writes_parent_reads", child_writes_parent_reads, PROCESS_ONLY},
    {"parent_writes_child_reads", parent_writes_child_reads, PROCESS_ONLY},
    {"data_queued_before", data_queued_before, PROCESS_ONLY},
    {"last_one_ends_it", last_one_ends_it, PROCESS_ONLY},
    {"last_one_is_killed", last_one_is_killed, PROCESS_ONLY},
    {"other_is_killed", other_is_killed, PROCESS_ONLY},
    {"shutdown_by_child", shutdown_by_child, PROCESS_ONLY},
    {"shutdown_wakes_the_other", shutdown_wakes_the_other, PROCESS_ONLY | SLOW},
    {"nonblock_by_child", nonblock_by_child, PROCESS_ONLY | SLOW},
    {"peer_forks", peer_forks, PROCESS_ONLY},
    {"both_move", both_move, PROCESS_ONLY},
    {"several_children_read", several_children_read, PROCESS_ONLY},
    {"other_programs", other_programs, PROCESS_ONLY | SLOW},
    {"epoll_over_fork", epoll_over_fork, PROCESS_ONLY | SLOW},
    {"child_closes_what_it_watches", child_closes_what_it_watches, PROCESS_ONLY | SLOW},
    {"watched_number_is_reused", watched_number_is_reused, PROCESS_ONLY | SLOW},
    {"fork_per_connection", fork_per_connection, ALONE},
    {"workers_share_listener", workers_share_listener, ALONE},
    {"connect_then_fork", connect_then_fork, ALONE},
    {"fails_to_fork", fails_to_fork, ALONE},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
