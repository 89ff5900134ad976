/* idle: what connections cost that do nothing.
 *
 *   idle [--connections 10000] [--seconds 2] [--settle 0.5] [--hold yes|no]
 *
 * A client process opens the connections to a server process, plays four
 * ping-pongs on each (so that a connection which may move to shared memory
 * has done so) and sleeps, as the server does, in epoll_wait(). The process
 * the user starts then measures both from outside: the CPU they used in the
 * given seconds, and their resident memory. It prints one JSON object; with
 * `--hold yes` it keeps the connections open, so that somebody can look at
 * them, until its standard input ends. */
#include "bench.h"

#include <sys/epoll.h>
#include <sys/resource.h>

#define PINGPONGS 4
#define PING_LEN 64

/* Descriptors a process needs beside its connections, with room for what a
 * preloaded library opens for itself. */
#define SPARE_DESCRIPTORS 128

/* Connections from one source address: well inside the default ephemeral
 * range of 28 232 ports, also while earlier ones are in TIME_WAIT. Further
 * ones come from 127.0.0.2, 127.0.0.3 and so on. */
#define CONNECTIONS_PER_ADDRESS 10000

#define EVENTS_PER_TURN 256

/* A bench that hangs is a failed bench. */
#define PATIENCE_S 60

/* Raises the limit as far as this user may; returns how many connections of
 * the wanted ones fit into it. */
static int fit_into_limits(int wanted)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        die("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        die("setrlimit");
    if (limit.rlim_cur >= (rlim_t)wanted + SPARE_DESCRIPTORS)
        return wanted;
    errno = 0;
    if (limit.rlim_cur <= SPARE_DESCRIPTORS)
        die("RLIMIT_NOFILE of %lu is too low", (unsigned long)limit.rlim_cur);
    return (int)(limit.rlim_cur - SPARE_DESCRIPTORS);
}

static void watch(int epoll, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        die("epoll_ctl");
}

static int new_epoll(void)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        die("epoll_create1");
    /* Its end is the request to end. */
    watch(epoll, STDIN_FILENO);
    return epoll;
}

/* ---- the server -------------------------------------------------------- */

static void accept_one(int epoll, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        die("accept4");
    set_nodelay(fd);
    watch(epoll, fd);
}

static void echo_once(int fd)
{
    char ping[PING_LEN];
    ssize_t n = recv(fd, ping, sizeof ping, 0);
    if (n < 0 && errno != ECONNRESET)
        die("recv");
    if (n <= 0)
        close(fd);
    else if (send(fd, ping, (size_t)n, MSG_NOSIGNAL) != n)
        die("send");
}

static int server(void)
{
    uint16_t port;
    int listener = listen_loopback(&port);
    int epoll = new_epoll();
    watch(epoll, listener);
    say("port %u", port);
    for (;;) {
        struct epoll_event events[EVENTS_PER_TURN];
        int ready = epoll_wait(epoll, events, EVENTS_PER_TURN, -1);
        if (ready < 0)
            die("epoll_wait");
        for (int i = 0; i < ready; i++) {
            if (events[i].data.fd == STDIN_FILENO)
                return 0;
            if (events[i].data.fd == listener)
                accept_one(epoll, listener);
            else
                echo_once(events[i].data.fd);
        }
    }
}

/* ---- the client -------------------------------------------------------- */

static void bind_source(int fd, int index)
{
    int on = 1;
    uint32_t host = INADDR_LOOPBACK + (uint32_t)(index / CONNECTIONS_PER_ADDRESS);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(host)};
    /* The port is chosen by connect(): only the four-tuple must be unique. */
    if (setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on) !=
            0 ||
        bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("bind to source address %d", index / CONNECTIONS_PER_ADDRESS + 1);
}

static int open_connection(int index, uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket %d", index);
    if (index >= CONNECTIONS_PER_ADDRESS)
        bind_source(fd, index);
    connect_loopback(fd, port);
    return fd;
}

static void pingpong(int fd)
{
    char ping[PING_LEN] = "ping";
    if (send(fd, ping, sizeof ping, MSG_NOSIGNAL) != (ssize_t)sizeof ping)
        die("send");
    if (recv(fd, ping, sizeof ping, MSG_WAITALL) != (ssize_t)sizeof ping)
        die("recv");
}

static int client(int connections, uint16_t port)
{
    int epoll = new_epoll();
    for (int i = 0; i < connections; i++) {
        int fd = open_connection(i, port);
        for (int j = 0; j < PINGPONGS; j++)
            pingpong(fd);
        watch(epoll, fd);
    }
    say("open");
    struct epoll_event event;
    int ready = epoll_wait(epoll, &event, 1, -1);
    errno = 0;
    if (ready != 1 || event.data.fd != STDIN_FILENO)
        die("an idle connection had something to say");
    return 0;
}

