/* poll.c: poll, ppoll, select and pselect over sockets and other descriptors. */
#include "support.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static char buffer[1000];

/* ---- masks ----------------------------------------------------------------------- */

/* Only what was asked for, except ERR, HUP and NVAL. */
static void only_what_was_asked(struct pair *p)
{
    int fd = p->self.fd;
    CHECK_EQ(poll_once(fd, POLLIN, 0), 0);
    CHECK_EQ(poll_once(fd, POLLOUT, 0), POLLOUT);
    CHECK_EQ(poll_once(fd, 0, 0), 0);
    peer_do(p, do_send, 10, 0);
    await_readable(fd, 10);
    CHECK_EQ(poll_once(fd, POLLIN, 0), POLLIN);
    CHECK_EQ(poll_once(fd, POLLIN | POLLOUT, 0), POLLIN | POLLOUT);
    CHECK_EQ(poll_once(fd, POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM | POLLWRBAND | POLLRDBAND, 0),
             POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM); /* TCP has no bands */
    CHECK_EQ(poll_once(fd, POLLPRI, 0), 0);
    CHECK_EQ(poll_once(fd, 0, 0), 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(fd, POLLIN | POLLOUT | POLLRDHUP);
    CHECK_EQ(poll_once(fd, POLLIN, 0), POLLIN); /* RDHUP only if asked */
    CHECK_EQ(poll_once(fd, POLLRDHUP, 0), POLLRDHUP);
    CHECK_EQ(poll_once(fd, 0, 0), 0);
    do_recv(&p->self, 10, 0);
    CHECK_EQ(poll_once(fd, POLLIN, 0), POLLIN);
    shutdown(fd, SHUT_WR);
    CHECK_MASK(fd, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
    CHECK_EQ(poll_once(fd, 0, 0), POLLHUP); /* HUP even if not */
}

/* Level, not edge: as long as something is there. */
static void level(struct pair *p)
{
    peer_do(p, do_send, 10, 0);
    await_readable(p->self.fd, 10);
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(poll_once(p->self.fd, POLLIN, HANG_MS), POLLIN);
        CHECK_EQ(do_recv(&p->self, 1, 0), 1);
    }
    CHECK_EQ(poll_once(p->self.fd, POLLIN, 0), 0);
}

/* Negative numbers are skipped, closed ones say NVAL, and both are no error. */
static void odd_entries(struct pair *p)
{
    int closed = dup(0);
    close(closed);
    struct pollfd entries[] = {
        {.fd = -1, .events = POLLIN, .revents = -1},
        {.fd = p->self.fd, .events = POLLOUT},
        {.fd = closed, .events = POLLIN},
        {.fd = p->self.fd, .events = POLLIN},
        {.fd = -p->self.fd, .events = POLLOUT, .revents = -1},
    };
    CHECK_EQ(poll(entries, 5, HANG_MS), 2);
    CHECK_EQ(entries[0].revents, 0);
    CHECK_EQ(entries[1].revents, POLLOUT);
    CHECK_EQ(entries[2].revents, POLLNVAL);
    CHECK_EQ(entries[3].revents, 0);
    CHECK_EQ(entries[4].revents, 0);
    CHECK_EQ(poll(NULL, 0, 1), 0);
    CHECK_EQ(poll(entries, 1, 1), 0); /* only a negative one: sleeps */
}

/* The same descriptor twice counts twice. */
static void twice(struct pair *p)
{
    peer_do(p, do_send, 1, 0);
    await_readable(p->self.fd, 1);
    struct pollfd entries[] = {{p->self.fd, POLLIN, 0}, {p->self.fd, POLLIN | POLLOUT, 0}};
    CHECK_EQ(poll(entries, 2, 0), 2);
    CHECK_EQ(entries[0].revents, POLLIN);
    CHECK_EQ(entries[1].revents, POLLIN | POLLOUT);
}

/* More entries than the process may have descriptors. */
static void too_many_entries(struct pair *p)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    struct rlimit small = {64, limit.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &small), 0);
    struct pollfd entries[65];
    for (int i = 0; i < 65; i++)
        entries[i] = (struct pollfd){.fd = p->self.fd, .events = POLLOUT};
    CHECK_EQ(poll(entries, 64, 0), 64);
    CHECK_ERRNO(poll(entries, 65, 0), EINVAL);
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* ---- waiting --------------------------------------------------------------------- */

