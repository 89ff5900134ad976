/* death: what a program sees when its peer is killed.
 *
 *   death survivor --rounds 20 --seed 1 --limit-ms 500 -- VICTIM...
 *
 * VICTIM is the command that starts this program again; the survivor adds
 * `victim` and its arguments to it. Each round starts one victim, exchanges
 * bytes with it, kills it with SIGKILL at a random moment, and measures how
 * long the survivor's reading and writing threads take to notice: by end of
 * file, ECONNRESET or EPIPE, within the limit. Every byte that arrived before
 * must be right. The survivor lives through all rounds, so that whatever a
 * dead peer leaves behind in it (descriptors, threads, mappings) adds up and is
 * seen.
 *
 * Two things are the kernel's, and are not counted: what it takes until the
 * victim has ended and the end of its TCP connection has arrived (the clock
 * starts then; bytes that were on their way go before it), and how long a
 * thread that has been woken waits for a CPU.
 *
 * The rounds take turns in who connects to whom and in what both are doing:
 *
 *   threads  both stream both ways, a blocking thread for each direction
 *   epoll    the same, the survivor with one epoll loop
 *   quiet    some ping-pong, then the survivor sleeps in recv()
 */
#include "../../bench/bench.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

/* A prime, so that data which slipped by any power of two, such as the size
 * of a ring, never looks right again. */
#define PERIOD 1000003

#define CHUNK_LEN 32768

/* Rounds after which the survivor's own caches are filled: each way of
 * exchanging and each way of connecting has been used once. What the last dead
 * peer left may stay until the next one comes, and a peer that was killed early
 * leaves less: so those that stream live until they have moved, and it is the
 * most that any of these rounds left which the later ones must not exceed. */
#define WARMUP_ROUNDS 6

/* So many bytes each way take some hundred calls at either end: whatever is set
 * up on the way is there by then, however few CPUs there are. */
#define WARMUP_BYTES (8u << 20)

/* Who has not noticed by then never will. */
#define NOTICE_PATIENCE_S 120

/* How often we look whether it was told to us. */
#define LOOK_INTERVAL_S 0.0005

/* How long a victim may take to start and connect. */
#define START_PATIENCE_MS 300000

/* How long after a death the library may take to put away what it had. */
#define SETTLE_PATIENCE_S 120

/* The latest random moment: enough for some hundred megabytes. */
#define LIFE_MAX_US 100000

/* In a quarter of the rounds the moment is this early: in the middle of
 * getting to know each other. */
#define EARLY_LIFE_MAX_US 2000

#define PINGPONGS 20
#define PING_LEN 64

enum exchange { THREADS, EPOLL, QUIET, EXCHANGE_COUNT };
static const char *const exchange_names[] = {"threads", "epoll", "quiet"};

/* ---- the pattern ------------------------------------------------------- */

/* Two periods, so that any window of one period is in one piece. */
static unsigned char pattern[2 * PERIOD];

static uint64_t next_random(uint64_t *state)
{
    /* splitmix64: any seed is a good one. */
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void make_pattern(void)
{
    uint64_t state = 1;
    for (size_t i = 0; i < PERIOD; i++)
        pattern[i] = pattern[i + PERIOD] = (unsigned char)next_random(&state);
}

/* One direction of a connection. The survivor's stream starts elsewhere in
 * the pattern than the victim's: a byte that came back to its sender is
 * wrong. */
struct stream {
    int fd;
    _Atomic uint64_t position;
    atomic_int thread; /* which moves its bytes, 0 = not yet */
    double ended_s;    /* when its end was seen */
    double queued_s;   /* for how long its thread had waited for CPUs by then */
    const char *error;
};

static const unsigned char *expected_at(uint64_t position)
{
    return pattern + position % PERIOD;
}

static bool is_right(const struct stream *in, const void *data, size_t len)
{
    return memcmp(data, expected_at(in->position), len) == 0;
}

/* ---- waiting for a CPU ------------------------------------------------- */

/* For how long a thread of this process could have run and had no CPU: since
 * it began, and up to when it got one last. 0 if it is no more, or where the
 * kernel does not say. */
static double queued_s(int thread)
{
    char path[64];
    unsigned long long ran_ns, queued_ns = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", thread);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%llu %llu", &ran_ns, &queued_ns) != 2)
        queued_ns = 0;
    fclose(file);
    return (double)queued_ns * 1e-9;
}