/* ---- the watcher ------------------------------------------------------- */

/* Nanosecond-exact CPU time of another process, all its threads. */
static double cpu_s(pid_t pid)
{
    clockid_t clock;
    errno = clock_getcpuclockid(pid, &clock);
    if (errno != 0)
        die("clock_getcpuclockid");
    return seconds_of(clock);
}

/* One line `NAME: value kB` of a file of /proc. */
static long kilobytes(const char *path, const char *name)
{
    char line[256];
    size_t len = strlen(name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        die("%s", path);
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, len) == 0 && line[len] == ':') {
            fclose(file);
            return strtol(line + len + 1, NULL, 10);
        }
    errno = 0;
    die("%s has no %s", path, name);
}

/* Memory of one process: its mappings as /proc/PID/smaps_rollup sums them.
 * Pss counts a page shared by two processes half in each. */
struct memory {
    long rss_kb, pss_kb, pss_anon_kb, pss_file_kb, pss_shmem_kb;
};

static struct memory memory_of(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    return (struct memory){.rss_kb = kilobytes(path, "Rss"),
                           .pss_kb = kilobytes(path, "Pss"),
                           .pss_anon_kb = kilobytes(path, "Pss_Anon"),
                           .pss_file_kb = kilobytes(path, "Pss_File"),
                           .pss_shmem_kb = kilobytes(path, "Pss_Shmem")};
}

static long shmem_of_host_kb(void)
{
    return kilobytes("/proc/meminfo", "Shmem");
}

static void print_process(const char *name, const struct role *role,
                          double cpu)
{
    struct memory memory = memory_of(role->pid);
    printf(",\"%s\":{\"pid\":%d,\"cpu_s\":%.9f,\"rss_kb\":%ld,\"pss_kb\":%ld,"
           "\"pss_anon_kb\":%ld,\"pss_file_kb\":%ld,\"pss_shmem_kb\":%ld}",
           name, (int)role->pid, cpu, memory.rss_kb, memory.pss_kb,
           memory.pss_anon_kb, memory.pss_file_kb, memory.pss_shmem_kb);
}

static void measure(int connections, double window_s, long shmem_before_kb,
                    const struct role *server, const struct role *client)
{
    double server_before = cpu_s(server->pid);
    double client_before = cpu_s(client->pid);
    sleep_s(window_s);
    double server_used = cpu_s(server->pid) - server_before;
    double client_used = cpu_s(client->pid) - client_before;
    printf("{\"connections\":%d,\"seconds\":%.3f", connections, window_s);
    /* Pages of a memory file that nobody has mapped are in no smaps, only
     * here; other programs on the host blur this number. */
    printf(",\"shmem_growth_kb\":%ld", shmem_of_host_kb() - shmem_before_kb);
    print_process("server", server, server_used);
    print_process("client", client, client_used);
    puts("}");
    fflush(stdout);
}

static int watcher(int wanted, char *const args[])
{
    double window_s = number_option(args, "--seconds", "2", 0.01);
    double settle_s = number_option(args, "--settle", "0.5", 0);
    bool hold = strcmp(option(args, "--hold", "no"), "yes") == 0;
    alarm((unsigned)(window_s + settle_s) + PATIENCE_S);
    char count[16], port[16];
    int connections = fit_into_limits(wanted);
    snprintf(count, sizeof count, "%d", connections);
    long shmem_before_kb = shmem_of_host_kb();

    char *server_args[] = {"idle", "server", NULL};
    struct role server = start_role(server_args);
    if (sscanf(await_line(&server, "port "), "%15s", port) != 1)
        die("the server's port");
    char *client_args[] = {"idle", "client", "--connections", count,
                           "--port", port, NULL};
    struct role client = start_role(client_args);
    await_line(&client, "open");
    /* Whatever follows a last message, such as a timer, may run out first. */
    sleep_s(settle_s);
    measure(connections, window_s, shmem_before_kb, &server, &client);
    while (hold && getchar() != EOF)
        continue;
    end_role(&client);
    end_role(&server);
    return 0;
}

int main(int argc, char *argv[])
{
    const char *role = argc > 1 ? argv[1] : "";
    int wanted = (int)number_option(argv, "--connections", "10000", 1);
    int connections = fit_into_limits(wanted);
    if (strcmp(role, "server") == 0)
        return server();
    if (strcmp(role, "client") == 0)
        return client(connections,
                      (uint16_t)number_option(argv, "--port", "0", 1));
    return watcher(wanted, argv + 1);
}
