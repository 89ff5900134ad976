/* support.c: see support.h. */
#include "support.h"

#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* glibc has no name for it before 2.41. */
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

/* A script that hangs is ended after this many seconds: waits that fail have said so before. */
#define WATCHDOG_SECONDS 150
/* Messages each way that make a connection warm: one that moves early has moved, one that moves late
 * (promotion "lazy") is about to begin. */
#define WARM_ROUNDS 8
/* The most for tests that count, which wait until it has moved: four times what lazy asks for. */
#define COUNTING_WARM_ROUNDS 64
/* A broken build should not print for ever. */
#define REPORTS_MAX 40

/* Counters live in shared memory: the peer's process counts here too. */
struct shared {
    unsigned long passed, failed;
    unsigned char scratch[4096];
};
static struct shared *shared;

static const char *current_test = "";
static char current_setting[80] = "";
static volatile pid_t current_peer;
static bool counts_edges;
static int sigpipe_count;

/* ---- assertions ------------------------------------------------------------------ */

__attribute__((format(printf, 4, 5)))
static bool verdict(bool holds, const char *file, int line, const char *format, ...)
{
    if (holds) {
        __atomic_add_fetch(&shared->passed, 1, __ATOMIC_RELAXED);
        return true;
    }
    if (__atomic_add_fetch(&shared->failed, 1, __ATOMIC_RELAXED) > REPORTS_MAX)
        return false;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *base = strrchr(file, '/');
    fprintf(stderr, "%s:%d: %s [%s]: %s\n", base ? base + 1 : file, line, current_test,
            current_setting, text);
    return false;
}

bool check(bool holds, int error, const char *file, int line, const char *text)
{
    return verdict(holds, file, line, "%s does not hold (errno %d, %s)", text, error,
                   strerror(error));
}

bool check_eq(long got, long want, int error, const char *file, int line, const char *text)
{
    return verdict(got == want, file, line, "%s is %ld, not %ld (errno %d, %s)", text, got, want,
                   error, strerror(error));
}

bool check_errno(long result, int error, int want, const char *file, int line, const char *text)
{
    return verdict(result == -1 && error == want, file, line,
                   "%s gives %ld, errno %d (%s), not errno %d (%s)", text, result, error,
                   strerror(error), want, strerror(want));
}

bool check_between(long got, long low, long high, int error, const char *file, int line,
                   const char *text)
{
    return verdict(got >= low && got <= high, file, line,
                   "%s is %ld, not in %ld..%ld (errno %d, %s)", text, got, low, high, error,
                   strerror(error));
}

static const char *mask_text(short mask, char *text, size_t size)
{
    snprintf(text, size, "%s%s%s%s%s%s%s", mask & POLLIN ? " IN" : "", mask & POLLPRI ? " PRI" : "",
             mask & POLLOUT ? " OUT" : "", mask & POLLERR ? " ERR" : "",
             mask & POLLHUP ? " HUP" : "", mask & POLLNVAL ? " NVAL" : "",
             mask & POLLRDHUP ? " RDHUP" : "");
    return mask ? text + 1 : "nothing";
}

bool check_mask(int fd, short interest, short want, const char *file, int line)
{
    uint64_t deadline = now_ms() + HANG_MS;
    short mask;
    while ((mask = poll_once(fd, interest, 0)) != want && now_ms() < deadline)
        sleep_ms(1);
    char got[64], wanted[64];
    return verdict(mask == want, file, line, "poll shows %s, not %s",
                   mask_text(mask, got, sizeof got), mask_text(want, wanted, sizeof wanted));
}

unsigned long failures(void)
{
    return __atomic_load_n(&shared->failed, __ATOMIC_RELAXED);
}

/* ---- the pattern ----------------------------------------------------------------- */

static inline unsigned char pattern_byte(uint64_t position, unsigned salt)
{
    return (unsigned char)(((uint32_t)position + salt) * 2654435761u >> 23);
}

void pattern_fill(void *buffer, size_t len, uint64_t position, unsigned salt)
{
    unsigned char *bytes = buffer;
    for (size_t i = 0; i < len; i++)
        bytes[i] = pattern_byte(position + i, salt);
}

bool pattern_holds(const void *buffer, size_t len, uint64_t position, unsigned salt)
{
    const unsigned char *bytes = buffer;
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != pattern_byte(position + i, salt))
            return false;
    return true;
}


/* One staging buffer for each thread. */
static unsigned char *stage(void)
{
    static __thread unsigned char *buffer;
    if (!buffer)
        buffer = malloc(STAGE_SIZE);
    return buffer;
}

