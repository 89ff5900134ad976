/*
 * filters.c: programs that confine themselves by a filter of system calls (seccomp), with
 * connections open. The filter lets pass what a program with TCP connections needs, and kills
 * for all else. The connections go on, and new ones can be made.
 *
 * There is no way back from a filter, so each test is played by a child.
 */
#include "support.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { ROUNDS = 20, LONG = 700000, STRICT_LEN = 100 };

/* ---- the filter ---------------------------------------------------------------------- */

/* To transfer, to wait, to lock, to close, and to end. */
static const int ordinary[] = {
    SYS_read,    SYS_write,  SYS_recvfrom, SYS_sendto,     SYS_epoll_ctl,    SYS_epoll_pwait,
    SYS_futex,   SYS_close,  SYS_mmap,     SYS_munmap,     SYS_brk,          SYS_madvise,
    SYS_getpid,  SYS_gettid, SYS_exit,     SYS_exit_group, SYS_rt_sigreturn,
#ifdef __x86_64__
    SYS_poll,    SYS_epoll_wait,
#else
    SYS_ppoll,
#endif
};

/* What the peer needs where it is a thread, to see that the script sleeps. */
static const int to_pause[] = {
    SYS_clock_nanosleep, SYS_openat, SYS_sched_yield,
#if defined(__x86_64__) && !defined(__GLIBC__)
    SYS_open, SYS_fcntl, SYS_readv, SYS_nanosleep,
#endif
};

/* To make a connection with oneself. */
static const int to_connect[] = {SYS_socket, SYS_connect, SYS_accept};

/* To make an epoll set. */
static const int to_watch[] = {SYS_epoll_create1};

/* To begin a program, as the loader does. */
static const int to_begin[] = {
    SYS_execve,          SYS_openat,          SYS_newfstatat, SYS_fstat,     SYS_mprotect,
    SYS_pread64,         SYS_set_tid_address, SYS_rseq,       SYS_prlimit64, SYS_getrandom,
    SYS_set_robust_list, SYS_faccessat,       SYS_bind,       SYS_listen,    SYS_getsockname,
    SYS_readlinkat,
#ifdef __x86_64__
    SYS_arch_prctl,      SYS_access,          SYS_readlink,
#ifndef __GLIBC__
    SYS_open,            SYS_fcntl,           SYS_readv,
#endif
#endif
};

enum { RULES_MAX = 128 };
static struct sock_filter rules[RULES_MAX];
static struct sock_fprog filter = {.filter = rules};

static void rule(struct sock_filter it)
{
    rules[filter.len++] = it;
}

static void allow(const int *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        rule((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)numbers[i], 0, 1));
        rule((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    }
}
#define ALLOW(numbers) allow(numbers, sizeof(numbers) / sizeof(numbers)[0])