/* ---- moving bytes ------------------------------------------------------ */

static void begin_stream(struct stream *stream)
{
    atomic_store(&stream->thread, (int)syscall(SYS_gettid));
}

static void end_stream(struct stream *stream, const char *error)
{
    stream->ended_s = now_s();
    stream->queued_s = queued_s(atomic_load(&stream->thread));
    stream->error = error;
}

/* Takes note of what recv() returned; false when the stream has ended. */
static bool received(struct stream *in, const void *data, ssize_t n)
{
    if (n > 0 && !is_right(in, data, (size_t)n)) {
        end_stream(in, "a wrong byte");
        return false;
    }
    if (n > 0) {
        in->position += (uint64_t)n;
        return true;
    }
    end_stream(in, n == 0 || errno == ECONNRESET ? NULL : strerror(errno));
    return false;
}

/* Takes note of what send() returned; false when the stream has ended. */
static bool sent(struct stream *out, ssize_t n)
{
    if (n >= 0) {
        out->position += (uint64_t)n;
        return true;
    }
    bool as_promised = errno == EPIPE || errno == ECONNRESET;
    end_stream(out, as_promised ? NULL : strerror(errno));
    return false;
}

static void *read_to_the_end(void *argument)
{
    static _Thread_local unsigned char data[CHUNK_LEN];
    struct stream *in = argument;
    begin_stream(in);
    while (received(in, data, recv(in->fd, data, sizeof data, 0)))
        continue;
    return NULL;
}

static void *write_to_the_end(void *argument)
{
    struct stream *out = argument;
    begin_stream(out);
    while (sent(out, send(out->fd, expected_at(out->position), CHUNK_LEN,
                          MSG_NOSIGNAL)))
        continue;
    return NULL;
}

/* What the epoll loop of a round works on. */
struct conversation {
    struct stream in, out;
};

/* Level-triggered, both directions always of interest. Ends when both have
 * ended; a direction that has is not tried again. */