void *next_bytes(struct end *end, size_t len)
{
    void *buffer = stage();
    pattern_fill(buffer, len, end->sent, end->send_salt);
    end->sent += len;
    return buffer;
}

bool take_bytes(struct end *end, const void *buffer, size_t len)
{
    bool holds = pattern_holds(buffer, len, end->received, end->receive_salt);
    end->received += len;
    return holds;
}

/* ---- actions --------------------------------------------------------------------- */

long do_send(struct end *end, long len, long flags)
{
    long left = len;
    while (left > 0) {
        long chunk = left < STAGE_SIZE ? left : STAGE_SIZE;
        pattern_fill(stage(), chunk, end->sent, end->send_salt);
        long n = send(end->fd, stage(), chunk, (int)flags);
        if (n < 0 && errno == EINTR)
            continue;
        if (!CHECK(n > 0))
            return -1;
        end->sent += n;
        left -= n;
    }
    return len;
}

long do_send_once(struct end *end, long len, long flags)
{
    pattern_fill(stage(), len, end->sent, end->send_salt);
    long n = send(end->fd, stage(), len, (int)flags);
    if (n > 0)
        end->sent += n;
    return n;
}

long do_recv(struct end *end, long len, long flags)
{
    long left = len;
    while (left > 0) {
        long n = recv(end->fd, stage(), left < STAGE_SIZE ? left : STAGE_SIZE, (int)flags);
        if (n < 0 && errno == EINTR)
            continue;
        if (!CHECK(n > 0) || !CHECK(take_bytes(end, stage(), n)))
            return -1;
        left -= n;
    }
    return len;
}

long do_recv_once(struct end *end, long len, long flags)
{
    long n = recv(end->fd, stage(), len, (int)flags);
    if (n > 0 && !(flags & (MSG_PEEK | MSG_OOB)))
        CHECK(take_bytes(end, stage(), n));
    return n;
}

long do_recv_eof(struct end *end, long a, long b)
{
    (void)a, (void)b;
    return CHECK_EQ(recv(end->fd, stage(), 100, 0), 0) ? 0 : -1;
}

long do_shutdown(struct end *end, long how, long b)
{
    (void)b;
    return shutdown(end->fd, (int)how);
}

long do_close(struct end *end, long a, long b)
{
    (void)a, (void)b;
    int result = close(end->fd);
    end->fd = -1;
    return result;
}

long do_linger(struct end *end, long on, long seconds)
{
    struct linger linger = {.l_onoff = (int)on, .l_linger = (int)seconds};
    return setsockopt(end->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
}

long do_nonblock(struct end *end, long on, long b)
{
    (void)b;
    return set_nonblock(end->fd, on);
}

long do_fill(struct end *end, long chunk, long b)
{
    (void)b;
    long total = 0;
    for (;;) {
        long n = do_send_once(end, chunk, MSG_DONTWAIT);
        if (n < 0) {
            CHECK_EQ(errno, EAGAIN);
            return total;
        }
        total += n;
    }
}

long do_drain(struct end *end, long most, long b)
{
    (void)b;
    long total = 0;
    while (total < most) {
        long want = most - total < STAGE_SIZE ? most - total : STAGE_SIZE;
        long n = do_recv_once(end, want, MSG_DONTWAIT);
        if (n <= 0)
            break;
        total += n;
    }
    return total;
}

long do_poll(struct end *end, long events, long timeout_ms)
{
    return poll_once(end->fd, (short)events, (int)timeout_ms);
}

long do_setsockopt_int(struct end *end, long level_and_name, long value)
{
    return set_int(end->fd, (int)(level_and_name >> 16), (int)(level_and_name & 0xffff),
                   (int)value);
}

long do_getsockopt_int(struct end *end, long level_and_name, long b)
{
    (void)b;
    return get_int(end->fd, (int)(level_and_name >> 16), (int)(level_and_name & 0xffff));
}

long do_die(struct end *end, long a, long b)
{
    (void)end, (void)a, (void)b;
    kill(getpid(), SIGKILL);
    return 0;
}

long do_exit(struct end *end, long a, long b)
{
    (void)end, (void)a, (void)b;
    _exit(0);
}

long do_echo(struct end *end, long len, long rounds)
{
    while (rounds-- > 0)
        if (do_recv(end, len, 0) < 0 || do_send(end, len, 0) < 0)
            return -1;
    return 0;
}

/* ---- addresses ------------------------------------------------------------------- */

int make_listener(enum family family, struct sockaddr_storage *address, socklen_t *len)
{
    bool v6 = family == V6 || family == DUAL;
    int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(address, 0, sizeof *address);
    if (v6) {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)address;
        in6->sin6_family = AF_INET6;
        in6->sin6_addr = family == V6 ? in6addr_loopback : in6addr_any;
        *len = sizeof *in6;
    } else {
        struct sockaddr_in *in = (struct sockaddr_in *)address;
        in->sin_family = AF_INET;
        in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        *len = sizeof *in;
    }
    CHECK_EQ(bind(fd, (struct sockaddr *)address, *len), 0);
    CHECK_EQ(listen(fd, 16), 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)address, len), 0);
    return fd;
}