static void begin_filter(void)
{
    filter.len = 0;
    rule((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    ALLOW(ordinary);
}

static bool end_filter(void)
{
    rule((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

static bool by_prctl(void)
{
    begin_filter();
    return end_filter() && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

static bool by_number(void)
{
    begin_filter();
    return end_filter() && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0;
}

static bool by_prctl_and_number(void)
{
    begin_filter();
    return end_filter()
        && syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0;
}

static bool for_all_threads(void)
{
    begin_filter();
    ALLOW(to_pause);
    return end_filter()
        && syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

/* ---- what is played ------------------------------------------------------------------- */

/* A child ends well if nothing has failed in it, and no filter has killed it. */
static void in_a_child(void play(void *), void *with)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        unsigned long before = failures();
        play(with);
        syscall(SYS_exit_group, failures() > before);
    }
    CHECK_EQ(await_child(child), 0);
}

/* The first piece of memory takes calls that others do not. */
static void take_memory(struct pair *p)
{
    next_bytes(&p->self, 0);
}

static void talk(struct pair *p)
{
    for (int i = 1; i <= ROUNDS; i++) {
        CHECK_EQ(do_send(&p->self, i * 10, 0), i * 10);
        CHECK_EQ(peer_do(p, do_recv, i * 10, 0), i * 10);
        CHECK_EQ(peer_do(p, do_send, i * 10, 0), i * 10);
        CHECK_EQ(do_recv(&p->self, i * 10, 0), i * 10);
    }
}

/* Each way to wait: for room, and for something to read. */
static void wait_for_the_peer(struct pair *p)
{
    peer_start(p, 100, do_recv, LONG, 0);
    CHECK_EQ(do_send(&p->self, LONG, 0), LONG);
    CHECK_EQ(peer_finish(p), LONG);
    peer_start(p, 100, do_send, LONG, 0);
    CHECK_EQ(do_recv(&p->self, LONG, 0), LONG);
    CHECK_EQ(peer_finish(p), LONG);
    peer_start(p, 100, do_send, 10, 0);
    CHECK_EQ(poll_once(p->self.fd, POLLIN, -1), POLLIN);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    CHECK_EQ(peer_finish(p), 10);
    CHECK_EQ(poll_once(p->self.fd, POLLIN, 20), 0);
    CHECK_ERRNO(do_recv_once(&p->self, 10, MSG_DONTWAIT), EAGAIN);
    CHECK_EQ(do_send(&p->self, 10, 0), 10);
    CHECK_EQ(peer_do(p, do_recv, 10, 0), 10);
}

static void wait_in(int set, struct pair *p)
{
    for (int i = 0; i < 3; i++) {
        peer_start(p, 50, do_send, 10, 0);
        CHECK_EQ(one_event(set, WORD, -1), EPOLLIN);
        CHECK_EQ(do_recv(&p->self, 10, 0), 10);
        CHECK_EQ(peer_finish(p), 10);
        CHECK_SILENT(set);
    }
}

struct script {
    struct setting setting;
    bool (*confine)(void);
    bool half_closes;
};

static void play_all(void *with)
{
    struct script *script = with;
    struct pair made;
    if (!CHECK(pair_open(&made, script->setting)))
        return;
    int set = epoll_create1(EPOLL_CLOEXEC);
    CHECK_EQ(epoll_add(set, made.self.fd, EPOLLIN, WORD), 0);
    if (script->setting.warm) {
        wait_in(set, &made);
        witness_move(made.self.fd);
    }
    take_memory(&made);
    if (!CHECK(script->confine()))
        return;
    talk(&made);
    wait_for_the_peer(&made);
    wait_in(set, &made);
    if (script->half_closes) {
        CHECK_EQ(shutdown(made.self.fd, SHUT_WR), 0);
        CHECK_EQ(peer_do(&made, do_recv_eof, 0, 0), 0);
        CHECK_EQ(peer_do(&made, do_send, 10, 0), 10);
        CHECK_EQ(do_recv(&made.self, 10, 0), 10);
    }
    CHECK_EQ(peer_do(&made, do_close, 0, 0), 0);
    short end = POLLIN | POLLRDHUP;
    CHECK_EQ(poll_once(made.self.fd, end, -1), script->half_closes ? end | POLLHUP : end);
    CHECK_EQ(do_recv_eof(&made.self, 0, 0), 0);
    CHECK_EQ(close(made.self.fd), 0);
}

static void confined(bool warm, enum peer_place place, bool confine(void))
{
    struct script script = {{.place = place, .client = true, .warm = warm}, confine, false};
    in_a_child(play_all, &script);
    script.setting.client = false;
    in_a_child(play_all, &script);
}

static bool by_prctl_with_shutdown(void)
{
    static const int to_close[] = {SYS_shutdown};
    begin_filter();
    ALLOW(to_close);
    return end_filter() && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

static void half_closed(struct pair *p)
{
    (void)p;
    struct script script = {
        {.place = OTHER_PROCESS, .client = true, .warm = true}, by_prctl_with_shutdown, true};
    in_a_child(play_all, &script);
    script.setting.warm = false;
    in_a_child(play_all, &script);
}

static void moved_before(struct pair *p)
{
    (void)p;
    confined(true, OTHER_PROCESS, by_prctl);
}

static void moved_before_by_number(struct pair *p)
{
    (void)p;
    confined(true, OTHER_PROCESS, by_number);
    confined(true, OTHER_PROCESS, by_prctl_and_number);
}

static void fresh(struct pair *p)
{
    (void)p;
    confined(false, OTHER_PROCESS, by_prctl);
}

static void with_all_threads(struct pair *p)
{
    (void)p;
    confined(true, OTHER_THREAD, for_all_threads);
}

/* New sets, too, can wait for a connection that was there before. */
static void play_watching(void *with)
{
    enum { SETS = 12 };
    struct pair made;
    if (!CHECK(pair_open(&made, *(struct setting *)with)))
        return;
    take_memory(&made);
    begin_filter();
    ALLOW(to_watch);
    if (!CHECK(end_filter()) || !CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0))
        return;
    int sets[SETS];
    for (int i = 0; i < SETS; i++) {
        sets[i] = epoll_create1(EPOLL_CLOEXEC);
        CHECK_EQ(epoll_add(sets[i], made.self.fd, EPOLLIN, WORD), 0);
    }
    for (int i = 0; i < SETS; i++)
        wait_in(sets[i], &made);
    CHECK_EQ(peer_do(&made, do_close, 0, 0), 0);
    for (int i = 0; i < SETS; i++) {
        CHECK_EQ(one_event(sets[i], WORD, -1), EPOLLIN);
        CHECK_EQ(close(sets[i]), 0);
    }
}

static void watched_afterwards(struct pair *p)
{
    (void)p;
    struct setting setting = {.place = OTHER_PROCESS, .client = true, .warm = true};
    in_a_child(play_watching, &setting);
    setting.client = false;
    in_a_child(play_watching, &setting);
}

/* ---- connections that are made under a filter ------------------------------------------- */

static bool talk_on(int client, int server)
{
    char bytes[64] = "", got[64];
    for (int i = 0; i < 2 * ROUNDS; i++) {
        int from = i % 2 ? client : server, to = i % 2 ? server : client;
        bytes[i % 64] = (char)('a' + i % 26);
        if (send(from, bytes, sizeof bytes, 0) != sizeof bytes
            || recv(to, got, sizeof got, 0) != sizeof got || memcmp(bytes, got, sizeof got) != 0)
            return false;
    }
    return true;
}

/* It checks nothing itself, because it serves a program without tests as well. */
static bool connect_to(int listener, const struct sockaddr_storage *address, socklen_t len)
{
    int client = socket(address->ss_family, SOCK_STREAM, 0);
    if (connect(client, (const struct sockaddr *)address, len) < 0)
        return false;
    int server = accept(listener, NULL, NULL);
    return server >= 0 && talk_on(client, server) && close(server) == 0 && close(client) == 0;
}

static void play_connecting(void *with)
{
    (void)with;
    struct sockaddr_storage address;
    socklen_t len;
    int listener = make_listener(V4, &address, &len);
    begin_filter();
    ALLOW(to_connect);
    if (CHECK(end_filter()) && CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0))
        CHECK(connect_to(listener, &address, len));
}

static void made_afterwards(struct pair *p)
{
    (void)p;
    in_a_child(play_connecting, NULL);
}

/* ---- programs that begin under a filter --------------------------------------------------- */

static const char *own_path;
#define BEGUN "begun-under-a-filter"

static void play_begun(void *with)
{
    begin_filter();
    ALLOW(to_connect);
    ALLOW(to_begin);
    if (CHECK(end_filter()) && CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0))
        execl(own_path, own_path, BEGUN, (char *)NULL);
    CHECK(with == NULL && "exec has failed");
}

static void begun_afterwards(struct pair *p)
{
    (void)p;
    in_a_child(play_begun, NULL);
}

static int begun(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    bool is_right = bind(listener, (struct sockaddr *)&address, sizeof address) == 0
        && listen(listener, 1) == 0
        && getsockname(listener, (struct sockaddr *)&bound, &len) == 0
        && connect_to(listener, &bound, len);
    return !is_right;
}

/* ---- read and write alone -------------------------------------------------------------------- */

static long echo_and_close(struct end *end, long len, long rounds)
{
    long result = do_echo(end, len, rounds);
    do_close(end, 0, 0);
    return result;
}

static bool read_all(int fd, char *at, ssize_t len)
{
    for (ssize_t n; len > 0; at += n, len -= n) {
        n = read(fd, at, (size_t)len);
        if (n <= 0)
            return false;
    }
    return true;
}

static void play_strict(void *with)
{
    struct pair made;
    if (!CHECK(pair_open(&made, *(struct setting *)with)))
        return;
    static char got[STRICT_LEN];
    take_memory(&made);
    if (made.setting.warm)
        witness_move(made.self.fd);
    peer_start(&made, 0, echo_and_close, STRICT_LEN, ROUNDS);
    bool is_right = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) == 0;
    for (int i = 0; i < ROUNDS && is_right; i++) {
        void *bytes = next_bytes(&made.self, STRICT_LEN);
        is_right = write(made.self.fd, bytes, STRICT_LEN) == STRICT_LEN
            && read_all(made.self.fd, got, STRICT_LEN) && take_bytes(&made.self, got, STRICT_LEN);
    }
    is_right = is_right && read(made.self.fd, got, 1) == 0;
    syscall(SYS_exit, !is_right);
}

static void strict(struct pair *p)
{
    (void)p;
    struct setting settings[] = {
        {.place = OTHER_PROCESS, .warm = true, .client = true},
        {.place = OTHER_PROCESS, .warm = true},
        {.place = OTHER_PROCESS, .client = true},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        in_a_child(play_strict, &settings[i]);
}

/* ---- calls that confine nobody ------------------------------------------------------------------ */

static void play_asking(void *with)
{
    (void)with;
    CHECK_EQ(prctl(PR_GET_SECCOMP, 0, 0, 0, 0), 0);
    CHECK_ERRNO(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0), EFAULT);
    CHECK_ERRNO(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL), EFAULT);
    unsigned action = SECCOMP_RET_KILL_PROCESS;
    CHECK_EQ(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action), 0);
    /* A filter without an end is refused. */
    begin_filter();
    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK_ERRNO(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0), EINVAL);
    struct pair made;
    /* What begins now moves as ever: the run would fail if it did not. */
    if (CHECK(pair_open(&made, (struct setting){.place = OTHER_PROCESS, .warm = true}))) {
        talk(&made);
        witness_move(made.self.fd);
        pair_close(&made);
    }
}

static void asking_is_nothing(struct pair *p)
{
    (void)p;
    in_a_child(play_asking, NULL);
}

static const struct test tests[] = {
    {"moved_before", moved_before, ALONE},
    {"moved_before_by_number", moved_before_by_number, ALONE},
    {"half_closed", half_closed, ALONE},
    {"fresh", fresh, ALONE},
    {"with_all_threads", with_all_threads, ALONE},
    {"watched_afterwards", watched_afterwards, ALONE},
    {"made_afterwards", made_afterwards, ALONE},
    {"begun_afterwards", begun_afterwards, ALONE},
    {"strict", strict, ALONE},
    {"asking_is_nothing", asking_is_nothing, ALONE},
};

int main(int argc, char **argv)
{
    own_path = argv[0];
    if (argc == 2 && strcmp(argv[1], BEGUN) == 0)
        return begun();
    return RUN_TESTS(argc, argv, tests);
}