static void *loop_to_the_end(void *argument)
{
    static unsigned char data[CHUNK_LEN];
    struct conversation *both = argument;
    bool reading = true, writing = true;
    int fd = both->in.fd, epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
    begin_stream(&both->in);
    begin_stream(&both->out);
    if (epoll < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0 ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        die("an epoll loop");
    while (reading || writing) {
        if (epoll_wait(epoll, &event, 1, -1) < 0)
            die("epoll_wait");
        if (reading && (event.events & ~(uint32_t)EPOLLOUT) != 0) {
            ssize_t n = recv(fd, data, sizeof data, 0);
            if (n >= 0 || errno != EAGAIN)
                reading = received(&both->in, data, n);
        }
        if (writing && (event.events & ~(uint32_t)EPOLLIN) != 0) {
            ssize_t n = send(fd, expected_at(both->out.position), CHUNK_LEN,
                             MSG_NOSIGNAL);
            if (n >= 0 || errno != EAGAIN)
                writing = sent(&both->out, n);
        }
    }
    close(epoll);
    return NULL;
}

/* Some transactions, so that a connection that may move has moved. */
static bool pingpong(int fd, bool first)
{
    char ping[PING_LEN] = "ping";
    for (int i = 0; i < 2 * PINGPONGS; i++) {
        bool sending = (i % 2 == 0) == first;
        ssize_t n = sending ? send(fd, ping, sizeof ping, MSG_NOSIGNAL)
                            : recv(fd, ping, sizeof ping, MSG_WAITALL);
        if (n != (ssize_t)sizeof ping)
            return false;
    }
    return true;
}

static void *sleep_to_the_end(void *argument)
{
    struct stream *in = argument;
    char byte;
    begin_stream(in);
    if (!pingpong(in->fd, false)) {
        /* Killed before it came to sleep: as good a death. */
        end_stream(in, NULL);
        return NULL;
    }
    ssize_t n = recv(in->fd, &byte, 1, 0);
    if (n > 0)
        end_stream(in, "a byte that nobody sent");
    else
        received(in, &byte, n);
    return NULL;
}

/* ---- the victim -------------------------------------------------------- */

static int accept_within(int listener)
{
    struct pollfd ready = {.fd = listener, .events = POLLIN};
    int count = poll(&ready, 1, START_PATIENCE_MS);
    int fd = count == 1 ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (fd < 0)
        die("nobody connected");
    return fd;
}

static int connect_to(uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    connect_loopback(fd, port);
    return fd;
}

/* Where the victim's own stream begins in the pattern. */
#define VICTIM_START (PERIOD / 2)

/* Says its process id, for whatever started it may not be it, and the port it
 * listens on, or 0 when it connects itself. */
static int victim_connection(uint16_t port)
{
    if (port != 0) {
        say("victim %d 0", (int)getpid());
        return connect_to(port);
    }
    int listener = listen_loopback(&port);
    say("victim %d %u", (int)getpid(), port);
    return accept_within(listener);
}

/* Streams or sleeps until it is killed, or until the survivor gives up. */
static int victim(enum exchange exchange, uint16_t port)
{
    int fd = victim_connection(port);
    if (exchange == QUIET) {
        char byte;
        pingpong(fd, true);
        return (int)recv(fd, &byte, 1, 0);
    }
    struct stream in = {.fd = fd};
    struct stream out = {.fd = fd, .position = VICTIM_START};
    pthread_t writer;
    if (pthread_create(&writer, NULL, write_to_the_end, &out) != 0)
        die("pthread_create");
    read_to_the_end(&in);
    errno = 0;
    if (in.error != NULL)
        die("the victim received %s", in.error);
    return 0;
}

/* ---- the survivor ------------------------------------------------------ */

struct survivor {
    int listener;
    uint16_t port;
    char *const *victim_command;
    uint64_t random;
    double limit_s;
    double slowest_s;     /* to notice a death */
    double slowest_end_s; /* from SIGKILL to the arrival of the end */
    uint64_t bytes_in, bytes_out;
};

struct victim_process {
    struct role starter; /* the process we started and must wait for */
    pid_t pid;           /* the victim itself */
    uint16_t port;
};

static struct victim_process start_victim(const struct survivor *s,
                                          enum exchange exchange,
                                          bool connects)
{
    enum { WORDS_MAX = 64 };
    char *words[WORDS_MAX + 6];
    char port[16];
    int n = 0;
    snprintf(port, sizeof port, "%u", connects ? s->port : 0u);
    for (; s->victim_command[n] != NULL && n < WORDS_MAX; n++)
        words[n] = s->victim_command[n];
    char *own[] = {"victim", "--exchange", (char *)exchange_names[exchange],
                   "--port", port, NULL};
    memcpy(&words[n], own, sizeof own);

    struct victim_process v = {.starter = start_command(words[0], words)};
    int pid;
    unsigned victim_port;
    if (sscanf(await_line(&v.starter, "victim "), "%d %u", &pid,
               &victim_port) != 2)
        die("the victim's introduction");
    v.pid = pid;
    v.port = (uint16_t)victim_port;
    return v;
}

static void must_have_been_killed(struct victim_process *v)
{
    int status = 0;
    close(v->starter.to);
    fclose(v->starter.from);
    if (waitpid(v->starter.pid, &status, 0) != v->starter.pid)
        die("waitpid");
    errno = 0;
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (v->starter.pid == v->pid && !killed)
        die("the victim ended before it was killed (wait status 0x%x): it "
            "saw a wrong byte or an error",
            (unsigned)status);
}

static void join_soon(pthread_t thread, const char *what)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += NOTICE_PATIENCE_S;
    errno = pthread_timedjoin_np(thread, NULL, &limit);
    if (errno != 0)
        die("%s has not noticed the death after %d s", what,
            NOTICE_PATIENCE_S);
}

/* Whether the kernel has the end of the peer. We ask it ourselves: what a
 * library makes of it is what we measure. */
static bool end_has_arrived(int fd)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    if (syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        die("TCP_INFO");
    return info.tcpi_state != TCP_ESTABLISHED;
}

/* Kills the peer of a connection and waits until its end has arrived; returns
 * when that was, without the time that we ourselves then waited for a CPU. */
