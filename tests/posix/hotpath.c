/*
 * hotpath.c: how often a program enters the kernel. On TCP each call is one system call; on a
 * connection that has moved none, as long as there are bytes to take and there is room to send.
 * Both ends are held by one thread, so nothing depends on who is faster, and a tracer counts.
 */
#include "support.h"

#include <sys/ptrace.h>
#include <sys/syscall.h>

enum { ROUNDS = 400, KINDS_MAX = 32, BEGIN = 0xb0, END = 0xe0 };

/* What the tracer has counted, shared with the traced. */
struct tally {
    long total, kinds;
    struct {
        long number, count;
    } of[KINDS_MAX];
};

/* ---- the tracer ------------------------------------------------------------------------- */

static void count(struct tally *tally, long number)
{
    long kind = 0;
    while (kind < tally->kinds && tally->of[kind].number != number)
        kind++;
    if (kind == tally->kinds && kind < KINDS_MAX)
        tally->of[tally->kinds++].number = number;
    if (kind < KINDS_MAX)
        tally->of[kind].count++;
    tally->total++;
}

/* Follows a child from its stop to its end; counts between its marks. */
static void trace(pid_t child)
{
    struct tally *tally = shared_scratch();
    bool counting = false;
    int status = await_child(child), signal = 0;
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL;
    if (WIFSTOPPED(status))
        CHECK_EQ(ptrace(PTRACE_SETOPTIONS, child, NULL, options), 0);
    while (WIFSTOPPED(status)) {
        if (!CHECK_EQ(ptrace(PTRACE_SYSCALL, child, NULL, signal), 0))
            return;
        status = await_child(child);
        signal = 0;
        if (WIFSTOPPED(status) && WSTOPSIG(status) != (SIGTRAP | 0x80)) {
            signal = WSTOPSIG(status);
            continue;
        }
        struct __ptrace_syscall_info info;
        if (!WIFSTOPPED(status) ||
            ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info) <= 0 ||
            info.op != PTRACE_SYSCALL_INFO_ENTRY)
            continue;
        if (info.entry.nr == SYS_getppid && info.entry.args[0] == BEGIN) {
            memset(tally, 0, sizeof *tally);
            counting = true;
        } else if (info.entry.nr == SYS_getppid && info.entry.args[0] == END) {
            counting = false;
        } else if (counting) {
            count(tally, (long)info.entry.nr);
        }
    }
    CHECK_EQ(status, 0);
}

/* ---- the traced --------------------------------------------------------------------------- */

static void mark(long what)
{
    past_libc(SYS_getppid, what, 0, 0, 0, 0);
}

/* System calls of other numbers than these two (or -1), with a line for each. */
static long others(long one, long two)
{
    const struct tally *tally = shared_scratch();
    long sum = 0;
    for (long kind = 0; kind < tally->kinds; kind++) {
        long number = tally->of[kind].number;
        if (number == one || number == two)
            continue;
        fprintf(stderr, "hotpath.c: system call %ld was made %ld times\n", number,
                tally->of[kind].count);
        sum += tally->of[kind].count;
    }
    return sum;
}

static long of_number(long number)
{
    const struct tally *tally = shared_scratch();
    for (long kind = 0; kind < tally->kinds; kind++)
        if (tally->of[kind].number == number)
            return tally->of[kind].count;
    return 0;
}

static long total(void)
{
    return ((const struct tally *)shared_scratch())->total;
}

/* Whether the clock can be read without the kernel, which the library takes for granted. */
static bool clock_is_free(void)
{
    mark(BEGIN);
    for (int i = 0; i < 10; i++)
        now_ms();
    mark(END);
    if (total() == 0)
        return true;
    fprintf(stderr, "hotpath.c: reading this machine's clock is a system call\n");
    return false;
}

/* A pair of this thread whose bytes have left TCP in both directions, if a library is there
 * to move them. */
static bool warm_pair(struct pair *p)
{
    if (!CHECK(pair_open(p, (struct setting){.place = SAME_THREAD, .warm = true, .client = true})))
        return false;
    for (int i = 0; i < 5; i++)
        pair_warm(p);
    CHECK_EQ(is_moved(p->self.fd), getenv("LD_PRELOAD") != NULL);
    return true;
}

static void in_a_traced_child(void task(struct pair *))
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct pair made;
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0) {
            fprintf(stderr, "hotpath.c: this process cannot be traced (%s)\n", strerror(errno));
            _exit(0);
        }
        raise(SIGSTOP);
        if (clock_is_free() && warm_pair(&made)) {
            task(&made);
            pair_close(&made);
        }
        _exit(0);
    }
    trace(child);
}

