/*
 * files.c: a call keeps the file that it began with. Linux resolves a descriptor once, when a
 * call begins. Another thread may close the number meanwhile, or put another file under it: the
 * call goes on with the first one, and does nothing to the second.
 *
 * The second one is mostly an end of a socketpair, so that a byte too few or too many is seen.
 */
#include "support.h"

#include <sched.h>
#include <setjmp.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>

enum { ROUNDS = 60, LEN = 100, LONG_LEN = 4 << 20, PATIENCE_MS = 4000 };

struct call {
    pthread_t thread;
    volatile pid_t tid;
    int fd, other;
    long result;
    int error;
    volatile bool done;
    unsigned char bytes[LEN];
};

static char long_bytes[LONG_LEN];

static void *(*volatile body)(struct call *);

static void *start_routine(void *argument)
{
    struct call *call = argument;
    void *(*mine)(struct call *) = body;
    call->tid = thread_id();
    mine(call);
    call->done = true;
    return NULL;
}

/* A thread in `does`, asleep for the first time. */
static void start(struct call *call, void *(*does)(struct call *))
{
    body = does;
    call->tid = 0, call->done = false;
    CHECK_EQ(pthread_create(&call->thread, NULL, start_routine, call), 0);
    while (call->tid == 0)
        sleep_ms(1);
    await_asleep(call->tid);
    CHECK(!call->done);
}

static void finish(struct call *call, long want)
{
    pthread_join(call->thread, NULL);
    errno = call->error;
    CHECK_EQ(call->result, want);
}

static void *receives(struct call *call)
{
    call->result = recv(call->fd, call->bytes, LEN, 0);
    call->error = errno;
    return NULL;
}

static void *sends(struct call *call)
{
    call->result = send(call->fd, long_bytes, LONG_LEN, MSG_NOSIGNAL);
    call->error = errno;
    return NULL;
}

static void *sends_file(struct call *call)
{
    off_t at = 0;
    call->result = sendfile(call->fd, call->other, &at, LONG_LEN);
    call->error = errno;
    return NULL;
}

static void *polls(struct call *call)
{
    struct pollfd entry = {.fd = call->fd, .events = POLLIN};
    call->result = poll(&entry, 1, call->other);
    call->error = errno;
    return NULL;
}

/* Both ends in this thread; bytes go through shared memory, if they ever do. */
static void open_here(struct pair *pair, bool client)
{
    struct setting setting = {.place = SAME_THREAD, .warm = true, .client = client};
    CHECK(pair_open(pair, setting));
}

/* What is written into one end arrives at the other, and nothing else. */
static void check_stranger(int fd, int peer)
{
    char bytes[8];
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(write(fd, "there", 5), 5);
        CHECK_EQ(recv(peer, bytes, sizeof bytes, MSG_DONTWAIT), 5);
        CHECK_EQ(write(peer, "back", 4), 4);
        CHECK_EQ(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT), 4);
    }
    CHECK_ERRNO(recv(peer, bytes, sizeof bytes, MSG_DONTWAIT), EAGAIN);
    CHECK_ERRNO(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT), EAGAIN);
}

/* Puts an end of a new socketpair under `fd` by dup2, or by close and what comes then; the
 * other end, or -1. */
static int put_stranger_under(int fd, bool by_close)
{
    int ends[2];
    if (by_close) {
        close(fd);
        if (!CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0))
            return -1;
        if (ends[0] != fd && ends[1] != fd) {
            dup2(ends[0], fd), close(ends[0]);
            return ends[1];
        }
        return ends[0] == fd ? ends[1] : ends[0];
    }
    if (!CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0))
        return -1;
    CHECK_EQ(dup2(ends[0], fd), fd);
    close(ends[0]);
    return ends[1];
}

static void spin_us(long us)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long end = now.tv_sec * 1000000000L + now.tv_nsec + us * 1000;
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec * 1000000000L + now.tv_nsec < end);
}

/* ---- readers ----------------------------------------------------------------------- */

/* A reader asleep for between 0 and 8 ms: whatever it does at that moment, it sleeps on with
 * the old connection. */
static void readers_keep_theirs(int rounds)
{
    unsigned long failed = failures();
    for (int i = 0; i < rounds && failures() == failed; i++) {
        struct pair pair;
        open_here(&pair, i % 2);
        int fd = pair.self.fd;
        struct call reader = {.fd = fd};
        start(&reader, receives);
        spin_us(3500 + i * 4500 / rounds);
        int peer = put_stranger_under(fd, i / 2 % 2);
        check_stranger(fd, peer);
        spin_us(1000);
        CHECK(!reader.done);
        check_stranger(fd, peer);
        CHECK_EQ(do_send(&pair.peer, LEN, 0), LEN);
        finish(&reader, LEN);
        CHECK(take_bytes(&pair.self, reader.bytes, LEN));
        CHECK_EQ(do_recv_eof(&pair.peer, 0, 0), 0);
        check_stranger(fd, peer);
        close(peer);
        pair_close(&pair);
    }
}