static double kill_until_told(pid_t pid, int fd)
{
    double queued_before_s, give_up_s = now_s() + NOTICE_PATIENCE_S;
    if (kill(pid, SIGKILL) != 0)
        die("kill");
    do {
        queued_before_s = queued_s(getpid());
        sleep_s(LOOK_INTERVAL_S);
        errno = 0;
        if (now_s() > give_up_s)
            die("the end of the victim has not arrived after %d s",
                NOTICE_PATIENCE_S);
    } while (!end_has_arrived(fd));
    return now_s() - (queued_s(getpid()) - queued_before_s);
}

/* When the end of a stream arrived, and how long its thread had waited for CPUs
 * by then. */
struct death {
    double at_s, queued_s;
};

static struct death death_seen_by(const struct stream *stream, double told_s)
{
    return (struct death){told_s, queued_s(atomic_load(&stream->thread))};
}

static void judge(struct survivor *s, const struct stream *stream,
                  const char *what, struct death death)
{
    double queued_s = stream->queued_s - death.queued_s;
    double took_s = stream->ended_s - death.at_s - queued_s;
    errno = 0;
    if (stream->error != NULL)
        die("%s, at byte %llu: %s", what,
            (unsigned long long)stream->position, stream->error);
    if (took_s > s->limit_s)
        die("%s noticed the death after %.1f ms, not counting %.1f ms without "
            "a CPU", what, took_s * 1e3, queued_s * 1e3);
    if (took_s > s->slowest_s)
        s->slowest_s = took_s;
}

static void wait_for_the_moment(struct survivor *s, unsigned index)
{
    uint64_t latest_us = index % 4 == 3 ? EARLY_LIFE_MAX_US : LIFE_MAX_US;
    sleep_s((double)(next_random(&s->random) % latest_us) * 1e-6);
}

static void wait_for_bytes(const struct conversation *both)
{
    double give_up_s = now_s() + NOTICE_PATIENCE_S;
    errno = 0;
    while (both->in.position - VICTIM_START < WARMUP_BYTES ||
           both->out.position < WARMUP_BYTES) {
        if (now_s() > give_up_s)
            die("%llu bytes have come and %llu have gone after %d s",
                (unsigned long long)(both->in.position - VICTIM_START),
                (unsigned long long)both->out.position, NOTICE_PATIENCE_S);
        sleep_s(LOOK_INTERVAL_S);
    }
}

static void play_round(struct survivor *s, unsigned index)
{
    enum exchange exchange = index % EXCHANGE_COUNT;
    bool victim_connects = index / EXCHANGE_COUNT % 2 == 0;
    struct victim_process v = start_victim(s, exchange, victim_connects);
    int fd = victim_connects ? accept_within(s->listener) : connect_to(v.port);
    struct conversation both = {.in = {.fd = fd, .position = VICTIM_START},
                                .out = {.fd = fd}};

    pthread_t main_thread, writer;
    void *(*body)(void *) = exchange == THREADS ? read_to_the_end
                            : exchange == EPOLL ? loop_to_the_end
                                                : sleep_to_the_end;
    /* `in` is the first member: the loop finds both at the same address. */
    if (pthread_create(&main_thread, NULL, body, &both.in) != 0 ||
        (exchange == THREADS &&
         pthread_create(&writer, NULL, write_to_the_end, &both.out) != 0))
        die("pthread_create");
    if (index < WARMUP_ROUNDS && exchange != QUIET)
        wait_for_bytes(&both);
    else
        wait_for_the_moment(s, index);
    double killed_s = now_s(), told_s = kill_until_told(v.pid, fd);
    struct death for_reader = death_seen_by(&both.in, told_s);
    struct death for_writer = death_seen_by(&both.out, told_s);
    if (told_s - killed_s > s->slowest_end_s)
        s->slowest_end_s = told_s - killed_s;

    join_soon(main_thread, "the reader");
    if (exchange == THREADS)
        join_soon(writer, "the writer");
    must_have_been_killed(&v);
    judge(s, &both.in, "the reader", for_reader);
    if (exchange != QUIET)
        judge(s, &both.out, "the writer", for_writer);
    s->bytes_in += both.in.position - VICTIM_START;
    s->bytes_out += both.out.position;
    close(fd);
}

/* ---- what is left behind ----------------------------------------------- */

