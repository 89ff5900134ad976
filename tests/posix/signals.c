/*
 * signals.c: a signal meets a sleeping call. The law is signal(7), "Interruption of
 * system calls and library functions by signal handlers": read and write families
 * restart under SA_RESTART unless a time-out is set; poll, select and epoll_wait
 * never do; whoever has moved something returns how much.
 */
#include "support.h"

#include <setjmp.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

/* Signals repeat until the call is over: one that comes early, because the machine is
 * busy, must not leave the test asleep. The rescue comes after the first of them. */
enum { SIGNAL_MS = 8, RESCUE_MS = 40 };

static unsigned char buffer[1 << 16];
static volatile sig_atomic_t signals;
static struct sigaction old_action;

static void on_signal(int signal)
{
    (void)signal;
    signals++;
}

/* SIGUSR1 for this thread every SIGNAL_MS from now. */
static void expect_signal(int flags)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    sigaction(SIGUSR1, &action, &old_action);
    signals = 0;
    signal_me(SIGUSR1, SIGNAL_MS, SIGNAL_MS);
}

static void signal_came(void)
{
    CHECK(signals >= 1);
    signal_me_stop();
    sigaction(SIGUSR1, &old_action, NULL);
}

#define CHECK_INTERRUPTED(flags, call) \
    do {                               \
        expect_signal(flags);          \
        CHECK_ERRNO(call, EINTR);      \
        signal_came();                 \
    } while (0)

/* ---- receiving ------------------------------------------------------------------- */

static void recv_is_interrupted(struct pair *p)
{
    int fd = p->self.fd;
    struct iovec vector = {buffer, 10};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    struct mmsghdr messages = {.msg_hdr = message};
    CHECK_INTERRUPTED(0, recv(fd, buffer, 10, 0));
    CHECK_INTERRUPTED(0, read(fd, buffer, 10));
    CHECK_INTERRUPTED(0, readv(fd, &vector, 1));
    CHECK_INTERRUPTED(0, recvmsg(fd, &message, 0));
    CHECK_INTERRUPTED(0, recvmmsg(fd, &messages, 1, 0, NULL));
    CHECK_INTERRUPTED(0, recv(fd, buffer, 10, MSG_PEEK));
    CHECK_INTERRUPTED(0, recv(fd, buffer, 10, MSG_WAITALL));
    peer_do(p, do_send, 10, 0);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
}

static void recv_restarts(struct pair *p)
{
    expect_signal(SA_RESTART);
    peer_start(p, RESCUE_MS, do_send, 10, 0);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 10);
    signal_came();
    peer_finish(p);
    expect_signal(SA_RESTART);
    peer_start(p, RESCUE_MS, do_send, 10, 0);
    CHECK_EQ(read(p->self.fd, buffer, 100), 10);
    CHECK(take_bytes(&p->self, buffer, 10));
    signal_came();
    peer_finish(p);
    expect_signal(SA_RESTART);
    peer_start(p, RESCUE_MS, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(recv(p->self.fd, buffer, 100, 0), 0);
    signal_came();
    peer_finish(p);
}

/* A time-out makes the call one of those that never restart. */
static void recv_with_timeout_does_not_restart(struct pair *p)
{
    struct timeval time = {HANG_MS / 1000, 0};
    setsockopt(p->self.fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    CHECK_INTERRUPTED(SA_RESTART, recv(p->self.fd, buffer, 10, 0));
    CHECK_INTERRUPTED(0, recv(p->self.fd, buffer, 10, 0));
}

/* What MSG_WAITALL has so far is returned, whatever SA_RESTART says. */
static void waitall_returns_the_part(struct pair *p)
{
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        peer_do(p, do_send, 30, 0);
        expect_signal(flags);
        CHECK_EQ(do_recv_once(&p->self, 100, MSG_WAITALL), 30);
        signal_came();
    }
}

/* ---- sending --------------------------------------------------------------------- */

