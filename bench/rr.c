/* rr: request and response transactions between two processes over TCP, the
 * shape of IBM's RR10(2KB/2KB): ten connections, on each of them a request,
 * then its reply, then the next request.
 *
 *   rr --mode threads|epoll [--connections 10] [--request 2048]
 *      [--reply 2048] [--warmup 0.3] [--seconds 1]
 *
 *   threads  a blocking thread per connection on both sides
 *   epoll    one single-threaded epoll loop a side, non-blocking sockets
 *
 * The process the user starts only watches: it starts a server and a client,
 * reads their CPU time from /proc at both ends of the measured window and
 * prints one JSON object. Nothing but byte counts is checked; correctness is
 * the business of the end-to-end tests. */
#include "bench.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <sys/epoll.h>

/* A bench that hangs is a failed bench: seconds beyond warm-up and window. */
#define PATIENCE_S 15

/* An epoll loop which hears nothing for so long has lost a wake-up. */
#define STALL_MS 5000

struct plan {
    bool epoll;
    int connections;
    size_t request_len;
    size_t reply_len;
    double warmup_s;
    double window_s;
};

static struct plan parse_plan(char *const args[])
{
    const char *mode = option(args, "--mode", "threads");
    errno = 0;
    if (strcmp(mode, "threads") != 0 && strcmp(mode, "epoll") != 0)
        die("--mode is threads or epoll, not '%s'", mode);
    return (struct plan){
        .epoll = strcmp(mode, "epoll") == 0,
        .connections = (int)number_option(args, "--connections", "10", 1),
        .request_len = (size_t)number_option(args, "--request", "2048", 1),
        .reply_len = (size_t)number_option(args, "--reply", "2048", 1),
        .warmup_s = number_option(args, "--warmup", "0.3", 0),
        .window_s = number_option(args, "--seconds", "1", 0.01),
    };
}

/* ---- one connection ---------------------------------------------------- */

/* Both sides do the same with their two halves swapped: take in `in_len`
 * bytes, give out `out_len`, over and over. */
struct connection {
    int fd;
    size_t in_len, out_len;
    size_t in, out; /* bytes of the current message done, 0 <= in < in_len */
    char *buffer;
    /* Written by the connection's thread, read by the client's main thread.
     * A cache line of its own, so that counting costs the others nothing. */
    alignas(64) atomic_ulong transactions;
};

static struct connection *new_connections(const struct plan *plan, bool server)
{
    size_t in_len = server ? plan->request_len : plan->reply_len;
    size_t out_len = server ? plan->reply_len : plan->request_len;
    size_t len = (size_t)plan->connections * sizeof(struct connection);
    struct connection *all = aligned_alloc(alignof(struct connection), len);
    if (all == NULL)
        die("memory for connections");
    memset(all, 0, len);
    for (int i = 0; i < plan->connections; i++) {
        all[i].in_len = in_len;
        all[i].out_len = out_len;
        all[i].buffer = calloc(1, in_len > out_len ? in_len : out_len);
        if (all[i].buffer == NULL)
            die("memory for messages");
    }
    return all;
}

/* The other side is gone: the normal end of a server's connection. */
static bool peer_left(ssize_t n)
{
    return n == 0 || (n < 0 && (errno == ECONNRESET || errno == EPIPE));
}

static void count_transaction(struct connection *c)
{
    /* Relaxed: a statistic; nothing is published through it. A load and a
     * store, not a locked add: only this thread writes it. */
    unsigned long so_far =
        atomic_load_explicit(&c->transactions, memory_order_relaxed);
    atomic_store_explicit(&c->transactions, so_far + 1, memory_order_relaxed);
}

static unsigned long count_all(struct connection *all, int count)
{
    unsigned long sum = 0;
    for (int i = 0; i < count; i++)
        sum += atomic_load_explicit(&all[i].transactions,
                                    memory_order_relaxed);
    return sum;
}

/* ---- threads ----------------------------------------------------------- */

static atomic_bool stop;

/* Both return false when the peer has left. */
static bool take_in(struct connection *c)
{
    for (size_t done = 0; done < c->in_len;) {
        ssize_t n = recv(c->fd, c->buffer + done, c->in_len - done, 0);
        if (peer_left(n))
            return false;
        if (n < 0)
            die("recv");
        done += (size_t)n;
    }
    return true;
}

static bool give_out(struct connection *c)
{
    for (size_t done = 0; done < c->out_len;) {
        ssize_t n =
            send(c->fd, c->buffer + done, c->out_len - done, MSG_NOSIGNAL);
        if (peer_left(n))
            return false;
        if (n < 0)
            die("send");
        done += (size_t)n;
    }
    return true;
}

static void *serve_connection(void *argument)
{
    struct connection *c = argument;
    while (take_in(c) && give_out(c))
        continue;
    close(c->fd);
    return NULL;
}