static int open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    if (dir == NULL)
        die("/proc/self/fd");
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static int threads(void)
{
    char line[128];
    int count = 0;
    FILE *status = fopen("/proc/self/status", "r");
    if (status == NULL)
        die("/proc/self/status");
    while (fgets(line, sizeof line, status) != NULL &&
           sscanf(line, "Threads: %d", &count) != 1)
        continue;
    fclose(status);
    return count;
}

/* Mappings of memory files: where shared rings live. */
static int memory_file_mappings(void)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (maps == NULL)
        die("/proc/self/maps");
    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "memfd:") != NULL;
    fclose(maps);
    return count;
}

static void print_descriptors(void)
{
    DIR *descriptors = opendir("/proc/self/fd");
    if (descriptors == NULL)
        die("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(descriptors)) != NULL;) {
        char target[256];
        ssize_t len = readlinkat(dirfd(descriptors), entry->d_name, target, sizeof target);
        if (len >= 0)
            fprintf(stderr, "fd %s: %.*s\n", entry->d_name, (int)len, target);
    }
    closedir(descriptors);
}

static int max(int a, int b)
{
    return a > b ? a : b;
}

/* Gives what is cleaned up behind the scenes time to be so. */
static int settled(int (*count)(void), int limit)
{
    int now = count();
    for (double end_s = now_s() + SETTLE_PATIENCE_S;
         now > limit && now_s() < end_s; now = count())
        sleep_s(0.02);
    return now;
}

static void must_not_have_grown(int descriptors, int mappings, int rounds)
{
    int descriptors_now = settled(open_descriptors, descriptors);
    if (descriptors_now > descriptors) {
        print_descriptors();
        errno = 0;
        die("%d descriptors grew to %d over %d deaths", descriptors,
            descriptors_now, rounds);
    }
    int threads_now = settled(threads, 1);
    int mappings_now = settled(memory_file_mappings, mappings);
    errno = 0;
    if (threads_now > 1)
        die("%d threads are left after %d deaths", threads_now, rounds);
    if (mappings_now > mappings)
        die("%d mappings of memory files grew to %d over %d deaths", mappings,
            mappings_now, rounds);
}

static int survivor(char *const args[])
{
    unsigned rounds = (unsigned)number_option(args, "--rounds", "20", 1);
    struct survivor s = {
        .random = (uint64_t)number_option(args, "--seed", "1", 0),
        .limit_s = number_option(args, "--limit-ms", "500", 1) * 1e-3,
        .victim_command = args,
    };
    while (*s.victim_command != NULL && strcmp(*s.victim_command, "--") != 0)
        s.victim_command++;
    errno = 0;
    if (s.victim_command[0] == NULL || s.victim_command[1] == NULL)
        die("which victim? give its command after --");
    s.victim_command++;
    s.listener = listen_loopback(&s.port);

    int descriptors = 0, mappings = 0;
    for (unsigned i = 0; i < rounds + WARMUP_ROUNDS; i++) {
        play_round(&s, i);
        if (i >= WARMUP_ROUNDS)
            continue;
        sleep_s(0.1);
        descriptors = max(descriptors, open_descriptors());
        mappings = max(mappings, memory_file_mappings());
    }
    must_not_have_grown(descriptors, mappings, (int)rounds);
    say("%u deaths, noticed within %.1f ms (told by TCP within %.1f ms); "
        "%.1f MB in, %.1f MB out",
        rounds + WARMUP_ROUNDS, s.slowest_s * 1e3, s.slowest_end_s * 1e3,
        (double)s.bytes_in / 1e6, (double)s.bytes_out / 1e6);
    return 0;
}

static enum exchange exchange_named(const char *name)
{
    for (int i = 0; i < EXCHANGE_COUNT; i++)
        if (strcmp(name, exchange_names[i]) == 0)
            return (enum exchange)i;
    errno = 0;
    die("no exchange is called '%s'", name);
}

int main(int argc, char *argv[])
{
    const char *role = argc > 1 ? argv[1] : "";
    make_pattern();
    if (strcmp(role, "survivor") == 0)
        return survivor(argv + 2);
    if (strcmp(role, "victim") == 0)
        return victim(exchange_named(option(argv, "--exchange", "threads")),
                      (uint16_t)number_option(argv, "--port", "0", 0));
    errno = 0;
    die("usage: death survivor [--rounds N] [--seed N] [--limit-ms N] -- "
        "VICTIM...");
}