/* The calls of a loop: on TCP so many, and none on a connection that has moved. */
#define COUNTED(p, calls, ...)                                        \
    ({                                                                \
        mark(BEGIN);                                                  \
        __VA_ARGS__;                                                  \
        mark(END);                                                    \
        if (is_moved((p)->self.fd))                                   \
            CHECK_EQ(others(-1, -1), 0);                              \
        else                                                          \
            CHECK_EQ(total(), (long)(calls));                         \
    })

/* Not checked byte by byte: the other programs do that. */
static char bytes[64 << 10];

static void there_and_back(struct pair *p, ssize_t len)
{
    CHECK_EQ(send(p->self.fd, bytes, len, 0), len);
    CHECK_EQ(recv(p->peer.fd, bytes, len, 0), len);
    CHECK_EQ(send(p->peer.fd, bytes, len, 0), len);
    CHECK_EQ(recv(p->self.fd, bytes, len, 0), len);
}

static void task_blocking(struct pair *p)
{
    static const ssize_t lengths[] = {1, 100, 2048, 8000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        there_and_back(p, lengths[i]);
        COUNTED(p, 4 * ROUNDS, for (int n = 0; n < ROUNDS; n++) there_and_back(p, lengths[i]));
    }
}

static void by_every_call(struct pair *p)
{
    struct iovec part = {bytes, 100};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    CHECK_EQ(write(p->self.fd, bytes, 100), 100);
    CHECK_EQ(read(p->peer.fd, bytes, 100), 100);
    CHECK_EQ(writev(p->self.fd, &part, 1), 100);
    CHECK_EQ(readv(p->peer.fd, &part, 1), 100);
    CHECK_EQ(sendmsg(p->self.fd, &message, 0), 100);
    CHECK_EQ(recvmsg(p->peer.fd, &message, 0), 100);
    CHECK_EQ(sendto(p->self.fd, bytes, 100, MSG_NOSIGNAL, NULL, 0), 100);
    CHECK_EQ(recvfrom(p->peer.fd, bytes, 100, MSG_DONTWAIT, NULL, NULL), 100);
}

static void task_every_call(struct pair *p)
{
    by_every_call(p);
    COUNTED(p, 8 * ROUNDS, for (int n = 0; n < ROUNDS; n++) by_every_call(p));
    set_nonblock(p->self.fd, true);
    set_nonblock(p->peer.fd, true);
    by_every_call(p);
    COUNTED(p, 8 * ROUNDS, for (int n = 0; n < ROUNDS; n++) by_every_call(p));
}

/* More is under way at a time, through the end of the ring and around. */
static void task_stream(struct pair *p)
{
    enum { CHUNK = 3000, AHEAD = 5 };
    for (int i = 0; i < AHEAD; i++)
        CHECK_EQ(send(p->self.fd, bytes, CHUNK, 0), CHUNK);
    COUNTED(p, 2 * ROUNDS, for (int n = 0; n < ROUNDS; n++) {
        CHECK_EQ(send(p->self.fd, bytes, CHUNK, 0), CHUNK);
        CHECK_EQ(recv(p->peer.fd, bytes, CHUNK, 0), CHUNK);
    });
    CHECK_EQ(recv(p->peer.fd, bytes, AHEAD * CHUNK, MSG_WAITALL), AHEAD * CHUNK);
}

/* A call that finds nothing and may not wait asks now and then whether the peer lives: every
 * five milliseconds. */
static void task_empty(struct pair *p)
{
    uint64_t start = now_ms();
    mark(BEGIN);
    for (int n = 0; n < ROUNDS; n++)
        if (recv(p->self.fd, bytes, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN)
            CHECK(false);
    mark(END);
    long passed = (long)(now_ms() - start) + 1;
    if (is_moved(p->self.fd)) {
        CHECK_BETWEEN(total(), 0, 1 + passed / 5 + 1);
        CHECK_EQ(others(SYS_getsockopt, -1), 0);
    } else {
        CHECK_EQ(total(), ROUNDS);
    }
}

static void talk_by_a_set(struct pair *p, uint32_t events)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event;
    CHECK_EQ(epoll_add(set, p->peer.fd, events, WORD), 0);
    for (int n = -10; n < ROUNDS; n++) {
        if (n == 0)
            mark(BEGIN);
        CHECK_EQ(send(p->self.fd, bytes, 100, 0), 100);
        CHECK_EQ(epoll_wait(set, &event, 1, 5000), 1);
        CHECK_EQ(recv(p->peer.fd, bytes, 100, 0), 100);
    }
    mark(END);
    /* Of the other descriptors in a set the kernel is asked every fourth time, and when 20
     * microseconds have passed: each time at most. */
    if (is_moved(p->peer.fd)) {
        CHECK_BETWEEN(total(), ROUNDS / 4 - 1, ROUNDS);
        CHECK_EQ(others(SYS_epoll_pwait2, SYS_epoll_pwait), 0);
    } else {
        CHECK_EQ(total(), 3 * ROUNDS);
    }
    close(set);
}