static void *use_connection(void *argument)
{
    struct connection *c = argument;
    errno = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        if (!give_out(c) || !take_in(c))
            die("the server closed a connection in use");
        count_transaction(c);
    }
    close(c->fd);
    return NULL;
}

static pthread_t *start_threads(struct connection *all, int count,
                                void *(*body)(void *))
{
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    for (int i = 0; i < count; i++)
        if (threads == NULL ||
            pthread_create(&threads[i], NULL, body, &all[i]) != 0)
            die("a thread per connection");
    return threads;
}

static void join_threads(pthread_t *threads, int count)
{
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    free(threads);
}

static void client_with_threads(const struct plan *plan,
                                struct connection *all)
{
    pthread_t *threads = start_threads(all, plan->connections, use_connection);
    sleep_s(plan->warmup_s);
    say("begin");
    double start_s = now_s();
    unsigned long before = count_all(all, plan->connections);
    sleep_s(plan->window_s);
    unsigned long after = count_all(all, plan->connections);
    say("end %lu %.9f", after - before, now_s() - start_s);
    atomic_store_explicit(&stop, true, memory_order_relaxed);
    join_threads(threads, plan->connections);
}

/* ---- epoll ------------------------------------------------------------- */

static void watch(int epoll, struct connection *c, int operation,
                  uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(epoll, operation, c->fd, &event) != 0)
        die("epoll_ctl");
}

/* Sends what is left of the outgoing message. When the socket takes no more,
 * the loop is asked to come back; returns false when the peer has left. */
static bool continue_out(int epoll, struct connection *c)
{
    bool was_blocked = c->out > 0;
    while (c->out < c->out_len) {
        ssize_t n = send(c->fd, c->buffer + c->out, c->out_len - c->out,
                         MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            watch(epoll, c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return true;
        }
        if (peer_left(n))
            return false;
        if (n < 0)
            die("send");
        c->out += (size_t)n;
    }
    c->out = 0;
    if (was_blocked)
        watch(epoll, c, EPOLL_CTL_MOD, EPOLLIN);
    return true;
}

/* Reads once, as event loops do; a complete message is answered by ours.
 * Returns false when the peer has left. */
static bool continue_in(int epoll, struct connection *c)
{
    ssize_t n = recv(c->fd, c->buffer + c->in, c->in_len - c->in, 0);
    if (n < 0 && errno == EAGAIN)
        return true;
    if (peer_left(n))
        return false;
    if (n < 0)
        die("recv");
    c->in += (size_t)n;
    if (c->in < c->in_len)
        return true;
    c->in = 0;
    count_transaction(c);
    return continue_out(epoll, c);
}

static bool handle_event(int epoll, const struct epoll_event *event)
{
    struct connection *c = event->data.ptr;
    if ((event->events & EPOLLOUT) != 0 && !continue_out(epoll, c))
        return false;
    return (event->events & ~(uint32_t)EPOLLOUT) == 0 || continue_in(epoll, c);
}

/* Waits once and handles all that is ready; returns how many left. */
static int turn(int epoll, struct epoll_event *events, int count)
{
    int left = 0;
    int ready = epoll_wait(epoll, events, count, STALL_MS);
    if (ready < 0)
        die("epoll_wait");
    errno = 0;
    if (ready == 0)
        die("nothing happened for %d ms: a wake-up was lost", STALL_MS);
    for (int i = 0; i < ready; i++)
        if (!handle_event(epoll, &events[i])) {
            close(((struct connection *)events[i].data.ptr)->fd);
            left++;
        }
    return left;
}

static int new_epoll(struct connection *all, int count)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        die("epoll_create1");
    for (int i = 0; i < count; i++) {
        int flags = fcntl(all[i].fd, F_GETFL);
        if (flags < 0 || fcntl(all[i].fd, F_SETFL, flags | O_NONBLOCK) != 0)
            die("O_NONBLOCK");
        watch(epoll, &all[i], EPOLL_CTL_ADD, EPOLLIN);
    }
    return epoll;
}

static void serve_with_epoll(const struct plan *plan, struct connection *all)
{
    struct epoll_event events[plan->connections];
    int epoll = new_epoll(all, plan->connections);
    for (int open = plan->connections; open > 0;)
        open -= turn(epoll, events, plan->connections);
}

static void run_loop_until(int epoll, const struct plan *plan, double end_s)
{
    struct epoll_event events[plan->connections];
    errno = 0;
    while (now_s() < end_s)
        if (turn(epoll, events, plan->connections) != 0)
            die("the server closed a connection in use");
}

static void client_with_epoll(const struct plan *plan, struct connection *all)
{
    int epoll = new_epoll(all, plan->connections);
    for (int i = 0; i < plan->connections; i++)
        if (!continue_out(epoll, &all[i]))
            die("the first request");
    run_loop_until(epoll, plan, now_s() + plan->warmup_s);
    say("begin");
    double start_s = now_s();
    unsigned long before = count_all(all, plan->connections);
    run_loop_until(epoll, plan, start_s + plan->window_s);
    unsigned long after = count_all(all, plan->connections);
    say("end %lu %.9f", after - before, now_s() - start_s);
}

