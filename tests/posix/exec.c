/*
 * exec.c: a connection goes on in another program. `exec` leaves the descriptors as they
 * are, so the new program continues the stream where the old one stopped.
 *
 * The other program is this one again, called with `--image` and what it is to do.
 */
#include "support.h"

#include <spawn.h>
#include <sys/syscall.h>

extern char **environ;

static char buffer[2000];

/* ---- the new program ------------------------------------------------------------- */

static char **image_arguments;

/* The numbers behind the role: descriptor, positions, salts, and two for the role. */
static long argument(int i)
{
    return atol(image_arguments[3 + i]);
}

struct image_arguments {
    char texts[7][24];
    char *list[11];
};

static char **arguments_for(struct image_arguments *room, const char *role, const struct end *end,
                            long a, long b)
{
    long numbers[] = {end->fd, (long)end->sent, (long)end->received, end->send_salt,
                      end->receive_salt, a, b};
    *room = (struct image_arguments){.list = {"exec", "--image", (char *)role}};
    for (int i = 0; i < 7; i++) {
        snprintf(room->texts[i], sizeof room->texts[i], "%ld", numbers[i]);
        room->list[3 + i] = room->texts[i];
    }
    return room->list;
}

static void begin_image(const char *role, const struct end *end, long a, long b, char **environment)
{
    struct image_arguments room;
    execve("/proc/self/exe", arguments_for(&room, role, end, a, b), environment);
    _exit(9);
}

static void wait_by_epoll(struct end *end, long rounds, uint32_t events)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = events, .data.u64 = 55};
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, end->fd, &event), 0);
    for (long i = 0; i < rounds; i++) {
        CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
        CHECK_EQ(event.data.u64, 55);
        CHECK_EQ(event.events, EPOLLIN);
        CHECK_EQ(do_recv(end, 10, 0), 10);
        CHECK_EQ(do_send(end, 10, 0), 10);
    }
    CHECK_EQ(epoll_wait(set, &event, 1, 0), 0);
    close(set);
}