#define CHECK_TAKES(call_and_check, low)                \
    do {                                                \
        uint64_t start_ = now_ms();                     \
        call_and_check;                                 \
        CHECK_BETWEEN(now_ms() - start_, low, HANG_MS); \
    } while (0)

static void timeouts(struct pair *p)
{
    struct pollfd entry = {p->self.fd, POLLIN, -1};
    CHECK_TAKES(CHECK_EQ(poll(&entry, 1, 40), 0), 40);
    CHECK_EQ(entry.revents, 0);
    struct timespec time = {0, 40000000};
    CHECK_TAKES(CHECK_EQ(ppoll(&entry, 1, &time, NULL), 0), 40);
    CHECK_EQ(time.tv_nsec, 40000000); /* the library's copy, not ours, is worn down */
    time.tv_nsec = 1000000000;
    CHECK_ERRNO(ppoll(&entry, 1, &time, NULL), EINVAL);
    time = (struct timespec){-1, 0};
    CHECK_ERRNO(ppoll(&entry, 1, &time, NULL), EINVAL);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(p->self.fd, &set);
    struct timeval wait = {0, 40000};
    CHECK_TAKES(CHECK_EQ(select(p->self.fd + 1, &set, NULL, NULL, &wait), 0), 40);
    CHECK_EQ(FD_ISSET(p->self.fd, &set), 0); /* cleared */
    CHECK_EQ(wait.tv_sec, 0);
    CHECK_EQ(wait.tv_usec, IS_GLIBC ? 0 : 40000); /* Linux shows what is left, and musl hides it */
}

/* Waking by the peer's data while asleep. */
static void data_wakes_poll(struct pair *p)
{
    for (int i = 0; i < 3; i++) {
        peer_start(p, 15, do_send, 10, 0);
        CHECK_TAKES(CHECK_EQ(poll_once(p->self.fd, POLLIN, HANG_MS), POLLIN), 5);
        peer_finish(p);
        CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    }
    peer_start(p, 15, do_send, 10, 0);
    CHECK_EQ(poll_once(p->self.fd, POLLIN, -1), POLLIN);
    peer_finish(p);
}

static void data_wakes_select(struct pair *p)
{
    for (int i = 0; i < 3; i++) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(p->self.fd, &set);
        peer_start(p, 15, do_send, 10, 0);
        struct timeval wait = {HANG_MS / 1000, 0};
        CHECK_EQ(select(p->self.fd + 1, &set, NULL, NULL, &wait), 1);
        CHECK_EQ(FD_ISSET(p->self.fd, &set) != 0, 1);
        CHECK_BETWEEN(wait.tv_sec * 1000 + wait.tv_usec / 1000, 1, IS_GLIBC ? HANG_MS - 5 : HANG_MS);
        peer_finish(p);
        CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    }
}

/* Waiting on the socket and on something else: either wakes. */
static void mixed_with_other_descriptors(struct pair *p)
{
    int event = eventfd(0, EFD_NONBLOCK), ends[2];
    CHECK_EQ(pipe(ends), 0);
    struct pollfd entries[] = {{event, POLLIN, 0}, {p->self.fd, POLLIN, 0}, {ends[0], POLLIN, 0}};
    CHECK_EQ(poll(entries, 3, 0), 0);
    CHECK_EQ(write(ends[1], "x", 1), 1);
    CHECK_EQ(poll(entries, 3, HANG_MS), 1);
    CHECK_EQ(entries[2].revents, POLLIN);
    peer_do(p, do_send, 10, 0);
    await_readable(p->self.fd, 10);
    /* All that is ready is reported, not only the first kind found. */
    CHECK_EQ(poll(entries, 3, HANG_MS), 2);
    CHECK_EQ(entries[0].revents, 0);
    CHECK_EQ(entries[1].revents, POLLIN);
    CHECK_EQ(entries[2].revents, POLLIN);
    uint64_t one = 1;
    CHECK_EQ(write(event, &one, sizeof one), sizeof one);
    CHECK_EQ(poll(entries, 3, HANG_MS), 3);
    fd_set set;
    FD_ZERO(&set);
    int highest = 0;
    for (int i = 0; i < 3; i++) {
        FD_SET(entries[i].fd, &set);
        if (entries[i].fd > highest)
            highest = entries[i].fd;
    }
    CHECK_EQ(select(highest + 1, &set, NULL, NULL, &(struct timeval){60, 0}), 3);
    close(event), close(ends[0]), close(ends[1]);
}