static void reader_keeps_its_file(struct pair *p)
{
    (void)p;
    readers_keep_theirs(ROUNDS);
}

static volatile bool is_over;

static void *keep_busy(void *argument)
{
    (void)argument;
    while (!is_over)
        ;
    return NULL;
}

/* The reader is on a CPU that others keep busy, and may be stopped anywhere for long. */
static void starved_reader_keeps_its_file(struct pair *p)
{
    (void)p;
    cpu_set_t before, one;
    sched_getaffinity(0, sizeof before, &before);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    is_over = false;
    pthread_t busy;
    CHECK_EQ(pthread_create(&busy, NULL, keep_busy, NULL), 0);
    readers_keep_theirs(ROUNDS / 4);
    is_over = true;
    pthread_join(busy, NULL);
    sched_setaffinity(0, sizeof before, &before);
}

/* The next call finds the new file, at once. */
static void next_call_finds_the_new_file(struct pair *p)
{
    (void)p;
    for (int i = 0; i < ROUNDS; i++) {
        struct pair old, new;
        open_here(&old, true);
        open_here(&new, true);
        struct call reader = {.fd = old.self.fd};
        start(&reader, receives);
        CHECK_EQ(dup2(new.self.fd, old.self.fd), old.self.fd);
        CHECK_EQ(do_send(&new.peer, 10, 0), 10);
        close(new.self.fd);
        new.self.fd = old.self.fd;
        old.self.fd = -1;
        CHECK_EQ(do_recv(&new.self, 10, 0), 10);
        CHECK_EQ(do_send(&old.peer, LEN, 0), LEN);
        finish(&reader, LEN);
        CHECK(take_bytes(&old.self, reader.bytes, LEN));
        pair_close(&old);
        pair_close(&new);
    }
}

/* A handler that restarts calls lets the kernel resolve the number again. */
static void on_signal(int signal)
{
    (void)signal;
}

static void restarted_reader_finds_the_number_closed(struct pair *p)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigaction(SIGUSR1, &action, &before);
    struct call reader = {.fd = p->self.fd};
    start(&reader, receives);
    /* As asleep as it gets. */
    sleep_ms(50);
    CHECK_EQ(self_close(p), 0);
    pthread_kill(reader.thread, SIGUSR1);
    finish(&reader, -1);
    CHECK_EQ(reader.error, EBADF);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    sigaction(SIGUSR1, &before, NULL);
}

/* ---- writers ----------------------------------------------------------------------- */

/* Takes all there is by poll and recv, as an event loop does: it is asleep in the kernel when
 * the next byte comes. */
static long drain_by_poll(int fd, long want)
{
    static char bytes[1 << 20];
    long got = 0;
    while (got < want) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        if (!CHECK_EQ(poll(&entry, 1, PATIENCE_MS), 1))
            break;
        long n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n <= 0)
            break;
        for (long i = 0; i < n; i++)
            if (bytes[i] != long_bytes[got + i]) {
                CHECK(!"the bytes are the file's");
                return -1;
            }
        got += n;
    }
    return got;
}

static void writers_keep_theirs(struct pair *p, void *(*does)(struct call *), int file)
{
    (void)p;
    for (long i = 0; i < LONG_LEN; i++)
        long_bytes[i] = (char)(i * 31 >> 7);
    for (int i = 0; i < 6; i++) {
        struct pair pair;
        open_here(&pair, i % 2);
        int fd = pair.self.fd;
        struct call writer = {.fd = fd, .other = file};
        start(&writer, does);
        sleep_ms(5 * i);
        int peer = put_stranger_under(fd, i / 2 % 2);
        check_stranger(fd, peer);
        CHECK_EQ(drain_by_poll(pair.peer.fd, LONG_LEN), LONG_LEN);
        finish(&writer, LONG_LEN);
        CHECK_EQ(do_recv_eof(&pair.peer, 0, 0), 0);
        check_stranger(fd, peer);
        close(peer);
        pair_close(&pair);
    }
}

static void writer_keeps_its_file(struct pair *p)
{
    writers_keep_theirs(p, sends, -1);
}

static void sendfile_keeps_its_file(struct pair *p)
{
    char name[] = "/tmp/sidestep-files-XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    for (long i = 0; i < LONG_LEN; i++)
        long_bytes[i] = (char)(i * 31 >> 7);
    CHECK_EQ(write(file, long_bytes, LONG_LEN), LONG_LEN);
    writers_keep_theirs(p, sends_file, file);
    close(file);
}