/* Full is not for ever (late acknowledgements make room), so these send until the
 * call that sleeps; the signal repeats until then. */
static void send_is_interrupted(struct pair *p)
{
    long total = do_fill(&p->self, 8192, 0), n;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, &old_action);
    signal_me(SIGUSR1, SIGNAL_MS, SIGNAL_MS);
    while ((n = do_send_once(&p->self, 8192, 0)) > 0)
        total += n;
    CHECK_EQ(errno, EINTR);
    signal_me_stop();
    sigaction(SIGUSR1, &old_action, NULL);
    /* Nothing was lost or sent twice. */
    CHECK_EQ(peer_do(p, do_recv, total, 0), total);
    CHECK_EQ(peer_do(p, do_recv_once, 1, MSG_DONTWAIT), -1);
}

static void send_restarts(struct pair *p)
{
    long total = do_fill(&p->self, 8192, 0);
    expect_signal(SA_RESTART);
    peer_start(p, RESCUE_MS, do_recv, total, 0);
    /* All of it, or what was queued when the signal came. */
    long n = do_send_once(&p->self, 8192, 0);
    CHECK_BETWEEN(n, 1, 8192);
    CHECK_EQ(peer_finish(p), total);
    sleep_ms(1);
    signal_me_stop();
    sigaction(SIGUSR1, &old_action, NULL);
    CHECK_EQ(peer_do(p, do_recv, n, 0), n);
}

/* What counts is the handler that runs, not what others the program has. */
static void send_restarts_beside_others(struct pair *p)
{
    struct sigaction other = {.sa_handler = on_signal}, old;
    sigaction(SIGUSR2, &other, &old);
    send_restarts(p);
    sigaction(SIGUSR2, &old, NULL);
}

/* A large send that was interrupted midway says how much went out. */
static void send_returns_the_part(struct pair *p)
{
    enum { LEN = 16 << 20 };
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        unsigned char *bytes = malloc(LEN);
        pattern_fill(bytes, LEN, p->self.sent, p->self.send_salt);
        expect_signal(flags);
        long n = send(p->self.fd, bytes, LEN, 0);
        CHECK_BETWEEN(n, 1, LEN - 1);
        signal_came();
        free(bytes);
        p->self.sent += n;
        CHECK_EQ(peer_do(p, do_recv, n, 0), n);
        CHECK_EQ(peer_do(p, do_recv_once, 1, MSG_DONTWAIT), -1);
    }
}

/* ---- waiting --------------------------------------------------------------------- */

static void waits_never_restart(struct pair *p)
{
    struct pollfd entry = {p->self.fd, POLLIN, 0};
    struct timespec long_time = {HANG_MS / 1000, 0};
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(set, EPOLL_CTL_ADD, p->self.fd, &event);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(p->self.fd, &in);
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        CHECK_INTERRUPTED(flags, poll(&entry, 1, HANG_MS));
        CHECK_INTERRUPTED(flags, poll(&entry, 1, -1));
        CHECK_INTERRUPTED(flags, ppoll(&entry, 1, &long_time, NULL));
        CHECK_INTERRUPTED(flags, select(p->self.fd + 1, &in, NULL, NULL, NULL));
        CHECK(FD_ISSET(p->self.fd, &in));
        CHECK_INTERRUPTED(flags, pselect(p->self.fd + 1, &in, NULL, NULL, &long_time, NULL));
        CHECK_INTERRUPTED(flags, epoll_wait(set, &event, 1, -1));
        CHECK_INTERRUPTED(flags, epoll_wait(set, &event, 1, HANG_MS));
        CHECK_INTERRUPTED(flags, epoll_pwait(set, &event, 1, HANG_MS, NULL));
        CHECK_INTERRUPTED(flags, epoll_pwait2(set, &event, 1, &long_time, NULL));
    }
    close(set);
}