/* A client socket connected to the listener at this port. */
static int make_client(enum family family, in_port_t port)
{
    struct sockaddr_storage address = {0};
    socklen_t len;
    if (family == V6 || family == MAPPED) {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&address;
        in6->sin6_family = AF_INET6;
        in6->sin6_port = port;
        inet_pton(AF_INET6, family == V6 ? "::1" : "::ffff:127.0.0.1", &in6->sin6_addr);
        len = sizeof *in6;
    } else {
        struct sockaddr_in *in = (struct sockaddr_in *)&address;
        in->sin_family = AF_INET;
        in->sin_port = port;
        in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        len = sizeof *in;
    }
    int fd = socket(address.ss_family, SOCK_STREAM, 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&address, len), 0);
    return fd;
}

static in_port_t port_of(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                          : ((const struct sockaddr_in *)address)->sin_port;
}

/* ---- the peer -------------------------------------------------------------------- */

struct order {
    peer_action *action; /* NULL: end */
    int delay_ms;
    pid_t script; /* the thread that gives it */
    long a, b;
};

struct answer {
    long result;
    int error;
    int fd; /* the peer's descriptor number */
};

/* The peer's life: obey until told to end, or until the script is gone. */
static void peer_main(int control, struct end *end)
{
    struct order order;
    while (recv(control, &order, sizeof order, 0) == sizeof order && order.action) {
        if (order.delay_ms && await_asleep(order.script))
            sleep_ms(order.delay_ms);
        errno = 0;
        long result = order.action(end, order.a, order.b);
        struct answer answer = {.result = result, .error = errno, .fd = end->fd};
        if (send(control, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
            break;
    }
    if (end->fd >= 0)
        close(end->fd);
    close(control);
}

struct peer_start_arguments {
    int control;
    struct end end;
};

static void *peer_thread(void *argument)
{
    struct peer_start_arguments arguments = *(struct peer_start_arguments *)argument;
    free(argument);
    peer_main(arguments.control, &arguments.end);
    free(stage());
    return NULL;
}

static long act_listen(struct end *end, long family, long b)
{
    (void)b;
    struct sockaddr_storage address;
    socklen_t len;
    end->fd = make_listener((enum family)family, &address, &len);
    return port_of(&address);
}

static long act_accept(struct end *end, long a, long b)
{
    (void)a, (void)b;
    int listener = end->fd;
    end->fd = accept(listener, NULL, NULL);
    close(listener);
    /* Without it a second small message waits 40 ms for the first one's
     * acknowledgement, and a script has many of them. */
    set_int(end->fd, IPPROTO_TCP, TCP_NODELAY, 1);
    return CHECK(end->fd >= 0) ? 0 : -1;
}

static long act_connect(struct end *end, long family, long port)
{
    end->fd = make_client((enum family)family, (in_port_t)port);
    set_int(end->fd, IPPROTO_TCP, TCP_NODELAY, 1);
    return end->fd;
}

static void order_send(struct pair *pair, struct order order)
{
    send(pair->control, &order, sizeof order, MSG_NOSIGNAL);
}

long peer_do(struct pair *pair, peer_action *action, long a, long b)
{
    if (pair->setting.place == SAME_THREAD)
        return action(&pair->peer, a, b);
    order_send(pair, (struct order){.action = action, .a = a, .b = b});
    return peer_finish(pair);
}

void peer_start(struct pair *pair, int delay_ms, peer_action *action, long a, long b)
{
    if (CHECK(pair->setting.place != SAME_THREAD))
        order_send(pair, (struct order){action, delay_ms, thread_id(), a, b});
}

long peer_finish(struct pair *pair)
{
    struct answer answer;
    long n;
    do
        n = recv(pair->control, &answer, sizeof answer, 0);
    while (n < 0 && errno == EINTR);
    if (!CHECK(n == sizeof answer)) /* the peer is dead */
        return -1;
    pair->peer_fd = pair->process ? -1 : answer.fd;
    errno = answer.error;
    return answer.result;
}

void peer_end(struct pair *pair, peer_action *action)
{
    if (!CHECK(pair->process != 0))
        return;
    order_send(pair, (struct order){.action = action});
    await_child(pair->process);
    pair->process = current_peer = 0;
}

int self_close(struct pair *pair)
{
    return (int)do_close(&pair->self, 0, 0);
}

static bool peer_spawn(struct pair *pair)
{
    int ends[2];
    if (!CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0))
        return false;
    pair->control = ends[0];
    if (pair->setting.place == OTHER_THREAD) {
        struct peer_start_arguments *arguments = malloc(sizeof *arguments);
        *arguments = (struct peer_start_arguments){ends[1], pair->peer};
        return CHECK_EQ(pthread_create(&pair->thread, NULL, peer_thread, arguments), 0);
    }
    fflush(NULL);
    pair->process = fork();
    if (pair->process == 0) {
        /* Never outlive the script: a hanging peer would keep the runner waiting. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        peer_main(ends[1], &pair->peer);
        _exit(0);
    }
    current_peer = pair->process;
    close(ends[1]);
    return CHECK(pair->process > 0);
}

bool pair_open(struct pair *pair, struct setting setting)
{
    unsigned salt = setting.client ? 17 : 91;
    *pair = (struct pair){
        .self = {.fd = -1, .send_salt = salt, .receive_salt = salt + 5},
        .peer = {.fd = -1, .send_salt = salt + 5, .receive_salt = salt},
        .setting = setting,
        .peer_fd = -1,
        .control = -1,
    };
    enum family family = setting.family;
    if (setting.place == SAME_THREAD) {
        /* connect() needs a listener with room, not somebody in accept(). */
        struct end *server = setting.client ? &pair->peer : &pair->self;
        struct end *client = setting.client ? &pair->self : &pair->peer;
        long port = act_listen(server, family, 0);
        act_connect(client, family, port);
        act_accept(server, 0, 0);
        pair->peer_fd = pair->peer.fd;
    } else {
        if (!peer_spawn(pair))
            return false;
        if (setting.client) {
            long port = peer_do(pair, act_listen, family, 0);
            peer_start(pair, 0, act_accept, 0, 0);
            act_connect(&pair->self, family, port);
        } else {
            long port = act_listen(&pair->self, family, 0);
            peer_start(pair, 0, act_connect, family, port);
            act_accept(&pair->self, 0, 0);
        }
        peer_finish(pair);
    }
    if (pair->self.fd < 0)
        return false;
    if (setting.warm)
        pair_warm(pair);
    return true;
}

void pair_warm(struct pair *pair)
{
    bool waits = counts_edges && getenv("LD_PRELOAD");
    int rounds = waits ? COUNTING_WARM_ROUNDS : WARM_ROUNDS;
    for (int round = 0; round < rounds; round++) {
        if (waits && round >= WARM_ROUNDS && is_moved(pair->self.fd))
            return;
        do_send(&pair->self, 1, 0);
        peer_do(pair, do_recv, 1, 0);
        peer_do(pair, do_send, 1, 0);
        do_recv(&pair->self, 1, 0);
    }
}

void pair_close(struct pair *pair)
{
    if (pair->self.fd >= 0)
        close(pair->self.fd);
    if (pair->setting.place == SAME_THREAD) {
        if (pair->peer.fd >= 0)
            close(pair->peer.fd);
        return;
    }
    if (pair->control >= 0) {
        order_send(pair, (struct order){0});
        close(pair->control);
    }
    if (pair->setting.place == OTHER_THREAD)
        pthread_join(pair->thread, NULL);
    if (pair->process) {
        CHECK_EQ(await_child(pair->process), 0);
        current_peer = 0;
    }
}

/* ---- running --------------------------------------------------------------------- */

static void on_watchdog(int signal)
{
    (void)signal;
    char text[256];
    int len = snprintf(text, sizeof text, "HANG: %s [%s] did not end in time\n", current_test,
                       current_setting);
    if (write(STDERR_FILENO, text, len) < 0)
        _exit(3);
    if (current_peer)
        kill(current_peer, SIGKILL);
    _exit(3);
}

static void on_sigpipe(int signal)
{
    (void)signal;
    __atomic_add_fetch(&sigpipe_count, 1, __ATOMIC_RELAXED);
}

int sigpipes(void)
{
    return __atomic_load_n(&sigpipe_count, __ATOMIC_RELAXED);
}

static const char *const place_names[] = {"same thread", "other thread", "other process"};
static const char *const family_names[] = {"v4", "v6", "mapped", "dual"};
static bool verbose, isolate, witness;

void witness_move(int fd)
{
    if (witness)
        fprintf(stderr, "witness %s (%s): %s\n", current_test, current_setting,
                is_moved(fd) ? "moved" : "stayed");
}

static void run_case(const struct test *test, struct setting setting)
{
    alarm(WATCHDOG_SECONDS);
    struct pair pair = {.self.fd = -1, .peer.fd = -1, .peer_fd = -1, .control = -1};
    pair.setting = setting;
    if (test->traits & ALONE) {
        test->run(&pair);
    } else if (CHECK(pair_open(&pair, setting))) {
        if (setting.warm)
            witness_move(pair.self.fd);
        test->run(&pair);
        pair_close(&pair);
    }
    alarm(0);
}

/* In a process of its own: a crash or a hang costs one case, not all that follow. */
static void run_case_isolated(const struct test *test, struct setting setting)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        run_case(test, setting);
        _exit(0);
    }
    int status = await_child(child);
    if (WIFSIGNALED(status))
        fprintf(stderr, "%s [%s]: ended by signal %d\n", test->name, current_setting,
                WTERMSIG(status));
    CHECK_EQ(status, 0);
}