static void image(struct pair *pair)
{
    (void)pair;
    const char *role = image_arguments[2];
    struct end end = {
        .fd = (int)argument(0),
        .sent = argument(1),
        .received = argument(2),
        .send_salt = (unsigned)argument(3),
        .receive_salt = (unsigned)argument(4),
    };
    long a = argument(5), b = argument(6);
    if (strcmp(role, "echo") == 0) {
        CHECK_EQ(do_echo(&end, a, b), 0);
        CHECK_EQ(do_recv_eof(&end, 0, 0), 0);
    } else if (strcmp(role, "turn") == 0) {
        CHECK_EQ(do_echo(&end, a, b), 0);
    } else if (strcmp(role, "later") == 0) {
        CHECK_EQ(read((int)a, buffer, 1), 1);
        CHECK_EQ(do_echo(&end, 50, b), 0);
    } else if (strcmp(role, "chain") == 0) {
        CHECK_EQ(do_echo(&end, a, 3), 0);
        if (b > 0)
            begin_image("chain", &end, a, b - 1, environ);
        CHECK_EQ(do_recv_eof(&end, 0, 0), 0);
    } else if (strcmp(role, "standard") == 0) {
        struct end out = end;
        end.fd = 0;
        out.fd = 1;
        for (long i = 0; i < b; i++) {
            CHECK_EQ(do_recv(&end, a, 0), a);
            CHECK_EQ(write(1, next_bytes(&out, a), a), a);
        }
        CHECK_EQ(read(0, buffer, 10), 0);
    } else if (strcmp(role, "take") == 0) {
        CHECK_EQ(do_recv(&end, a, 0), a);
        CHECK_ERRNO(recv(end.fd, buffer, 1, MSG_DONTWAIT), EAGAIN);
        CHECK_EQ(do_send(&end, b, 0), b);
    } else if (strcmp(role, "drain") == 0) {
        CHECK_EQ(do_recv(&end, a, 0), a);
        CHECK_EQ(do_recv_eof(&end, 0, 0), 0);
    } else if (strcmp(role, "level") == 0) {
        wait_by_epoll(&end, b, EPOLLIN);
    } else if (strcmp(role, "edge") == 0) {
        wait_by_epoll(&end, b, EPOLLIN | EPOLLET);
    } else if (strcmp(role, "poll") == 0) {
        for (long i = 0; i < b; i++) {
            CHECK_EQ(poll_once(end.fd, POLLIN, HANG_MS), POLLIN);
            CHECK_EQ(do_echo(&end, 10, 1), 0);
        }
        CHECK_EQ(poll_once(end.fd, POLLIN, 0), 0);
    } else if (strcmp(role, "closed") == 0) {
        CHECK_ERRNO(fcntl(end.fd, F_GETFD), EBADF);
        sleep_ms((int)a);
    } else if (strcmp(role, "options") == 0) {
        CHECK_EQ(get_int(end.fd, IPPROTO_TCP, TCP_NODELAY), 1);
        CHECK_EQ(fcntl(end.fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
        CHECK_EQ(fcntl(end.fd, F_GETFD), 0);
        struct sockaddr_storage name;
        socklen_t len = sizeof name;
        CHECK_EQ(getpeername(end.fd, (struct sockaddr *)&name, &len), 0);
        CHECK_EQ(name.ss_family, AF_INET);
        CHECK_ERRNO(recv(end.fd, buffer, 1, 0), EAGAIN);
    } else if (strcmp(role, "unaware") == 0) {
        /* Without the library: nothing that the peer has not sent. */
        CHECK_ERRNO(recv(end.fd, buffer, 100, 0), ECONNRESET);
        CHECK_ERRNO(send(end.fd, buffer, 100, MSG_NOSIGNAL), EPIPE);
    } else {
        CHECK(!"a known role");
    }
    _exit(failures() ? 1 : 0);
}

/* ---- the script ------------------------------------------------------------------ */

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

static pid_t run_image(const char *role, const struct end *end, long a, long b)
{
    return IN_CHILD(begin_image(role, end, a, b, environ));
}

/* The peer sends first, and takes the echo. */
static void ask(struct pair *p, long len, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        CHECK_EQ(peer_do(p, do_send, len, 0), len);
        CHECK_EQ(peer_do(p, do_recv, len, 0), len);
    }
}

static void ends_in_order(struct pair *p, pid_t child)
{
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* The program that begins is alone with the connection. */
static void goes_on(struct pair *p)
{
    pid_t child = run_image("echo", &p->self, 70, 20);
    self_close(p);
    ask(p, 70, 20);
    ends_in_order(p, child);
}

/* inetd's way: standard input and output. */
static void as_standard_streams(struct pair *p)
{
    pid_t child = IN_CHILD({
        dup2(p->self.fd, 0);
        dup2(p->self.fd, 1);
        close(p->self.fd);
        begin_image("standard", &p->self, 40, 10, environ);
    });
    self_close(p);
    ask(p, 40, 10);
    ends_in_order(p, child);
}

static void after_vfork(struct pair *p)
{
    pid_t child = vfork();
    if (child == 0) {
        dup2(p->self.fd, 0);
        dup2(p->self.fd, 1);
        close(p->self.fd);
        begin_image("standard", &p->self, 40, 10, environ);
    }
    self_close(p);
    ask(p, 40, 10);
    ends_in_order(p, child);
}

static pid_t fail_after_vfork(char **arguments)
{
    pid_t child = vfork();
    if (child == 0) {
        execv("/nonexistent/program", arguments);
        _exit(7);
    }
    return child;
}

/* A program that cannot be begun leaves everything as it was. */
static void after_failure(struct pair *p)
{
    char *arguments[] = {"nothing", NULL};
    for (int i = 0; i < 3; i++) {
        CHECK_ERRNO(execv("/nonexistent/program", arguments), ENOENT);
        CHECK_ERRNO(execlp("/nonexistent/other", "nothing", NULL), ENOENT);
        peer_do(p, do_send, 100, 0);
        CHECK_EQ(do_recv(&p->self, 100, 0), 100);
        CHECK_EQ(do_send(&p->self, 100, 0), 100);
        CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
        CHECK_EQ(WEXITSTATUS(await_child(fail_after_vfork(arguments))), 7);
    }
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLRDHUP, 0), 0);
    self_close(p);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* What lies unread on both sides when the program begins. */
static void unread_at_that_moment(struct pair *p)
{
    peer_do(p, do_send, 9000, 0);
    await_readable(p->self.fd, 9000);
    CHECK_EQ(do_recv(&p->self, 1000, 0), 1000);
    CHECK_EQ(do_send(&p->self, 5000, 0), 5000);
    pid_t child = run_image("take", &p->self, 8000, 3000);
    self_close(p);
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(peer_do(p, do_recv, 8000, 0), 8000);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* … also when the peer has ended before. */
static void after_the_end(struct pair *p)
{
    peer_do(p, do_send, 6000, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_EQ(do_recv(&p->self, 500, 0), 500);
    pid_t child = run_image("drain", &p->self, 5500, 0);
    self_close(p);
    CHECK_EQ(await_child(child), 0);
}

/* Parent and the other program by turns. */
static void by_turns(struct pair *p)
{
    for (int round = 0; round < 3; round++) {
        pid_t child = run_image("turn", &p->self, 50, 4);
        ask(p, 50, 4);
        CHECK_EQ(await_child(child), 0);
        p->self.sent += 200;
        p->self.received += 200;
        peer_do(p, do_send, 30, 0);
        CHECK_EQ(do_recv(&p->self, 30, 0), 30);
        CHECK_EQ(do_send(&p->self, 30, 0), 30);
        CHECK_EQ(peer_do(p, do_recv, 30, 0), 30);
    }
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLRDHUP, 0), 0);
}

static void many_times(struct pair *p)
{
    pid_t child = run_image("chain", &p->self, 60, 4);
    self_close(p);
    ask(p, 60, 15);
    ends_in_order(p, child);
}

/* A megabyte each way, so that both sides sleep on full and empty rings. */
static void a_lot(struct pair *p)
{
    peer_start(p, 0, do_echo, 1 << 20, 1);
    CHECK_EQ(do_send(&p->self, 1 << 19, 0), 1 << 19);
    pid_t writer = IN_CHILD(CHECK_EQ(do_send(&p->self, 1 << 19, 0), 1 << 19));
    CHECK_EQ(await_child(writer), 0);
    p->self.sent += 1 << 19;
    pid_t child = run_image("take", &p->self, 1 << 20, 10);
    self_close(p);
    CHECK_EQ(peer_finish(p), 0);
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(peer_do(p, do_recv, 10, 0), 10);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

static void closed_on_exec(struct pair *p)
{
    CHECK_EQ(fcntl(p->self.fd, F_SETFD, FD_CLOEXEC), 0);
    pid_t child = run_image("closed", &p->self, 300, 0);
    self_close(p);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    CHECK_EQ(await_child(child), 0);
}

/* A helper without the connection does not keep it open, nor disturb it. */
static void helper_without_it(struct pair *p)
{
    CHECK_EQ(fcntl(p->self.fd, F_SETFD, FD_CLOEXEC), 0);
    pid_t child = run_image("closed", &p->self, 50, 0);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(do_send(&p->self, 50, 0), 50);
        CHECK_EQ(peer_do(p, do_recv, 50, 0), 50);
        peer_do(p, do_send, 50, 0);
        CHECK_EQ(do_recv(&p->self, 50, 0), 50);
    }
    CHECK_EQ(await_child(child), 0);
}

static void in_epoll(struct pair *p)
{
    static const char *const roles[] = {"level", "edge", "poll"};
    for (int i = 0; i < 3; i++) {
        pid_t child = run_image(roles[i], &p->self, 0, 6);
        await_asleep(child); /* in its set, or on the way there */
        ask(p, 10, 6);
        CHECK_EQ(await_child(child), 0);
        p->self.sent += 60;
        p->self.received += 60;
    }
}

static void keeps_options(struct pair *p)
{
    set_int(p->self.fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_nonblock(p->self.fd, true);
    pid_t child = run_image("options", &p->self, 0, 0);
    CHECK_EQ(await_child(child), 0);
}

static volatile pid_t reader_id; /* 0: not yet at its call */

static void *read_for_ever(void *argument)
{
    struct end *end = argument;
    reader_id = thread_id();
    recv(end->fd, buffer, 10, 0);
    return NULL;
}

/* Waits until a child that had this pipe has begun a program: what it had for itself is closed. */
static void await_image(int gate[2])
{
    char byte;
    close(gate[1]);
    CHECK_EQ(read(gate[0], &byte, 1), 0);
    close(gate[0]);
}

/* Other threads end in the middle of their calls. */
static void threads_vanish(struct pair *p)
{
    int gate[2];
    CHECK_EQ(pipe2(gate, O_CLOEXEC), 0);
    pid_t child = IN_CHILD({
        pthread_t thread;
        for (int i = 0; i < 3; i++) {
            reader_id = 0;
            pthread_create(&thread, NULL, read_for_ever, &p->self);
            while (reader_id == 0)
                sleep_ms(1);
            await_asleep(reader_id);
        }
        begin_image("echo", &p->self, 70, 10, environ);
    });
    self_close(p);
    await_image(gate);
    ask(p, 70, 10);
    ends_in_order(p, child);
}

/* Sleeps for a moment at a time, so that it makes one call after the other. */
static void *read_by_turns(void *argument)
{
    struct end *end = argument;
    char byte;
    reader_id = thread_id();
    for (;;)
        if (recv(end->fd, &byte, 1, 0) > 0)
            _exit(9);
}

/* Other threads go on with their calls until the kernel ends them: they take nothing that is meant
 * for the next program. */
static void busy_threads_vanish(struct pair *p)
{
    int gate[2];
    CHECK_EQ(pipe2(gate, O_CLOEXEC), 0);
    struct timeval moment = {.tv_usec = 200};
    CHECK_EQ(setsockopt(p->self.fd, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment), 0);
    pid_t child = IN_CHILD({
        pthread_t thread;
        for (int i = 0; i < 8; i++) {
            reader_id = 0;
            pthread_create(&thread, NULL, read_by_turns, &p->self);
            while (reader_id == 0)
                sleep_ms(1);
        }
        struct timeval none = {0};
        setsockopt(p->self.fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
        begin_image("echo", &p->self, 70, 10, environ);
    });
    self_close(p);
    await_image(gate);
    ask(p, 70, 10);
    ends_in_order(p, child);
}

static void *begin_elsewhere(void *argument)
{
    struct end *end = argument;
    await_asleep(getpid());
    begin_image("echo", end, 70, 10, environ);
    return NULL;
}

/* The first thread sleeps in a receive, another begins the program, which then has the
 * number of the first. */
static void first_thread_vanishes(struct pair *p)
{
    int gate[2];
    CHECK_EQ(pipe2(gate, O_CLOEXEC), 0);
    pid_t child = IN_CHILD({
        pthread_t thread;
        pthread_create(&thread, NULL, begin_elsewhere, &p->self);
        read_for_ever(&p->self);
    });
    self_close(p);
    await_image(gate);
    ask(p, 70, 10);
    ends_in_order(p, child);
}

static long say_hello(struct end *end, long a, long b)
{
    (void)a, (void)b;
    return send(end->fd, "hello\n", 6, 0);
}

static long say_again(struct end *end, long a, long b)
{
    (void)a, (void)b;
    return send(end->fd, "again\n", 6, 0);
}

static long hear_hello(struct end *end, long a, long b)
{
    (void)a, (void)b;
    return recv(end->fd, buffer, 10, MSG_WAITALL) == 10 ? memcmp(buffer, "got hello\n", 10) : -1;
}

static long hear_again(struct end *end, long a, long b)
{
    (void)a, (void)b;
    return recv(end->fd, buffer, 6, MSG_WAITALL) == 6 ? memcmp(buffer, "AGAIN\n", 6) : -1;
}

/* bash reads and writes the connection by redirections, and starts others on it. */
static void in_a_shell(struct pair *p)
{
    pid_t child = IN_CHILD({
        char script[200];
        snprintf(script, sizeof script,
                 "read line <&%d && echo \"got $line\" >&%d && head -n 1 <&%d | tr a-z A-Z >&%d",
                 p->self.fd, p->self.fd, p->self.fd, p->self.fd);
        execlp("bash", "bash", "-c", script, NULL);
        _exit(8);
    });
    self_close(p);
    /* Text instead of the pattern: the peer's end is plainly used. */
    CHECK_EQ(peer_do(p, do_poll, POLLIN, 0), 0);
    CHECK_EQ(peer_do(p, say_hello, 0, 0), 6);
    CHECK_EQ(peer_do(p, hear_hello, 0, 0), 0);
    CHECK_EQ(peer_do(p, say_again, 0, 0), 6);
    CHECK_EQ(peer_do(p, hear_again, 0, 0), 0);
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

static pid_t spawn_image(const posix_spawn_file_actions_t *actions, const char *role,
                         const struct end *end, long a, long b)
{
    struct image_arguments room;
    char **arguments = arguments_for(&room, role, end, a, b);
    pid_t child = -1;
    CHECK_EQ(posix_spawn(&child, "/proc/self/exe", actions, NULL, arguments, environ), 0);
    return child;
}

static void spawned(struct pair *p)
{
    pid_t child = spawn_image(NULL, "echo", &p->self, 30, 8);
    self_close(p);
    ask(p, 30, 8);
    ends_in_order(p, child);
}

/* The program has it from the beginning, and uses it when much has gone over it. */
static void spawned_and_shared(struct pair *p)
{
    int go[2];
    CHECK_EQ(pipe2(go, O_CLOEXEC), 0);
    fcntl(go[0], F_SETFD, 0);
    struct end later = p->self;
    later.sent += 20 * 30;
    later.received += 20 * 30;
    pid_t child = spawn_image(NULL, "later", &later, go[0], 8);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(peer_do(p, do_send, 30, 0), 30);
        CHECK_EQ(do_recv(&p->self, 30, 0), 30);
        CHECK_EQ(do_send(&p->self, 30, 0), 30);
        CHECK_EQ(peer_do(p, do_recv, 30, 0), 30);
    }
    CHECK_EQ(write(go[1], "!", 1), 1);
    ask(p, 50, 8);
    CHECK_EQ(await_child(child), 0);
    close(go[0]);
    close(go[1]);
}

/* By file actions, from a descriptor that is closed itself. */
static void spawned_on_standard_streams(struct pair *p)
{
    fcntl(p->self.fd, F_SETFD, p->setting.client ? FD_CLOEXEC : 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, p->self.fd, 0);
    posix_spawn_file_actions_adddup2(&actions, 0, 1);
    pid_t child = spawn_image(&actions, "standard", &p->self, 30, 8);
    posix_spawn_file_actions_destroy(&actions);
    self_close(p);
    ask(p, 30, 8);
    ends_in_order(p, child);
}

static void started_by_libc(struct pair *p)
{
    char script[100];
    snprintf(script, sizeof script, "read line <&%d && echo \"got $line\" >&%d", p->self.fd,
             p->self.fd);
    CHECK_EQ(peer_do(p, say_hello, 0, 0), 6);
    CHECK_EQ(system(script), 0);
    CHECK_EQ(peer_do(p, hear_hello, 0, 0), 0);
    snprintf(script, sizeof script, "tr a-z A-Z >&%d", p->self.fd);
    FILE *command = popen(script, "w");
    CHECK(fputs("again\n", command) >= 0);
    CHECK_EQ(pclose(command), 0);
    CHECK_EQ(peer_do(p, hear_again, 0, 0), 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN | POLLRDHUP, 0), 0);
    self_close(p);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* A program that lost the library with its environment. Plainly there is none to lose. */
static void without_environment(struct pair *p)
{
    char *nothing[] = {NULL};
    if (!getenv("LD_PRELOAD")) {
        pid_t child = IN_CHILD(begin_image("echo", &p->self, 10, 3, nothing));
        self_close(p);
        ask(p, 10, 3);
        ends_in_order(p, child);
        return;
    }
    if (!is_moved(p->self.fd))
        return;
    int gate[2];
    CHECK_EQ(pipe2(gate, O_CLOEXEC), 0);
    pid_t child = IN_CHILD({
        close(gate[1]);
        CHECK_EQ(read(gate[0], buffer, 1), 0); /* until it is alone with the connection */
        begin_image("unaware", &p->self, 0, 0, nothing);
    });
    self_close(p);
    close(gate[0]), close(gate[1]);
    CHECK_EQ(await_child(child), 0);
    CHECK_ERRNO(peer_do(p, do_recv_once, 10, 0), ECONNRESET);
}

static const struct test tests[] = {
    {"goes_on", goes_on, PROCESS_ONLY | FAMILIES},
    {"as_standard_streams", as_standard_streams, PROCESS_ONLY},
    {"after_vfork", after_vfork, PROCESS_ONLY},
    {"after_failure", after_failure, PROCESS_ONLY},
    {"unread_at_that_moment", unread_at_that_moment, PROCESS_ONLY},
    {"after_the_end", after_the_end, PROCESS_ONLY},
    {"by_turns", by_turns, PROCESS_ONLY},
    {"many_times", many_times, PROCESS_ONLY},
    {"a_lot", a_lot, PROCESS_ONLY},
    {"closed_on_exec", closed_on_exec, PROCESS_ONLY | SLOW},
    {"helper_without_it", helper_without_it, PROCESS_ONLY | SLOW},
    {"in_epoll", in_epoll, PROCESS_ONLY | SLOW},
    {"keeps_options", keeps_options, PROCESS_ONLY},
    {"threads_vanish", threads_vanish, PROCESS_ONLY | SLOW},
    {"busy_threads_vanish", busy_threads_vanish, PROCESS_ONLY | SLOW},
    {"first_thread_vanishes", first_thread_vanishes, PROCESS_ONLY | SLOW},
    {"in_a_shell", in_a_shell, PROCESS_ONLY},
    {"spawned", spawned, PROCESS_ONLY},
    {"spawned_and_shared", spawned_and_shared, PROCESS_ONLY},
    {"spawned_on_standard_streams", spawned_on_standard_streams, PROCESS_ONLY},
    {"started_by_libc", started_by_libc, PROCESS_ONLY},
    {"without_environment", without_environment, PROCESS_ONLY | SLOW},
};

static const struct test images[] = {{"image", image, ALONE}};

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--image") == 0) {
        image_arguments = argv;
        return RUN_TESTS(1, argv, images);
    }
    return RUN_TESTS(argc, argv, tests);
}