struct later {
    int fd;
    pid_t sleeper;
};

static void *write_later(void *argument)
{
    struct later *later = argument;
    await_asleep(later->sleeper);
    CHECK_EQ(write(later->fd, "x", 1), 1);
    return NULL;
}

/* Asleep on both, woken by the pipe. */
static void other_descriptor_wakes(struct pair *p)
{
    int ends[2];
    pthread_t writer;
    CHECK_EQ(pipe(ends), 0);
    struct pollfd entries[] = {{p->self.fd, POLLIN, 0}, {ends[0], POLLIN, 0}};
    struct later later = {ends[1], thread_id()};
    CHECK_EQ(pthread_create(&writer, NULL, write_later, &later), 0);
    CHECK_EQ(poll(entries, 2, HANG_MS), 1);
    CHECK_EQ(entries[0].revents, 0);
    CHECK_EQ(entries[1].revents, POLLIN);
    pthread_join(writer, NULL);
    close(ends[0]), close(ends[1]);
}

/* ---- select ---------------------------------------------------------------------- */

static void select_sets(struct pair *p)
{
    int fd = p->self.fd;
    fd_set in, out, except;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&except);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    FD_SET(fd, &except);
    struct timeval none = {0, 0};
    CHECK_EQ(select(fd + 1, &in, &out, &except, &none), 1);
    CHECK_EQ(FD_ISSET(fd, &in) || FD_ISSET(fd, &except), 0);
    CHECK_EQ(FD_ISSET(fd, &out) != 0, 1);
    peer_do(p, do_send, 10, 0);
    await_readable(fd, 10);
    FD_SET(fd, &in);
    FD_SET(fd, &except);
    CHECK_EQ(select(fd + 1, &in, &out, &except, &none), 2); /* bits, not descriptors */
    CHECK_EQ(FD_ISSET(fd, &in) && FD_ISSET(fd, &out), 1);
    /* A reset makes it readable and writable, never exceptional (that is POLLPRI). */
    peer_do(p, do_linger, 1, 0);
    peer_do(p, do_close, 0, 0);
    CHECK_MASK(fd, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    FD_SET(fd, &except);
    CHECK_EQ(select(fd + 1, &in, &out, &except, &none), 2);
    CHECK_EQ(FD_ISSET(fd, &except), 0);
}

/* Descriptors at and above nfds are not looked at; closed ones are EBADF. */
static void select_limits(struct pair *p)
{
    int fd = p->self.fd;
    fd_set out;
    FD_ZERO(&out);
    FD_SET(fd, &out);
    struct timeval none = {0, 0};
    CHECK_EQ(select(fd, NULL, &out, NULL, &none), 0);
    int closed = dup(0);
    close(closed);
    FD_SET(fd, &out);
    FD_SET(closed, &out);
    CHECK_ERRNO(select((fd > closed ? fd : closed) + 1, NULL, &out, NULL, &none), EBADF);
    CHECK_ERRNO(select(-1, NULL, NULL, NULL, &none), EINVAL);
    struct timeval negative = {-1, 0};
    CHECK_ERRNO(select(0, NULL, NULL, NULL, &negative), EINVAL);
    CHECK_EQ(select(0, NULL, NULL, NULL, &(struct timeval){0, 1000}), 0); /* a sleep */
}

enum { FAR = 1 << 16 };