static void task_epoll(struct pair *p)
{
    talk_by_a_set(p, EPOLLIN);
    talk_by_a_set(p, EPOLLIN | EPOLLET);
}

/* As redis-benchmark does around each write. */
static void task_epoll_changes(struct pair *p)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    CHECK_EQ(epoll_add(set, p->self.fd, EPOLLIN, WORD), 0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u64 = WORD};
    COUNTED(p, 3 * ROUNDS, for (int n = 0; n < ROUNDS; n++) {
        CHECK_EQ(epoll_ctl(set, EPOLL_CTL_MOD, p->self.fd, &event), 0);
        CHECK_EQ(epoll_ctl(set, EPOLL_CTL_DEL, p->self.fd, NULL), 0);
        CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, p->self.fd, &event), 0);
    });
    close(set);
}

struct set_sleeper {
    int set;
    volatile pid_t id; /* 0 until it runs */
};

static void *sleep_in_set(void *argument)
{
    struct set_sleeper *sleeper = argument;
    struct epoll_event event;
    sleeper->id = thread_id();
    CHECK_EQ(epoll_wait(sleeper->set, &event, 1, 60000), 1);
    CHECK_EQ(event.events, EPOLLIN);
    return NULL;
}

/* As Erlang does after each report, while another of its threads sleeps in the set: nothing is
 * there, so nobody is woken. What comes then wakes the sleeper. */
static void task_epoll_rearms(struct pair *p)
{
    pthread_t thread;
    struct set_sleeper sleeper = {.set = epoll_create1(EPOLL_CLOEXEC)};
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = WORD};
    CHECK_EQ(epoll_add(sleeper.set, p->self.fd, event.events, WORD), 0);
    CHECK_EQ(pthread_create(&thread, NULL, sleep_in_set, &sleeper), 0);
    while (sleeper.id == 0)
        sleep_ms(1);
    await_asleep(sleeper.id);
    COUNTED(p, ROUNDS, for (int n = 0; n < ROUNDS; n++)
        CHECK_EQ(epoll_ctl(sleeper.set, EPOLL_CTL_MOD, p->self.fd, &event), 0));
    CHECK_EQ(send(p->peer.fd, bytes, 1, 0), 1);
    pthread_join(thread, NULL);
    CHECK_EQ(recv(p->self.fd, bytes, 1, 0), 1);
    close(sleeper.set);
}

/* What lies in other descriptors is asked of the kernel each time at most. */
static void task_poll(struct pair *p)
{
    struct pollfd entry = {.fd = p->peer.fd, .events = POLLIN};
    for (int n = -10; n < ROUNDS; n++) {
        if (n == 0)
            mark(BEGIN);
        CHECK_EQ(send(p->self.fd, bytes, 100, 0), 100);
        CHECK_EQ(poll(&entry, 1, 5000), 1);
        CHECK_EQ(recv(p->peer.fd, bytes, 100, 0), 100);
    }
    mark(END);
    if (is_moved(p->peer.fd)) {
        CHECK_BETWEEN(total(), 0, ROUNDS);
        CHECK_EQ(others(SYS_ppoll, -1), 0);
    } else {
        CHECK_EQ(total(), 3 * ROUNDS);
    }
}

/* A poll that has to wait for one connection sleeps on its ring first, and then on TCP. */
static void task_poll_sleeps(struct pair *p)
{
    struct pollfd entry = {.fd = p->self.fd, .events = POLLIN};
    uint64_t start = now_ms();
    mark(BEGIN);
    CHECK_EQ(poll(&entry, 1, 50), 0);
    mark(END);
    CHECK_BETWEEN(now_ms() - start, 50, 10000);
    if (is_moved(p->self.fd))
        CHECK_BETWEEN(of_number(SYS_futex), 1, 50);
    else
        CHECK_EQ(total(), 1);
}

#define TRACED(name) \
    static void test_##name(struct pair *p) { (void)p; in_a_traced_child(task_##name); }

TRACED(blocking)
TRACED(every_call)
TRACED(stream)
TRACED(empty)
TRACED(epoll)
TRACED(epoll_changes)
TRACED(epoll_rearms)
TRACED(poll)
TRACED(poll_sleeps)

static const struct test tests[] = {
    {"blocking", test_blocking, ALONE},
    {"every_call", test_every_call, ALONE},
    {"stream", test_stream, ALONE},
    {"empty", test_empty, ALONE},
    {"epoll", test_epoll, ALONE},
    {"epoll_changes", test_epoll_changes, ALONE},
    {"epoll_rearms", test_epoll_rearms, ALONE},
    {"poll", test_poll, ALONE},
    {"poll_sleeps", test_poll_sleeps, ALONE},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
