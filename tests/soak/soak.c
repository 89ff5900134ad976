/* soak: connections that come and go for hours, and every byte of them compared.
 *
 *   soak serve ADDRESS PORT                      echoes whatever comes, in one event loop
 *   soak call ADDRESS PORT COUNT SEED PAUSE_MS   has COUNT connections at any moment: each
 *                                                exchanges some messages with pauses of up to
 *                                                PAUSE_MS, ends, and another takes its place
 *
 * A connection ends in one of four ways: it closes; it closes with an answer under way; it says that
 * it has nothing more to say and reads to the end; it resets. Whatever else ends one, or is not the
 * byte that was sent, is an error: it is said, and the program fails.
 *
 * Once a second the caller says `BEGUN connections, MESSAGES messages`. At the end of its input it
 * lets every connection come to its end, and says `done` with the same figures.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MESSAGE_MAX = 3000,
    MESSAGES_MAX = 60,
    /* How often the caller looks whose pause is over. */
    TICK_MS = 10,
    EVENTS = 256,
};

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, " (errno %d, %s)\n", errno, strerror(errno));
    exit(1);
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Knuth's generator: what matters is that a seed gives the same again. */
static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static struct sockaddr_in address_of(const char *ip, const char *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, ip, &address.sin_addr) != 1)
        fail("%s is no address", ip);
    return address;
}

static int watch(int set, int operation, int fd, uint32_t events, void *whose)
{
    struct epoll_event event = {.events = events, .data.ptr = whose};
    return epoll_ctl(set, operation, fd, &event);
}

/* ---- the server ------------------------------------------------------------------ */

/* A connection, and what of its bytes has still to go back. */
struct guest {
    int fd;
    bool has_ended;
    size_t at, len;
    char bytes[4096];
};

static void leave(struct guest *guest)
{
    close(guest->fd);
    free(guest);
}

/* Sends back what there is room for. False: the connection is gone. */
static bool answer(struct guest *guest)
{
    while (guest->at < guest->len) {
        ssize_t n = send(guest->fd, guest->bytes + guest->at, guest->len - guest->at, MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN;
        guest->at += (size_t)n;
    }
    guest->at = guest->len = 0;
    return true;
}

/* Reads and answers for as long as both is possible. */
static void serve_guest(int set, struct guest *guest)
{
    for (;;) {
        if (!answer(guest))
            return leave(guest);
        if (guest->len > 0) {
            watch(set, EPOLL_CTL_MOD, guest->fd, EPOLLOUT, guest);
            return;
        }
        ssize_t n = recv(guest->fd, guest->bytes, sizeof guest->bytes, 0);
        if (n < 0 && errno == EAGAIN) {
            watch(set, EPOLL_CTL_MOD, guest->fd, EPOLLIN, guest);
            return;
        }
        if (n <= 0)
            return leave(guest);
        guest->len = (size_t)n;
    }
}

static void serve(struct sockaddr_in address)
{
    struct epoll_event events[EVENTS];
    int on = 1, set = epoll_create1(EPOLL_CLOEXEC);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 4096))
        fail("listen");
    watch(set, EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
    for (;;) {
        int count = epoll_wait(set, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr != NULL) {
                serve_guest(set, events[i].data.ptr);
                continue;
            }
            int fd;
            while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
                struct guest *guest = calloc(1, sizeof *guest);
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                guest->fd = fd;
                watch(set, EPOLL_CTL_ADD, fd, EPOLLIN, guest);
            }
            if (errno == EMFILE || errno == ENFILE)
                fail("accept");
        }
    }
}

/* ---- the caller ------------------------------------------------------------------ */

enum end { CLOSE, CLOSE_EARLY, SHUT, RESET, ENDS };
enum step { PAUSES, CONNECTS, SENDS, RECEIVES, READS_TO_THE_END };

struct caller {
    int fd; /* -1: it has ended */
    enum step step;
    enum end end;
    uint64_t dice, salt, due_ms;
    unsigned messages; /* still to be exchanged */
    size_t len, at;
    uint64_t sent, received; /* of the whole stream */
};

static struct {
    struct sockaddr_in address;
    int set, count, pause_ms;
    bool is_over;
    int left; /* connections that have not ended */
    uint64_t begun, messages;
} calls;

/* The byte at a place of a connection's stream. */
static unsigned char byte_at(uint64_t position, uint64_t salt)
{
    return (unsigned char)((uint32_t)(position + salt) * 2654435761u >> 23);
}