/* An ignored signal interrupts nothing. */
static void ignored_signals_do_not_disturb(struct pair *p)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGUSR1, &ignore, &old_action);
    signal_me(SIGUSR1, 5, 5);
    peer_start(p, RESCUE_MS, do_send, 10, 0);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 10);
    peer_finish(p);
    CHECK_EQ(poll_once(p->self.fd, POLLIN, 30), 0);
    signal_me_stop();
    sigaction(SIGUSR1, &old_action, NULL);
}

/* ---- under a hail of signals ----------------------------------------------------- */

/* With SA_RESTART a program that knows nothing of signals sees none: a receive is
 * never EINTR, and a send is at worst short. */
static void bulk_in_a_hail(struct pair *p)
{
    enum { LEN = 4 << 20 };
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, &old_action);
    signals = 0;
    signal_me(SIGUSR1, 1, 1);
    peer_start(p, 0, do_send, LEN, 0);
    long left = LEN;
    while (left > 0) {
        long n = recv(p->self.fd, buffer, sizeof buffer, 0);
        if (!CHECK(n > 0) || !CHECK(take_bytes(&p->self, buffer, n)))
            break;
        left -= n;
    }
    CHECK_EQ(peer_finish(p), LEN);
    peer_start(p, 0, do_recv, LEN, 0);
    CHECK_EQ(do_send(&p->self, LEN, 0), LEN);
    CHECK_EQ(peer_finish(p), LEN);
    peer_start(p, 0, do_echo, 64, 500);
    for (int i = 0; i < 500; i++) {
        do_send(&p->self, 64, 0);
        CHECK_EQ(do_recv(&p->self, 64, 0), 64);
    }
    CHECK_EQ(peer_finish(p), 0);
    signal_me_stop();
    sigaction(SIGUSR1, &old_action, NULL);
}

/* ---- handlers that use the socket ------------------------------------------------ */

static struct end *handler_end;
static volatile long handler_result;

static void on_signal_send(int signal)
{
    (void)signal;
    signals++;
    /* send() is async-signal-safe, also while the program sleeps in recv(). */
    handler_result = send(handler_end->fd, "h", 1, MSG_DONTWAIT);
}

static void handler_sends(struct pair *p)
{
    struct sigaction action = {.sa_handler = on_signal_send, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, &old_action);
    signals = 0;
    handler_end = &p->self;
    signal_me(SIGUSR1, SIGNAL_MS, 0);
    peer_start(p, RESCUE_MS, do_send, 10, 0);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 10);
    signal_came();
    peer_finish(p);
    CHECK_EQ(handler_result, 1);
    CHECK_EQ(peer_do(p, do_recv_once, 1, MSG_PEEK), 1);
}

static void on_signal_recv(int signal)
{
    (void)signal;
    signals++;
    handler_result = recv(handler_end->fd, buffer, 10, MSG_DONTWAIT);
}

/* The handler's own recv finds nothing and disturbs nothing. */
static void handler_receives(struct pair *p)
{
    struct sigaction action = {.sa_handler = on_signal_recv, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, &old_action);
    signals = 0;
    handler_end = &p->self;
    handler_result = 0;
    signal_me(SIGUSR1, SIGNAL_MS, 0);
    peer_start(p, RESCUE_MS, do_send, 10, 0);
    CHECK_EQ(do_recv_once(&p->self, 100, 0), 10);
    signal_came();
    peer_finish(p);
    CHECK_EQ(handler_result, -1);
}

/* Two programs whose handlers use the connection in the middle of whatever they interrupt: each sends and
 * receives as often as it comes. Each byte tells what it is, and each has to arrive once. */
enum { CONNECTIONS = 100, QUESTIONS = 40, BETWEEN_US = 70 };

static int hailed;
/* Counted apart: a handler may come in the middle of an increment. */
static volatile long taken[256], taken_in_handler[256];
static volatile long sent_in_handler;
static volatile sig_atomic_t may_send;