static void run_once(const struct test *test, struct setting setting)
{
    snprintf(current_setting, sizeof current_setting, "%s, %s, %s, %s",
             test->traits & ALONE ? "alone" : place_names[setting.place],
             setting.warm ? "warm" : "cold", setting.client ? "client" : "server",
             family_names[setting.family]);
    if (verbose)
        fprintf(stderr, "%s [%s]\n", test->name, current_setting);
    memset(shared->scratch, 0, sizeof shared->scratch);
    uint64_t start = now_ms();
    (isolate ? run_case_isolated : run_case)(test, setting);
    if (verbose)
        fprintf(stderr, "    %d ms\n", (int)(now_ms() - start));
}

static void run_settings(const struct test *test)
{
    int first = test->traits & COUNTS_EDGES ? 1 : 0, step = first ? 2 : 1;
    counts_edges = first;
    if (test->traits & ALONE) {
        run_once(test, (struct setting){.family = V4});
        return;
    }
    if (test->traits & SLOW) {
        bool active = test->traits & (ACTIVE_PEER | PROCESS_ONLY);
        enum peer_place place = active ? OTHER_PROCESS : SAME_THREAD;
        run_once(test, (struct setting){.place = place, .warm = first, .client = true});
        run_once(test, (struct setting){.place = OTHER_PROCESS, .warm = true});
        return;
    }
    for (int place = SAME_THREAD; place <= OTHER_PROCESS; place++) {
        if ((place == SAME_THREAD && test->traits & (ACTIVE_PEER | PROCESS_ONLY)) ||
            (place == OTHER_THREAD && test->traits & PROCESS_ONLY))
            continue;
        for (int flavour = first; flavour < 4; flavour += step)
            run_once(test, (struct setting){.place = (enum peer_place)place,
                                            .warm = flavour & 1,
                                            .client = flavour & 2});
    }
    if (test->traits & FAMILIES)
        for (int family = V6; family <= DUAL; family++)
            for (int flavour = first; flavour < 4; flavour += step)
                run_once(test, (struct setting){.place = OTHER_PROCESS,
                                                .warm = flavour & 1,
                                                .client = flavour & 2,
                                                .family = (enum family)family});
}