static void begin(struct caller *caller)
{
    int on = 1;
    caller->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (caller->fd < 0)
        fail("socket");
    setsockopt(caller->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    caller->end = next_random(&caller->dice) % 8 == 0 ? RESET : next_random(&caller->dice) % RESET;
    caller->messages = 1 + (unsigned)next_random(&caller->dice) % MESSAGES_MAX;
    caller->salt = next_random(&caller->dice);
    caller->sent = caller->received = 0;
    caller->step = CONNECTS;
    if (connect(caller->fd, (struct sockaddr *)&calls.address, sizeof calls.address) != 0 &&
        errno != EINPROGRESS)
        fail("connect");
    watch(calls.set, EPOLL_CTL_ADD, caller->fd, EPOLLOUT, caller);
    calls.begun++;
}

static void end_of(struct caller *caller)
{
    struct linger at_once = {.l_onoff = 1};
    if (caller->end == RESET)
        setsockopt(caller->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(caller->fd);
    caller->fd = -1;
    if (calls.is_over)
        calls.left--;
    else
        begin(caller);
}

static void pause_of(struct caller *caller)
{
    caller->step = PAUSES;
    caller->due_ms = now_ms() + next_random(&caller->dice) % (unsigned)(calls.pause_ms + 1);
    /* Nothing comes in a pause; an end or an error is told all the same. */
    watch(calls.set, EPOLL_CTL_MOD, caller->fd, EPOLLIN, caller);
}

static void send_message(struct caller *caller)
{
    static unsigned char bytes[MESSAGE_MAX];
    while (caller->at < caller->len) {
        size_t len = caller->len - caller->at;
        for (size_t i = 0; i < len; i++)
            bytes[i] = byte_at(caller->sent + i, caller->salt);
        ssize_t n = send(caller->fd, bytes, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            watch(calls.set, EPOLL_CTL_MOD, caller->fd, EPOLLOUT, caller);
            return;
        }
        if (n < 0)
            fail("send, after %lu bytes", caller->sent);
        caller->sent += (uint64_t)n;
        caller->at += (size_t)n;
    }
    caller->step = RECEIVES;
    if (caller->messages == 1 && caller->end == CLOSE_EARLY)
        return end_of(caller);
    if (caller->messages == 1 && caller->end == SHUT) {
        caller->step = READS_TO_THE_END;
        if (shutdown(caller->fd, SHUT_WR) != 0)
            fail("shutdown");
    }
    watch(calls.set, EPOLL_CTL_MOD, caller->fd, EPOLLIN, caller);
}

static void begin_message(struct caller *caller)
{
    caller->step = SENDS;
    caller->at = 0;
    caller->len = 1 + next_random(&caller->dice) % MESSAGE_MAX;
    send_message(caller);
}

static void receive_message(struct caller *caller)
{
    static unsigned char bytes[MESSAGE_MAX];
    while (caller->received < caller->sent || caller->step == READS_TO_THE_END) {
        ssize_t n = recv(caller->fd, bytes, sizeof bytes, 0);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0)
            fail("recv, after %lu of %lu bytes", caller->received, caller->sent);
        for (ssize_t i = 0; i < n; i++)
            if (bytes[i] != byte_at(caller->received + (uint64_t)i, caller->salt))
                fail("byte %lu is another", caller->received + (uint64_t)i);
        caller->received += (uint64_t)n;
        if (n == 0 && caller->received < caller->sent)
            fail("the end after %lu of %lu bytes", caller->received, caller->sent);
        if (caller->received > caller->sent)
            fail("%lu bytes of %lu", caller->received, caller->sent);
        if (n == 0) {
            calls.messages++;
            return end_of(caller);
        }
    }
    calls.messages++;
    if (--caller->messages == 0)
        return end_of(caller);
    pause_of(caller);
}

static void go_on(struct caller *caller)
{
    int error = 0;
    socklen_t len = sizeof error;
    switch (caller->step) {
    case CONNECTS:
        if (getsockopt(caller->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error != 0) {
            errno = error;
            fail("connect");
        }
        return begin_message(caller);
    case SENDS:
        return send_message(caller);
    case RECEIVES:
    case READS_TO_THE_END:
        return receive_message(caller);
    case PAUSES:
        fail("something comes in a pause, after %lu bytes", caller->received);
    }
}

static void say(const char *word)
{
    printf("%s%lu connections, %lu messages\n", word, calls.begun, calls.messages);
    fflush(stdout);
}

static bool input_has_ended(void)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    char byte;
    return poll(&input, 1, 0) == 1 && read(STDIN_FILENO, &byte, 1) <= 0;
}

static void call(uint64_t seed)
{
    struct epoll_event events[EVENTS];
    struct caller *callers = calloc((size_t)calls.count, sizeof *callers);
    calls.set = epoll_create1(EPOLL_CLOEXEC);
    calls.left = calls.count;
    uint64_t told_ms = now_ms();
    for (int i = 0; i < calls.count; i++) {
        callers[i].dice = seed * 1000003 + (uint64_t)i;
        begin(&callers[i]);
    }
    while (calls.left > 0) {
        int count = epoll_wait(calls.set, events, EVENTS, TICK_MS);
        for (int i = 0; i < count; i++)
            go_on(events[i].data.ptr);
        uint64_t now = now_ms();
        for (int i = 0; i < calls.count; i++)
            if (callers[i].fd >= 0 && callers[i].step == PAUSES && callers[i].due_ms <= now)
                begin_message(&callers[i]);
        if (now - told_ms >= 1000) {
            told_ms = now;
            say("");
            calls.is_over = calls.is_over || input_has_ended();
        }
    }
    say("done ");
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "serve") == 0)
        serve(address_of(argv[2], argv[3]));
    if (argc != 7 || strcmp(argv[1], "call") != 0)
        fail("usage: soak serve ADDRESS PORT | soak call ADDRESS PORT COUNT SEED PAUSE_MS");
    calls.address = address_of(argv[2], argv[3]);
    calls.count = atoi(argv[4]);
    calls.pause_ms = atoi(argv[6]);
    call(strtoull(argv[5], NULL, 10));
    return 0;
}