static void put(char byte)
{
    while (send(hailed, &byte, 1, 0) != 1) {
        if (errno != EINTR && errno != EAGAIN) {
            return;
        }
    }
}

/* Takes a byte, and answers a question: what recv() says. */
static long take(volatile long *count, int flags)
{
    unsigned char byte;
    long got = recv(hailed, &byte, 1, flags);
    if (got == 1) {
        count[byte]++;
        if (byte == 'q') {
            put('a');
        }
    }
    return got;
}

static long taken_of(unsigned char byte)
{
    return taken[byte] + taken_in_handler[byte];
}

static void on_hail(int signal)
{
    (void)signal;
    int before = errno;
    if (may_send) {
        put('h');
        sent_in_handler++;
    }
    take(taken_in_handler, MSG_DONTWAIT);
    errno = before;
}

static void hail(int every_us)
{
    struct sigaction action = {.sa_handler = on_hail};
    struct itimerval timer = {{0, every_us}, {0, every_us}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void begin_anew(int fd)
{
    hailed = fd;
    sent_in_handler = 0;
    memset((void *)taken, 0, sizeof taken);
    memset((void *)taken_in_handler, 0, sizeof taken_in_handler);
    may_send = 1;
}

/* Reads to the end of the stream: handlers come, and take what is theirs. */
static void take_the_rest(void)
{
    long got;
    while ((got = take(taken, 0)) == 1 || (got < 0 && errno == EINTR)) {
    }
}

/* The end that answers: tells how many bytes its handlers have sent and which came, then closes. */
static void answer(int listener, int tell)
{
    begin_anew(accept(listener, NULL, NULL));
    hail(BETWEEN_US);
    while (taken_of('q') < QUESTIONS) {
        take(taken, 0);
    }
    may_send = 0;
    shutdown(hailed, SHUT_WR);
    take_the_rest();
    hail(0);
    long told[] = {sent_in_handler, taken_of('q'), taken_of('h')};
    CHECK_EQ(write(tell, told, sizeof told), sizeof told);
    close(hailed);
}

static void handlers_in_the_middle(struct pair *p)
{
    (void)p;
    struct sockaddr_storage address;
    socklen_t len;
    int told[2];
    int listener = make_listener(V4, &address, &len);
    CHECK_EQ(pipe(told), 0);
    pid_t other = fork();
    if (other == 0) {
        for (int i = 0; i < CONNECTIONS; i++) {
            answer(listener, told[1]);
        }
        _exit(0);
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK_EQ(connect(fd, (struct sockaddr *)&address, len), 0);
        begin_anew(fd);
        hail(BETWEEN_US);
        for (int asked = 1; asked <= QUESTIONS; asked++) {
            put('q');
            while (taken_of('a') < asked) {
                take(taken, 0);
            }
        }
        may_send = 0;
        shutdown(fd, SHUT_WR);
        take_the_rest();
        hail(0);
        long at_the_other[3];
        CHECK_EQ(read(told[0], at_the_other, sizeof at_the_other), sizeof at_the_other);
        bool is_all = CHECK_EQ(taken_of('a'), QUESTIONS) && CHECK_EQ(taken_of('h'), at_the_other[0])
                      && CHECK_EQ(at_the_other[1], QUESTIONS)
                      && CHECK_EQ(at_the_other[2], sent_in_handler);
        close(fd);
        if (!is_all) {
            break;
        }
    }
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    close(told[0]);
    close(told[1]);
    close(listener);
}

static sigjmp_buf way_out;
static volatile sig_atomic_t inside;

static void on_signal_jump(int signal)
{
    (void)signal;
    if (inside) {
        inside = 0;
        siglongjmp(way_out, 1);
    }
}

/* Old programs leave a sleeping read by a long jump; the socket stays usable. */
static void handler_jumps_out(struct pair *p)
{
    struct sigaction action = {.sa_handler = on_signal_jump};
    sigaction(SIGUSR1, &action, &old_action);
    for (volatile int way = 0; way < 3; way++) {
        signal_me(SIGUSR1, SIGNAL_MS, SIGNAL_MS);
        if (sigsetjmp(way_out, 1) == 0) {
            inside = 1;
            long n = way == 0   ? recv(p->self.fd, buffer, 10, 0)
                     : way == 1 ? poll_once(p->self.fd, POLLIN, HANG_MS)
                                : recv(p->self.fd, buffer, 10, MSG_PEEK);
            CHECK_EQ(n, -2); /* not reached */
        }
        signal_me_stop();
        peer_do(p, do_send, 10, 0);
        CHECK_EQ(do_recv(&p->self, 10, 0), 10);
        CHECK_EQ(do_send(&p->self, 10, 0), 10);
        CHECK_EQ(peer_do(p, do_recv, 10, 0), 10);
    }
    sigaction(SIGUSR1, &old_action, NULL);
}

/* ---- signals that mean data ------------------------------------------------------ */

/* O_ASYNC: SIGIO to the owner when something arrives. */
static void signal_driven_io(struct pair *p)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGIO, &action, &old_action);
    signals = 0;
    CHECK_EQ(fcntl(p->self.fd, F_SETOWN, getpid()), 0);
    CHECK_EQ(fcntl(p->self.fd, F_SETFL, fcntl(p->self.fd, F_GETFL) | O_ASYNC), 0);
    for (int i = 0; i < 3; i++) {
        int before = signals;
        peer_do(p, do_send, 10, 0);
        uint64_t deadline = now_ms() + HANG_MS;
        while (signals == before && now_ms() < deadline)
            sleep_ms(1);
        CHECK(signals > before);
        CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    }
    fcntl(p->self.fd, F_SETFL, fcntl(p->self.fd, F_GETFL) & ~O_ASYNC);
    sigaction(SIGIO, &old_action, NULL);
}