/* Whether select shows both, one of them by a number beyond an fd_set. */
static bool finds_a_high_one(int fd, int other)
{
    unsigned long bits[FAR / 64] = {0};
    struct timeval none = {0, 0};
    int high = fcntl(other, F_DUPFD, 1500);
    if (!CHECK_BETWEEN(high, 1500, FAR - 1))
        return false;
    bits[high / 64] |= 1UL << high % 64;
    bits[fd / 64] |= 1UL << fd % 64;
    return CHECK_EQ(select(FAR, (fd_set *)bits, NULL, NULL, &none), 2) &&
           CHECK_EQ(bits[high / 64] >> high % 64 & 1, 1);
}

/* The kernel looks no further than its table of descriptors is long, whatever nfds says:
 * select(getdtablesize(), ...) is an old habit, and the sets are shorter. */
static void select_beyond_the_sets(struct pair *p)
{
    enum { PAGE = 4096 };
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK_EQ(mprotect(pages + PAGE, PAGE, PROT_NONE), 0);
    fd_set *set = (fd_set *)(pages + PAGE - sizeof(fd_set));
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(write(ends[1], "x", 1), 1);
    arrive(p, 1);
    int fds[] = {p->self.fd, ends[0]};
    for (int i = 0; i < 2; i++) {
        struct timeval none = {0, 0};
        struct timespec no_time = {0, 0};
        FD_SET(fds[i], set);
        CHECK_EQ(select(FAR, set, NULL, NULL, &none), 1);
        CHECK_EQ(FD_ISSET(fds[i], set) != 0, 1);
        CHECK_EQ(pselect(FAR, NULL, NULL, set, &no_time, NULL), 0);
        CHECK_EQ(FD_ISSET(fds[i], set), 0);
        FD_SET(fds[i], set);
        CHECK_EQ(syscall(SYS_pselect6, FAR, set, NULL, NULL, &no_time, NULL), 1);
        FD_CLR(fds[i], set);
    }
    /* With bits for all that are open it looks at all: in a child, as the table stays long. */
    pid_t child = fork();
    if (child == 0)
        _exit(finds_a_high_one(p->self.fd, ends[0]) ? 0 : 1);
    CHECK_EQ(await_child(child), 0);
    close(ends[0]), close(ends[1]);
    munmap(pages, 2 * PAGE);
}

/* ---- signal masks ---------------------------------------------------------------- */

static volatile sig_atomic_t signals;

static void on_signal(int signal)
{
    (void)signal;
    signals++;
}

/* A signal that waits blocked is let in exactly for the sleep: even if it came
 * before the call, the call must return EINTR and not sleep over it. */
static void mask_is_atomic(struct pair *p)
{
    int fd = p->self.fd;
    struct sigaction action = {.sa_handler = on_signal}, old_action;
    sigaction(SIGUSR1, &action, &old_action);
    sigset_t blocked, old;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, &old);
    signals = 0;
    struct pollfd entry = {fd, POLLIN, 0};
    struct timespec long_time = {HANG_MS / 1000, 0};
    pthread_kill(pthread_self(), SIGUSR1);
    CHECK_EQ(signals, 0);
    CHECK_ERRNO(ppoll(&entry, 1, &long_time, &old), EINTR);
    CHECK_EQ(signals, 1);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    pthread_kill(pthread_self(), SIGUSR1);
    CHECK_ERRNO(pselect(fd + 1, &set, NULL, NULL, &long_time, &old), EINTR);
    CHECK_EQ(signals, 2);
    CHECK(FD_ISSET(fd, &set)); /* untouched */
    /* The mask of before is back. */
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    CHECK_EQ(sigismember(&now, SIGUSR1), 1);
    /* What is ready wins over the signal, which stays pending. */
    peer_do(p, do_send, 1, 0);
    await_readable(fd, 1);
    pthread_kill(pthread_self(), SIGUSR1);
    CHECK_EQ(ppoll(&entry, 1, &long_time, &blocked), 1);
    CHECK_EQ(signals, 2);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    CHECK_EQ(signals, 3);
    sigaction(SIGUSR1, &old_action, NULL);
}

/* ---- many ------------------------------------------------------------------------ */