/* ---- those who wait ---------------------------------------------------------------- */

/* A poll that began with one connection does not disturb who sleeps on another that has come
 * under the number. */
static void poll_leaves_the_reader_of_a_stranger(struct pair *p)
{
    (void)p;
    struct pair old, new;
    open_here(&old, true);
    open_here(&new, true);
    struct call reader = {.fd = new.self.fd}, poller = {.fd = old.self.fd, .other = 300};
    start(&reader, receives);
    start(&poller, polls);
    sleep_ms(20);
    CHECK_EQ(dup2(new.self.fd, old.self.fd), old.self.fd);
    CHECK(!poller.done);
    pthread_join(poller.thread, NULL);
    CHECK(!reader.done);
    CHECK_EQ(do_send(&new.peer, LEN, 0), LEN);
    finish(&reader, LEN);
    CHECK(take_bytes(&new.self, reader.bytes, LEN));
    pair_close(&old);
    pair_close(&new);
}

static void *waits(struct call *call)
{
    struct epoll_event event = {0};
    call->result = epoll_wait(call->fd, &event, 1, PATIENCE_MS);
    call->error = errno;
    call->other = (int)event.data.u64;
    return NULL;
}

/* epoll_wait goes on with its set, of which it still tells, and leaves the events of the one that
 * has come under the number alone. */
static void epoll_wait_keeps_its_set(struct pair *p)
{
    (void)p;
    for (int i = 0; i < ROUNDS / 4; i++) {
        struct pair pair;
        open_here(&pair, i % 2);
        int set = epoll_create1(0), ready = eventfd(1, 0);
        CHECK_EQ(epoll_add(set, pair.self.fd, EPOLLIN, 1), 0);
        struct call waiter = {.fd = set};
        start(&waiter, waits);
        sleep_ms(i % 4);
        int other = epoll_create1(0);
        if (i % 2)
            CHECK_EQ(dup2(other, set), set), close(other);
        else
            close(set), CHECK_EQ(dup2(other, set), set), close(other);
        CHECK_EQ(epoll_add(set, ready, EPOLLIN | EPOLLET, 2), 0);
        sleep_ms(2);
        CHECK(!waiter.done);
        CHECK_EQ(do_send(&pair.peer, 1, 0), 1);
        finish(&waiter, 1);
        CHECK_EQ(waiter.other, 1);
        CHECK_EQ(one_event(set, 2, 0), EPOLLIN);
        close(set), close(ready);
        CHECK_EQ(do_recv(&pair.self, 1, 0), 1);
        pair_close(&pair);
    }
}

/* A set that is known by two numbers stays one when the first is closed. */
static void set_of_two_numbers(struct pair *p)
{
    int set = epoll_create1(0), second = dup(set);
    close(set);
    int stranger = epoll_create1(0);
    CHECK_EQ(stranger, set);
    CHECK_EQ(epoll_add(second, p->self.fd, EPOLLIN, WORD), 0);
    /* While it moves, too. */
    for (int i = 0; i < 40; i++) {
        arrive(p, 1);
        CHECK_EQ(one_event(second, WORD, 2000), EPOLLIN);
        CHECK_SILENT(stranger);
        CHECK_EQ(do_recv(&p->self, 1, 0), 1);
        CHECK_SILENT(second);
        CHECK_EQ(do_send(&p->self, 1, 0), 1);
        CHECK_EQ(peer_do(p, do_recv, 1, 0), 1);
    }
    close(second), close(stranger);
}

/* ---- calls that begin meanwhile ------------------------------------------------------ */

struct flood {
    int fd;
    volatile long taken, strange;
};