static volatile sig_atomic_t signal_fd_number = -1, signal_band;

static void on_numbered_signal(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    signal_fd_number = info->si_fd;
    signal_band = (sig_atomic_t)info->si_band;
    signals++;
}

/* F_SETSIG: a signal of one's own choice, which says where and what. */
static void signal_says_what(struct pair *p)
{
    struct sigaction action = {.sa_sigaction = on_numbered_signal,
                               .sa_flags = SA_RESTART | SA_SIGINFO};
    int fd = p->self.fd, number = SIGRTMIN + 3;
    sigaction(number, &action, &old_action);
    CHECK_EQ(fcntl(fd, F_SETSIG, number), 0);
    CHECK_EQ(fcntl(fd, F_GETSIG), number);
    CHECK_EQ(fcntl(fd, F_SETOWN, getpid()), 0);
    CHECK_EQ(fcntl(fd, F_GETOWN), getpid());
    CHECK_EQ(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC), 0);
    for (int i = 0; i < 3; i++) {
        signals = 0;
        peer_do(p, do_send, 10, 0);
        for (uint64_t deadline = now_ms() + HANG_MS; !signals && now_ms() < deadline;)
            sleep_ms(1);
        CHECK_EQ(signal_fd_number, fd);
        CHECK(signal_band & POLLIN);
        CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    }
    CHECK_EQ(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_ASYNC), 0);
    CHECK_EQ(fcntl(fd, F_SETSIG, 0), 0);
    sigaction(number, &old_action, NULL);
}

/* ---- signals and time as descriptors --------------------------------------------- */

enum { SOCKET, SIGNALS, TIME };

/* What the set shows, as bits by SOCKET, SIGNALS and TIME. */
static unsigned shown(int set)
{
    struct epoll_event events[3];
    unsigned seen = 0;
    int n = epoll_wait(set, events, 3, HANG_MS);
    for (int i = 0; i < n; i++)
        seen |= 1u << events[i].data.u32;
    return seen;
}

