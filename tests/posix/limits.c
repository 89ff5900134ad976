/*
 * limits.c: a process that may have only so much memory (setrlimit(2)), as some servers
 * bound themselves. What counts against RLIMIT_DATA is what a program writes, or could: a
 * connection or an epoll set is next to nothing of it. And when there is nothing left at
 * all, sockets go on as before, because what the kernel keeps for them does not count.
 */
#include "support.h"

#include <sys/resource.h>

enum {
    CONNECTIONS = 10,
    ROUNDS = 40,
    /* What ten connections and a set may count: some pages of a C library. */
    COUNTED_MAX_KB = 4096,
    /* The bound that pure-ftpd sets itself, and what it needs of that. */
    FTPD_LIMIT = 70 << 20,
    FTPD_NEEDS = 20 << 20,
};

/* VmData or VmSize of this process, in KiB; by no call that takes memory. */
static long of_status(const char *name)
{
    char text[4096] = "";
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    CHECK(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    const char *line = strstr(text, name);
    return CHECK(line) ? strtol(line + strlen(name) + 1, NULL, 10) : 0;
}

/* A connection within this thread: both ends wait in one epoll set, and each byte is told. */
static void talk_by_epoll(int set)
{
    struct pair made;
    if (!CHECK(pair_open(&made, (struct setting){.place = SAME_THREAD, .client = true})))
        return;
    CHECK_EQ(epoll_add(set, made.self.fd, EPOLLIN, WORD), 0);
    CHECK_EQ(epoll_add(set, made.peer.fd, EPOLLIN, ~WORD), 0);
    for (int i = 1; i <= ROUNDS; i++) {
        CHECK_EQ(do_send(&made.self, i, 0), i);
        CHECK_EQ(one_event(set, ~WORD, 5000), EPOLLIN);
        CHECK_EQ(do_recv(&made.peer, i, 0), i);
        CHECK_EQ(do_send(&made.peer, i, 0), i);
        CHECK_EQ(one_event(set, WORD, 5000), EPOLLIN);
        CHECK_EQ(do_recv(&made.self, i, 0), i);
    }
    CHECK_SILENT(set);
    pair_close(&made);
}

/* Runs it in a child, which may bound itself. */
static void in_a_child(void task(long), long argument)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        task(argument);
        _exit(0);
    }
    CHECK_EQ(await_child(child), 0);
}

static void bound(int resource, rlim_t bytes)
{
    struct rlimit limit;
    CHECK_EQ(getrlimit(resource, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    CHECK_EQ(setrlimit(resource, &limit), 0);
}

static void warm_up_libc(void)
{
    struct end end = {0};
    next_bytes(&end, 1); /* the buffer of this thread */
    fprintf(stderr, "%s", "");
}

/* ---- what counts --------------------------------------------------------------------- */

static void count_connections(long unused)
{
    (void)unused;
    warm_up_libc();
    long before = of_status("VmData:");
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct pair made[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        CHECK(pair_open(&made[i], (struct setting){.place = SAME_THREAD, .warm = true}));
        CHECK_EQ(epoll_add(set, made[i].self.fd, EPOLLIN, WORD), 0);
    }
    CHECK_SILENT(set);
    CHECK_BETWEEN(of_status("VmData:") - before, 0, COUNTED_MAX_KB);
    for (int i = 0; i < CONNECTIONS; i++)
        pair_close(&made[i]);
    close(set);
}

static void connections_count_little(struct pair *p)
{
    (void)p;
    in_a_child(count_connections, 0);
}

static void bound_as_ftpd(long unused)
{
    (void)unused;
    warm_up_libc();
    int set = epoll_create1(EPOLL_CLOEXEC);
    talk_by_epoll(set);
    bound(RLIMIT_DATA, FTPD_LIMIT);
    void *memory = malloc(FTPD_NEEDS);
    if (CHECK(memory))
        memset(memory, 1, FTPD_NEEDS);
    talk_by_epoll(set);
    free(memory);
    close(set);
}

/* The memory that is promised is the program's. */
static void bound_with_connections_open(struct pair *p)
{
    (void)p;
    in_a_child(bound_as_ftpd, 0);
}

/* ---- little left ---------------------------------------------------------------------- */

static void with_data_left(long bytes)
{
    warm_up_libc();
    int older = epoll_create1(EPOLL_CLOEXEC);
    bound(RLIMIT_DATA, ((rlim_t)of_status("VmData:") << 10) + bytes);
    talk_by_epoll(older);
    int set = epoll_create1(EPOLL_CLOEXEC);
    talk_by_epoll(set);
    talk_by_epoll(older);
    close(set);
    close(older);
}

static void little_data_left(struct pair *p)
{
    (void)p;
    for (long kb = 0; kb <= 1024; kb += 64)
        in_a_child(with_data_left, kb << 10);
}

static void with_addresses_left(long bytes)
{
    warm_up_libc();
    bound(RLIMIT_AS, ((rlim_t)of_status("VmSize:") << 10) + bytes);
    int set = epoll_create1(EPOLL_CLOEXEC);
    talk_by_epoll(set);
    talk_by_epoll(set);
    close(set);
}

static void few_addresses_left(struct pair *p)
{
    (void)p;
    static const long megabytes[] = {0, 1, 8, 12, 20, 70, 90, 100, 600, 700, 2000, 9000};
    for (size_t i = 0; i < sizeof megabytes / sizeof megabytes[0]; i++)
        in_a_child(with_addresses_left, megabytes[i] << 20);
}

static const struct test tests[] = {
    {"connections_count_little", connections_count_little, ALONE},
    {"bound_with_connections_open", bound_with_connections_open, ALONE},
    {"little_data_left", little_data_left, ALONE},
    {"few_addresses_left", few_addresses_left, ALONE},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