/* Reads what is under the number at each moment: data of one connection or another. */
static void *read_whatever(void *argument)
{
    struct flood *flood = argument;
    char bytes[256];
    while (!is_over) {
        long n = recv(flood->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        for (long i = 0; i < n; i++)
            flood->strange += bytes[i] != 'd';
        flood->taken += n > 0 ? n : 0;
    }
    return NULL;
}

/* Waits in the kernel on one of the connections, so that its peer has to wake it, and reads. */
static void *wait_and_read(void *argument)
{
    struct flood *flood = argument;
    char bytes[256];
    while (!is_over) {
        struct pollfd entry = {.fd = flood->fd, .events = POLLIN};
        if (poll(&entry, 1, 10) != 1)
            continue;
        long n = recv(flood->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        for (long i = 0; i < n; i++)
            flood->strange += bytes[i] != 'd';
        flood->taken += n > 0 ? n : 0;
    }
    return NULL;
}

/* One number stands for two connections by turns, while others read from it and wait at both:
 * each byte of theirs comes once, and no other. */
static void calls_beside_dup2(struct pair *p)
{
    (void)p;
    struct pair pairs[2];
    pthread_t threads[4];
    for (int i = 0; i < 2; i++)
        open_here(&pairs[i], i);
    int fd = dup(pairs[0].self.fd);
    struct flood floods[] = {
        {.fd = fd}, {.fd = fd}, {.fd = pairs[0].self.fd}, {.fd = pairs[1].self.fd}};
    is_over = false;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, i < 2 ? read_whatever : wait_and_read, &floods[i]);
    long sent = 0;
    for (int i = 0; i < 4000; i++) {
        struct pair *pair = &pairs[i % 2];
        if (CHECK_EQ(send(pair->peer.fd, "ddd", 3, 0), 3))
            sent += 3;
        if (i % 3 == 0)
            CHECK_EQ(dup2(pair->self.fd, fd), fd);
        if (i % 64 == 0)
            sleep_ms(1);
    }
    /* What was sent last may still be on its way. */
    uint64_t deadline = now_ms() + PATIENCE_MS * 10;
    long taken = 0, strange = 0;
    do {
        sched_yield();
        taken = 0;
        for (int i = 0; i < 4; i++)
            taken += floods[i].taken;
    } while (taken < sent && now_ms() < deadline);
    is_over = true;
    taken = 0;
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        taken += floods[i].taken, strange += floods[i].strange;
    }
    CHECK_EQ(strange, 0);
    CHECK_EQ(taken, sent);
    close(fd);
    for (int i = 0; i < 2; i++)
        pair_close(&pairs[i]);
}

/* ---- the end ------------------------------------------------------------------------- */

/* The peer sees the end when the call has returned, and not before. A child that is forked
 * meanwhile has nothing of it. */
static void the_end_comes_with_the_last_call(struct pair *p)
{
    struct call reader = {.fd = p->self.fd};
    start(&reader, receives);
    sleep_ms(10);
    CHECK_EQ(self_close(p), 0);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    CHECK_ERRNO(peer_do(p, do_recv_once, 1, MSG_DONTWAIT), EAGAIN);
    CHECK_EQ(peer_do(p, do_send, 5, 0), 5);
    finish(&reader, 5);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    kill(child, SIGKILL);
    await_child(child);
}

/* A call that was left by siglongjmp is no call any more. */
static sigjmp_buf away;

static void leave(int signal)
{
    (void)signal;
    siglongjmp(away, 1);
}

static void *leaves_by_siglongjmp(struct call *call)
{
    if (sigsetjmp(away, 1) == 0)
        call->result = recv(call->fd, call->bytes, LEN, 0);
    else
        call->result = close(call->fd);
    return NULL;
}

static void a_call_left_by_siglongjmp_keeps_nothing(struct pair *p)
{
    struct sigaction action = {.sa_handler = leave}, before;
    sigaction(SIGUSR2, &action, &before);
    struct call reader = {.fd = p->self.fd};
    start(&reader, leaves_by_siglongjmp);
    sleep_ms(10 * p->setting.warm);
    pthread_kill(reader.thread, SIGUSR2);
    finish(&reader, 0);
    p->self.fd = -1;
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    sigaction(SIGUSR2, &before, NULL);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"reader_keeps_its_file", reader_keeps_its_file, ALONE},
        {"starved_reader_keeps_its_file", starved_reader_keeps_its_file, ALONE},
        {"next_call_finds_the_new_file", next_call_finds_the_new_file, ALONE},
        {"restarted_reader_finds_the_number_closed", restarted_reader_finds_the_number_closed,
         SLOW},
        {"writer_keeps_its_file", writer_keeps_its_file, ALONE},
        {"sendfile_keeps_its_file", sendfile_keeps_its_file, ALONE},
        {"poll_leaves_the_reader_of_a_stranger", poll_leaves_the_reader_of_a_stranger, ALONE},
        {"epoll_wait_keeps_its_set", epoll_wait_keeps_its_set, ALONE},
        {"set_of_two_numbers", set_of_two_numbers, 0},
        {"calls_beside_dup2", calls_beside_dup2, ALONE},
        {"the_end_comes_with_the_last_call", the_end_comes_with_the_last_call,
         SLOW | ACTIVE_PEER},
        {"a_call_left_by_siglongjmp_keeps_nothing", a_call_left_by_siglongjmp_keeps_nothing,
         SLOW | ACTIVE_PEER},
    };
    return RUN_TESTS(argc, argv, tests);
}