/* One loop for a connection, a signalfd and a timerfd: each wakes it alone, none hides
 * another. */
static void one_loop_for_all(struct pair *p)
{
    sigset_t mask, old_mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &mask, &old_mask);
    int fds[] = {p->self.fd, signalfd(-1, &mask, SFD_NONBLOCK),
                 timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)};
    int set = epoll_create1(0);
    for (uint32_t i = SOCKET; i <= TIME; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event), 0);
    }
    struct itimerspec soon = {.it_value = {0, 5000000}};
    struct signalfd_siginfo info;
    uint64_t times;
    for (int round = 0; round < 3; round++) {
        timerfd_settime(fds[TIME], 0, &soon, NULL);
        CHECK_EQ(shown(set), 1 << TIME);
        CHECK_EQ(read(fds[TIME], &times, sizeof times), sizeof times);
        CHECK_EQ(times, 1);

        signal_me(SIGUSR2, SIGNAL_MS, 0);
        CHECK_EQ(shown(set), 1 << SIGNALS);
        CHECK_EQ(read(fds[SIGNALS], &info, sizeof info), sizeof info);
        CHECK_EQ(info.ssi_signo, SIGUSR2);
        signal_me_stop();

        peer_start(p, 5, do_send, 10, 0);
        CHECK_EQ(shown(set), 1 << SOCKET);
        peer_finish(p);

        /* The connection still has its bytes while the others come. */
        pthread_kill(pthread_self(), SIGUSR2);
        timerfd_settime(fds[TIME], 0, &soon, NULL);
        sleep_ms(10);
        CHECK_EQ(shown(set), 1 << SOCKET | 1 << SIGNALS | 1 << TIME);
        CHECK_EQ(read(fds[SIGNALS], &info, sizeof info), sizeof info);
        CHECK_EQ(read(fds[TIME], &times, sizeof times), sizeof times);
        CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    }
    close(set);
    close(fds[TIME]);
    close(fds[SIGNALS]);
    pthread_sigmask(SIG_SETMASK, &old_mask, NULL);
}

static void accept_and_connect(struct pair *p)
{
    (void)p;
    struct sockaddr_storage address;
    socklen_t len;
    int listener = make_listener(V4, &address, &len);
    CHECK_INTERRUPTED(0, accept(listener, NULL, NULL));
    close(listener);
}

static const struct test tests[] = {
    {"recv_is_interrupted", recv_is_interrupted, SLOW},
    {"recv_restarts", recv_restarts, ACTIVE_PEER | SLOW},
    {"recv_with_timeout_does_not_restart", recv_with_timeout_does_not_restart, SLOW},
    {"waitall_returns_the_part", waitall_returns_the_part, SLOW},
    {"send_is_interrupted", send_is_interrupted, ACTIVE_PEER | SLOW},
    {"send_restarts", send_restarts, ACTIVE_PEER | SLOW},
    {"send_restarts_beside_others", send_restarts_beside_others, ACTIVE_PEER | SLOW},
    {"send_returns_the_part", send_returns_the_part, ACTIVE_PEER | SLOW},
    {"waits_never_restart", waits_never_restart, SLOW},
    {"ignored_signals_do_not_disturb", ignored_signals_do_not_disturb, ACTIVE_PEER | SLOW},
    {"bulk_in_a_hail", bulk_in_a_hail, ACTIVE_PEER | SLOW},
    {"handler_sends", handler_sends, ACTIVE_PEER | SLOW},
    {"handler_receives", handler_receives, ACTIVE_PEER | SLOW},
    {"handlers_in_the_middle", handlers_in_the_middle, ALONE | SLOW},
    {"handler_jumps_out", handler_jumps_out, SLOW},
    {"signal_driven_io", signal_driven_io, 0},
    {"signal_says_what", signal_says_what, 0},
    {"one_loop_for_all", one_loop_for_all, ACTIVE_PEER},
    {"accept_and_connect", accept_and_connect, ALONE},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