/* ---- the two roles ----------------------------------------------------- */

static int server(const struct plan *plan)
{
    uint16_t port;
    int listener = listen_loopback(&port);
    struct connection *all = new_connections(plan, true);
    say("port %u", port);
    for (int i = 0; i < plan->connections; i++) {
        all[i].fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (all[i].fd < 0)
            die("accept4");
        set_nodelay(all[i].fd);
    }
    close(listener);
    if (plan->epoll)
        serve_with_epoll(plan, all);
    else
        join_threads(start_threads(all, plan->connections, serve_connection),
                     plan->connections);
    return 0;
}

static int client(const struct plan *plan, uint16_t port)
{
    struct connection *all = new_connections(plan, false);
    for (int i = 0; i < plan->connections; i++) {
        all[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (all[i].fd < 0)
            die("socket");
        connect_loopback(all[i].fd, port);
    }
    if (plan->epoll)
        client_with_epoll(plan, all);
    else
        client_with_threads(plan, all);
    return 0;
}

/* ---- the watcher ------------------------------------------------------- */

struct cpu {
    double user_s, system_s;
};

/* User and system time of a process, all threads: fields 14 and 15 of
 * /proc/PID/stat in clock ticks. */
static struct cpu cpu_of(pid_t pid)
{
    char path[64], text[1024];
    unsigned long user, system;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    size_t len = file == NULL ? 0 : fread(text, 1, sizeof text - 1, file);
    text[len] = '\0';
    /* The program's name may hold blanks; it ends with the last ')'. */
    char *rest = strrchr(text, ')');
    if (rest == NULL ||
        sscanf(rest + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
               &system) != 2)
        die("%s", path);
    fclose(file);
    double tick_s = 1.0 / (double)sysconf(_SC_CLK_TCK);
    return (struct cpu){(double)user * tick_s, (double)system * tick_s};
}

static struct cpu since(struct cpu before, struct cpu after)
{
    return (struct cpu){after.user_s - before.user_s,
                        after.system_s - before.system_s};
}

static void report(const struct plan *plan, const char *counts,
                   struct cpu server_cpu, struct cpu client_cpu)
{
    unsigned long transactions;
    double seconds;
    if (sscanf(counts, "%lu %lf", &transactions, &seconds) != 2)
        die("the client's counts '%s'", counts);
    printf("{\"mode\":\"%s\",\"connections\":%d,\"request_len\":%zu,"
           "\"reply_len\":%zu,\"seconds\":%.6f,\"transactions\":%lu,"
           "\"transactions_per_s\":%.1f,"
           "\"server\":{\"user_s\":%.2f,\"system_s\":%.2f},"
           "\"client\":{\"user_s\":%.2f,\"system_s\":%.2f}}\n",
           plan->epoll ? "epoll" : "threads", plan->connections,
           plan->request_len, plan->reply_len, seconds, transactions,
           (double)transactions / seconds, server_cpu.user_s,
           server_cpu.system_s, client_cpu.user_s, client_cpu.system_s);
}

/* The arguments of a role: its name, then the user's, then the port. */
static struct role start(const char *name, char *const args[],
                         const char *port)
{
    char *role_args[ROLE_ARGS_MAX + 4] = {"rr", (char *)name};
    int n = 2;
    for (; args[0] != NULL && n < ROLE_ARGS_MAX; args++)
        role_args[n++] = args[0];
    role_args[n++] = "--port";
    role_args[n] = (char *)port;
    return start_role(role_args);
}

static int watcher(const struct plan *plan, char *const args[])
{
    alarm((unsigned)(plan->warmup_s + plan->window_s) + PATIENCE_S);
    struct role server = start("server", args, "0");
    char port[16];
    if (sscanf(await_line(&server, "port "), "%15s", port) != 1)
        die("the server's port");
    struct role client = start("client", args, port);
    await_line(&client, "begin");
    struct cpu server_before = cpu_of(server.pid);
    struct cpu client_before = cpu_of(client.pid);
    const char *counts = await_line(&client, "end ");
    report(plan, counts, since(server_before, cpu_of(server.pid)),
           since(client_before, cpu_of(client.pid)));
    end_role(&client);
    end_role(&server);
    return 0;
}

int main(int argc, char *argv[])
{
    const char *role = argc > 1 ? argv[1] : "";
    struct plan plan = parse_plan(argv + 1);
    if (strcmp(role, "server") == 0)
        return server(&plan);
    if (strcmp(role, "client") == 0)
        return client(&plan,
                      (uint16_t)number_option(argv, "--port", "0", 1));
    return watcher(&plan, argv + 1);
}