/* A few dozen connections in one call; exactly those with data are reported. */
static void many_sockets(struct pair *p)
{
    (void)p;
    enum { COUNT = 60 };
    static struct pair pairs[COUNT];
    struct pollfd entries[COUNT];
    for (int i = 0; i < COUNT; i++) {
        struct setting setting = {.place = SAME_THREAD, .warm = i % 2, .client = i % 3};
        pair_open(&pairs[i], setting);
        entries[i] = (struct pollfd){pairs[i].self.fd, POLLIN, 0};
    }
    CHECK_EQ(poll(entries, COUNT, 0), 0);
    for (int i = 0; i < COUNT; i += 7)
        peer_do(&pairs[i], do_send, 3, 0);
    for (int i = 0; i < COUNT; i += 7)
        await_readable(pairs[i].self.fd, 3);
    CHECK_EQ(poll(entries, COUNT, HANG_MS), (COUNT + 6) / 7);
    for (int i = 0; i < COUNT; i++)
        CHECK_EQ(entries[i].revents, i % 7 ? 0 : POLLIN);
    for (int i = 0; i < COUNT; i += 7)
        do_recv(&pairs[i].self, 3, 0);
    CHECK_EQ(poll(entries, COUNT, 0), 0);
    /* A single peer that ends is found among all. */
    peer_do(&pairs[41], do_close, 0, 0);
    CHECK_EQ(poll(entries, COUNT, HANG_MS), 1);
    CHECK_EQ(entries[41].revents, POLLIN);
    for (int i = 0; i < COUNT; i++)
        pair_close(&pairs[i]);
}

struct sleeper {
    pthread_t thread;
    int fd;
    volatile pid_t id; /* 0: not yet at its call */
    volatile bool has_returned;
};

/* A handler ends the sleep, though it says SA_RESTART; what comes then wakes the next one. A
 * signal may come before the call sleeps, so it comes again until the call has returned. */
static void *interrupt_sleeper(void *argument)
{
    struct sleeper *sleeper = argument;
    await_asleep(sleeper->id);
    while (!sleeper->has_returned) {
        CHECK_EQ(pthread_kill(sleeper->thread, SIGUSR1), 0);
        sleep_ms(1);
    }
    return NULL;
}

static void a_signal_ends_the_sleep(struct pair *p)
{
    pthread_t thread;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
    for (int i = 0; i < 20; i++) {
        struct sleeper self = {.thread = pthread_self(), .fd = p->self.fd, .id = thread_id()};
        struct pollfd entry = {p->self.fd, POLLIN, 0};
        signals = 0;
        CHECK_EQ(pthread_create(&thread, NULL, interrupt_sleeper, &self), 0);
        CHECK_ERRNO(poll(&entry, 1, HANG_MS), EINTR);
        self.has_returned = true;
        CHECK(signals > 0);
        pthread_join(thread, NULL);
        peer_do(p, do_send, 1, 0);
        CHECK_EQ(poll(&entry, 1, HANG_MS), 1);
        CHECK_EQ(do_recv(&p->self, 1, 0), 1);
    }
}

static void *poll_sleeper(void *argument)
{
    struct sleeper *sleeper = argument;
    struct pollfd entry = {sleeper->fd, POLLIN, 0};
    sleeper->id = thread_id();
    CHECK_EQ(poll(&entry, 1, HANG_MS), 1);
    CHECK_EQ(entry.revents, POLLIN);
    return NULL;
}

/* Two threads asleep on one socket: both wake, since neither consumes. */
static void two_sleepers(struct pair *p)
{
    struct sleeper sleepers[2] = {{.fd = p->self.fd}, {.fd = p->self.fd}};
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(pthread_create(&sleepers[i].thread, NULL, poll_sleeper, &sleepers[i]), 0);
        while (sleepers[i].id == 0)
            sleep_ms(1);
        await_asleep(sleepers[i].id);
    }
    peer_do(p, do_send, 1, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(sleepers[i].thread, NULL);
    CHECK_EQ(do_recv(&p->self, 1, 0), 1);
}

/* A thread that waits for input, by poll() or select(), while another one only sends: what
 * comes in the end wakes it, whatever became of the connection meanwhile. */