/* Arguments: [-v] [-i] [-w] [part of a test's name]. -v names each case and its time, -i
 * runs each in a process of its own, -w says of each warm connection whether it has moved. */
int run_tests(int argc, char **argv, const struct test *tests, size_t count)
{
    const char *filter = "";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0)
            verbose = true;
        else if (strcmp(argv[i], "-i") == 0)
            isolate = true;
        else if (strcmp(argv[i], "-w") == 0)
            witness = true;
        else
            filter = argv[i];
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    setvbuf(stderr, NULL, _IOLBF, 0);
    struct sigaction action = {.sa_handler = on_watchdog};
    sigaction(SIGALRM, &action, NULL);
    action = (struct sigaction){.sa_handler = on_sigpipe, .sa_flags = SA_RESTART};
    sigaction(SIGPIPE, &action, NULL);
    pid_t program = getpid();
    for (size_t i = 0; i < count; i++) {
        if (!strstr(tests[i].name, filter))
            continue;
        current_test = tests[i].name;
        run_settings(&tests[i]);
    }
    if (getpid() != program) /* a child that a test forked came out here */
        _exit(4);
    printf("%lu passed, %lu failed\n", shared->passed, shared->failed);
    return shared->failed ? 1 : 0;
}

/* ---- small things ---------------------------------------------------------------- */

uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void sleep_ms(int ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

bool await_readable(int fd, int len)
{
    uint64_t deadline = now_ms() + HANG_MS;
    int queued = 0;
    while (ioctl(fd, FIONREAD, &queued) == 0 && queued < len && now_ms() < deadline)
        sleep_ms(1);
    return CHECK_BETWEEN(queued, len, INT_MAX);
}

pid_t thread_id(void)
{
    return (pid_t)syscall(SYS_gettid);
}

/* The letter of proc(5): R runs or would like to, S sleeps. 0: it is gone. */
static char state_of(pid_t id)
{
    char path[40], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)id);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t n = read(file, text, sizeof text - 1);
    close(file);
    text[n > 0 ? n : 0] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] ? name_end[2] : 0;
}

bool await_asleep(pid_t id)
{
    uint64_t deadline = now_ms() + HANG_MS;
    char state;
    while ((state = state_of(id)) != 'S' && now_ms() < deadline) {
        if (state == 0 || state == 'Z' || state == 'X')
            return false;
        sleep_ms(1);
    }
    return CHECK_EQ(state, 'S');
}

int await_child(pid_t child)
{
    int status = -1;
    while (waitpid(child, &status, 0) < 0)
        if (!CHECK(errno == EINTR))
            return -1;
    return status;
}

int set_nonblock(int fd, bool on)
{
    int flags = fcntl(fd, F_GETFL);
    return fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

int set_int(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value);
}

int get_int(int fd, int level, int name)
{
    int value = -1;
    socklen_t len = sizeof value;
    if (getsockopt(fd, level, name, &value, &len) < 0)
        return -1;
    return value;
}

short poll_once(int fd, short events, int timeout_ms)
{
    struct pollfd entry = {.fd = fd, .events = events};
    int n = poll(&entry, 1, timeout_ms);
    return n > 0 ? entry.revents : (short)(n < 0 ? -1 : 0);
}

void *shared_scratch(void)
{
    return shared->scratch;
}

/* Not inlined: with the number in an instruction beside it the library would recognise it, and
 * leave every connection on TCP. */
__attribute__((noinline)) long past_libc(long number, long a, long b, long c, long d, long e)
{
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return number;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x8) : "memory");
    return x0;
#endif
}

/* The library leaves a mark in an option of the kernel's socket, which it does not show. */
bool is_moved(int fd)
{
    int value = 0;
    socklen_t len = sizeof value;
    CHECK_EQ(past_libc(SYS_getsockopt, fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, (long)&value,
                       (long)&len), 0);
    return value == 0x7f534d43;
}

static timer_t signal_timer;

void signal_me(int signal, int delay_ms, int every_ms)
{
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = signal};
    event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
    struct itimerspec when = {
        .it_value = {delay_ms / 1000, delay_ms % 1000 * 1000000L},
        .it_interval = {every_ms / 1000, every_ms % 1000 * 1000000L},
    };
    CHECK_EQ(timer_create(CLOCK_MONOTONIC, &event, &signal_timer), 0);
    CHECK_EQ(timer_settime(signal_timer, 0, &when, NULL), 0);
}

void signal_me_stop(void)
{
    CHECK_EQ(timer_delete(signal_timer), 0);
}

/* ---- epoll ----------------------------------------------------------------------- */

int epoll_add(int set, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

int epoll_mod(int set, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
}

uint32_t one_event(int set, uint64_t data, int timeout_ms)
{
    struct epoll_event events[4];
    int n = epoll_wait(set, events, 4, timeout_ms);
    if (n == 0)
        return 0;
    CHECK_EQ(n, 1);
    CHECK_EQ(events[0].data.u64, data);
    return events[0].events;
}

void arrive(struct pair *pair, long len)
{
    int before = 0;
    ioctl(pair->self.fd, FIONREAD, &before);
    peer_do(pair, do_send, len, 0);
    await_readable(pair->self.fd, before + (int)len);
}
