/* victim: an echo server like many others, which knows nothing of Sidestep.
 *
 *   victim threads|epoll PORT
 *
 * `threads` has a blocking thread for each connection, and connections take
 * turns in how they move bytes: recv, a peek before it, readv and writev,
 * splice through a pipe. `epoll` has one loop, and connections take turns in
 * being level- and edge-triggered. Whatever a peer sends goes back unchanged;
 * any error ends that connection and nothing else.
 */
#include "common.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#define BUFFER_LEN 65536

enum style { RECV, PEEK, VECTOR, SPLICE, STYLES };

static bool send_all(int fd, const char *from, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, from, len, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        from += n;
        len -= (size_t)n;
    }
    return true;
}

static bool echo_vector(int fd, char *buffer)
{
    struct iovec parts[2] = {{buffer, 100}, {buffer + 100, BUFFER_LEN - 100}};
    ssize_t n = readv(fd, parts, 2);
    if (n <= 0)
        return false;
    size_t head = n < 7 ? (size_t)n : 7;
    struct iovec again[2] = {{buffer, head}, {buffer + head, (size_t)n - head}};
    ssize_t sent = writev(fd, again, 2);
    return sent > 0 && send_all(fd, buffer + sent, (size_t)(n - sent));
}

static bool echo_splice(int fd, const int pipe_fds[2])
{
    ssize_t n = splice(fd, NULL, pipe_fds[1], NULL, 16384, 0);
    while (n > 0) {
        ssize_t sent = splice(pipe_fds[0], NULL, fd, NULL, (size_t)n, 0);
        if (sent <= 0)
            return false;
        n -= sent;
        if (n == 0)
            return true;
    }
    return false;
}

static bool echo_recv(int fd, char *buffer, int peeks)
{
    if (peeks && recv(fd, buffer, BUFFER_LEN, MSG_PEEK) <= 0)
        return false;
    ssize_t n = recv(fd, buffer, BUFFER_LEN, 0);
    return n > 0 && send_all(fd, buffer, (size_t)n);
}

struct connection {
    int fd;
    enum style style;
};

static void *serve(void *argument)
{
    struct connection connection = *(struct connection *)argument;
    free(argument);
    char *buffer = malloc(BUFFER_LEN);
    int fd = connection.fd, pipe_fds[2] = {-1, -1};
    if (connection.style == SPLICE && pipe(pipe_fds) != 0)
        connection.style = RECV;
    for (bool goes_on = buffer != NULL; goes_on;) {
        switch (connection.style) {
        case VECTOR:
            goes_on = echo_vector(fd, buffer);
            break;
        case SPLICE:
            goes_on = echo_splice(fd, pipe_fds);
            break;
        default:
            goes_on = echo_recv(fd, buffer, connection.style == PEEK);
        }
    }
    close(fd);
    if (pipe_fds[0] >= 0) {
        close(pipe_fds[0]);
        close(pipe_fds[1]);
    }
    free(buffer);
    return NULL;
}

static void serve_with_threads(int listener)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    for (unsigned count = 0;; count++) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) {
            usleep(1000);
            continue;
        }
        struct connection *connection = malloc(sizeof *connection);
        pthread_t thread;
        if (connection == NULL)
            fail("malloc");
        *connection = (struct connection){fd, count % STYLES};
        if (pthread_create(&thread, &attributes, serve, connection) != 0) {
            close(fd);
            free(connection);
        }
    }
}

/* What an epoll loop could not send yet. */
struct backlog {
    size_t at, len;
    bool edge;
    char bytes[BUFFER_LEN];
};

static struct backlog *backlogs[65536];

/* False: the connection is over. */
static bool flush_backlog(int fd, struct backlog *backlog)
{
    while (backlog->at < backlog->len) {
        ssize_t n = send(fd, backlog->bytes + backlog->at, backlog->len - backlog->at, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN;
        backlog->at += (size_t)n;
    }
    backlog->at = backlog->len = 0;
    return true;
}

static bool serve_event(int fd, struct backlog *backlog)
{
    for (;;) {
        if (!flush_backlog(fd, backlog))
            return false;
        if (backlog->len > 0)
            return true;
        ssize_t n = recv(fd, backlog->bytes, sizeof backlog->bytes, MSG_DONTWAIT);
        if (n < 0)
            return errno == EAGAIN;
        if (n == 0)
            return false;
        backlog->len = (size_t)n;
        if (!backlog->edge)
            return flush_backlog(fd, backlog);
    }
}

static void wait_for(int epoll, int operation, int fd, const struct backlog *backlog)
{
    uint32_t out = backlog->len > 0 || backlog->edge ? EPOLLOUT : 0;
    uint32_t in = backlog->len == 0 || backlog->edge ? EPOLLIN : 0;
    struct epoll_event event = {in | out | (backlog->edge ? EPOLLET : 0), {.fd = fd}};
    epoll_ctl(epoll, operation, fd, &event);
}

static void accept_some(int epoll, int listener)
{
    static unsigned count;
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct backlog *backlog = calloc(1, sizeof *backlog);
        if (backlog == NULL || fd >= 65536)
            fail("too many connections");
        backlog->edge = count++ % 2 != 0;
        backlogs[fd] = backlog;
        wait_for(epoll, EPOLL_CTL_ADD, fd, backlog);
    }
}

static void serve_with_epoll(int listener)
{
    int epoll = epoll_create1(0);
    struct epoll_event events[64], accepts = {EPOLLIN, {.fd = listener}};
    fcntl(listener, F_SETFL, O_NONBLOCK);
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &accepts) != 0)
        fail("epoll");
    for (;;) {
        int count = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                accept_some(epoll, listener);
                continue;
            }
            struct backlog *backlog = backlogs[fd];
            bool had_backlog = backlog->len > 0;
            if (!serve_event(fd, backlog)) {
                backlogs[fd] = NULL;
                free(backlog);
                close(fd);
            } else if (!backlog->edge && had_backlog != (backlog->len > 0)) {
                wait_for(epoll, EPOLL_CTL_MOD, fd, backlog);
            }
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        fail("usage: victim threads|epoll PORT");
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1024) != 0)
        fail("listen");
    if (strcmp(argv[1], "epoll") == 0)
        serve_with_epoll(listener);
    else
        serve_with_threads(listener);
}