struct waiter {
    pthread_t thread;
    int fd;
    bool selects;
    pid_t tid; /* 0 until it runs */
    long result;
    volatile bool done;
};

static void *wait_for_input(void *argument)
{
    struct waiter *waiter = argument;
    __atomic_store_n(&waiter->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    if (waiter->selects) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(waiter->fd, &set);
        struct timeval time = {20, 0};
        waiter->result = select(waiter->fd + 1, &set, NULL, NULL, &time);
    } else {
        waiter->result = poll_once(waiter->fd, POLLIN, 20000) == POLLIN;
    }
    waiter->done = true;
    return NULL;
}

static void sleeps_while_another_thread_sends(struct pair *p, bool selects)
{
    struct waiter waiter = {.fd = p->self.fd, .selects = selects};
    CHECK_EQ(pthread_create(&waiter.thread, NULL, wait_for_input, &waiter), 0);
    pid_t tid;
    while ((tid = __atomic_load_n(&waiter.tid, __ATOMIC_ACQUIRE)) == 0)
        sleep_ms(1);
    await_asleep(tid);
    for (int i = 0; i < 200; i++) {
        CHECK_EQ(do_send(&p->self, 1, 0), 1);
        CHECK_EQ(peer_do(p, do_recv, 1, 0), 1);
    }
    CHECK(!waiter.done);
    uint64_t start = now_ms();
    peer_do(p, do_send, 1, 0);
    pthread_join(waiter.thread, NULL);
    CHECK_EQ(waiter.result, 1);
    CHECK_BETWEEN(now_ms() - start, 0, 10000);
    CHECK_EQ(do_recv(&p->self, 1, 0), 1);
}

static void polls_while_another_thread_sends(struct pair *p)
{
    sleeps_while_another_thread_sends(p, false);
}

static void selects_while_another_thread_sends(struct pair *p)
{
    sleeps_while_another_thread_sends(p, true);
}

/* Before the connection is there, poll() tells when it is. */
static void wakes_for_the_connection(struct pair *p)
{
    (void)p;
    struct sockaddr_storage address;
    socklen_t len;
    int listener = make_listener(V4, &address, &len);
    int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK_ERRNO(connect(client, (struct sockaddr *)&address, len), EINPROGRESS);
    struct pollfd entries[] = {{listener, POLLIN, 0}, {client, POLLOUT, 0}};
    int ready = 0;
    for (int i = 0; i < 100 && ready < 2; i++)
        ready = poll(entries, 2, HANG_MS);
    CHECK_EQ(entries[0].revents, POLLIN);
    CHECK_EQ(entries[1].revents, POLLOUT);
    int server = accept(listener, NULL, NULL);
    CHECK_EQ(poll(entries, 1, 0), 0);
    CHECK_EQ(recv(client, buffer, 1, 0), -1);
    close(server), close(client), close(listener);
}

static const struct test tests[] = {
    {"only_what_was_asked", only_what_was_asked, FAMILIES},
    {"level", level, 0},
    {"odd_entries", odd_entries, 0},
    {"twice", twice, 0},
    {"too_many_entries", too_many_entries, 0},
    {"timeouts", timeouts, SLOW},
    {"data_wakes_poll", data_wakes_poll, ACTIVE_PEER | SLOW},
    {"data_wakes_select", data_wakes_select, ACTIVE_PEER | SLOW},
    {"mixed_with_other_descriptors", mixed_with_other_descriptors, 0},
    {"other_descriptor_wakes", other_descriptor_wakes, SLOW},
    {"select_sets", select_sets, 0},
    {"select_limits", select_limits, 0},
    {"select_beyond_the_sets", select_beyond_the_sets, 0},
    {"mask_is_atomic", mask_is_atomic, 0},
    {"many_sockets", many_sockets, ALONE},
    {"two_sleepers", two_sleepers, SLOW},
    {"a_signal_ends_the_sleep", a_signal_ends_the_sleep, 0},
    {"polls_while_another_thread_sends", polls_while_another_thread_sends, 0},
    {"selects_while_another_thread_sends", selects_while_another_thread_sends, 0},
    {"wakes_for_the_connection", wakes_for_the_connection, ALONE},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
