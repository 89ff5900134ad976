/*
 * player.c: plays a list of socket operations and writes down what each returned.
 *
 * Two processes, `server` and `client`, hold the ends of up to four connections; either
 * may fork, and parent and child go on. A conductor gives out one operation at a time and
 * waits for its answer, so the list alone decides what happens, and two runs of one list
 * differ only if the sockets do. That is the test: `cargo xtask operations` plays each
 * list plain and with Sidestep preloaded and compares the traces. This file knows nothing
 * of Sidestep.
 *
 * A list is bytes on standard input, four for an operation: what, who and where, and two
 * arguments. Any bytes are a list. What makes no sense at its moment (an end that is not
 * open, a process that is dead) is left out in every run alike.
 *
 * What TCP itself leaves open is kept out of the trace:
 *
 *   room      At most ROOM bytes are on their way unread, so that every send is taken
 *             whole; how much more fits is nobody's promise. `fill` goes beyond, until
 *             EAGAIN. From then until the stream is drained neither amounts nor OUT nor
 *             RDHUP count (a FIN waits behind bytes for which there is no room), and its
 *             reader neither sends nor shuts it: whether a FIN has come, and so whether a
 *             reset is EPIPE or ECONNRESET, depends on the room before it. Nobody fills a
 *             stream whose reader has shut it: TCP does not tell of the room there.
 *   sleep     An operation that sleeps is given GRACE_MS after each other operation to wake
 *             up, and its answer is written down at the first of them that woke it.
 *   death     A process that ends without closing is found dead by its peers: after DEATH_MS
 *             each looks at its ends, and what it does afterwards is compared.
 *   ghosts    A closed descriptor is reported on by epoll for as long as another process
 *             has the connection open (epoll(7), question 6); Sidestep does not. So what
 *             is closed after a fork is taken off the set first.
 *   edges     An edge may be told twice (the lines begin with `edge`; the reader
 *             of the trace judges), but what it tells must be true. Into how many parts
 *             a full stream was cut, and so the edges while it is drained, do not count.
 *
 * Whatever the oracle says, a small model of a stream must hold in every run: bytes come
 * in order and unchanged, the end comes after all of them, and nothing is sent after
 * SHUT_WR. A line with "MODEL" breaks it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    SERVER, CLIENT, /* the first two players */
    PLAYERS_MAX = 5,
    INTERVENTIONS_OUT = 198, /* descriptors of whoever intervenes */
    INTERVENTIONS_IN = 199,
    SLOTS = 4,          /* places for an end in a player */
    CONNECTIONS_MAX = 64,
    LIST_MAX = 4096,    /* bytes */
    ROOM = 12 << 10,    /* bytes that may be unread in one direction */
    WARM_ROUNDS = 8,    /* messages each way after which a connection has moved */
    GRACE_MS = 8,
    DEATH_MS = 10,
    DRAIN_MS = 1000,    /* within which a full stream must be empty */
    EPOLL_SLEEP_MS = 4000,
    ANSWER_MS = 10000,  /* an operation without an answer by then hangs */
    EXACTLY = -1,
};

enum operation {
    OPEN, SEND, RECEIVE, SHUTDOWN, CLOSE, DUPLICATE, FORK, POLL, NONBLOCK, LINGER, OPTION,
    WATCH, WAIT, FILL, DRAIN, SLEEP, LEAVE,
    CONNECT, ACCEPT, /* the halves of OPEN */
    LOOK,            /* at all ends, without a word */
};

/* How often each comes among random bytes. */
static const unsigned char deck[] = {
    OPEN, OPEN, OPEN, OPEN, SEND, SEND, SEND, SEND, SEND, SEND, RECEIVE, RECEIVE, RECEIVE,
    RECEIVE, RECEIVE, RECEIVE, SHUTDOWN, SHUTDOWN, CLOSE, CLOSE, DUPLICATE, FORK, POLL, POLL,
    POLL, NONBLOCK, LINGER, OPTION, OPTION, WATCH, WATCH, WATCH, WAIT, WAIT, WAIT, FILL, DRAIN,
    SLEEP, SLEEP, LEAVE,
};
static const int lengths[] = {0, 1, 2, 99, 1000, 4096, 8000, 11000};
static const short interests[] = {POLLIN, POLLIN | POLLOUT, POLLIN | POLLRDHUP, POLLOUT,
                                  POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
static const int lowats[] = {1, 50, 2000};
#define PICK(table, byte) (table)[(byte) % (sizeof(table) / sizeof(table)[0])]

/* ---- what all processes know ----------------------------------------------------- */

struct stream {
    uint64_t sent, received;
    bool full;     /* since a `fill`, until drained */
    bool finished; /* SHUT_WR was done */
    bool unwanted; /* SHUT_RD was done: 0 is no longer the end */
};

struct connection {
    struct stream streams[2]; /* by the player at the sending end: SERVER, CLIENT */
    bool disturbed;           /* there may have been a reset: bytes may be lost */
};

static struct shared {
    struct connection connections[CONNECTIONS_MAX];
    int connection_count;
    in_port_t port;
    pid_t pids[PLAYERS_MAX];
} *shared;

struct order {
    unsigned char what, slot, a, b;
    int number; /* of the connection, for CONNECT and ACCEPT; of the new player, for FORK;
                 * EXACTLY: this slot or none */
};

struct answer {
    int slot; /* where it was done, or -1 */
    char text[252];
};

/* ---- a player -------------------------------------------------------------------- */

struct end {
    int fd; /* -1: the slot is free */
    int connection;
    int side; /* SERVER or CLIENT */
    bool edge; /* watched edge-triggered */
    bool drained; /* after it was full, and nobody has waited since */
    bool watched;
};

static struct end ends[SLOTS];
static int listener = -1, set = -1;
static int channels[PLAYERS_MAX][2]; /* conductor's end, player's end */
static volatile sig_atomic_t sigpipes;
static unsigned char bytes[64 << 10];
static struct answer answer;

static const char *name_of(int player)
{
    return (const char *[]){"server", "client", "child 2", "child 3", "child 4"}[player];
}

static void on_sigpipe(int signal)
{
    (void)signal;
    sigpipes++;
}

__attribute__((format(printf, 1, 2)))
static void say(const char *format, ...)
{
    size_t used = strlen(answer.text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(answer.text + used, sizeof answer.text - used, format, arguments);
    va_end(arguments);
}

static void say_result(long result)
{
    if (result >= 0)
        say(" -> %ld", result);
    else
        say(" -> %s", strerrorname_np(errno));
}

static void say_mask(unsigned mask)
{
    static const struct { unsigned bit; const char *name; } names[] = {
        {POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLERR, "ERR"},
        {POLLHUP, "HUP"}, {POLLNVAL, "NVAL"}, {POLLRDHUP, "RDHUP"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (mask & names[i].bit)
            say(" %s", names[i].name);
}

static struct connection *connection_of(const struct end *end)
{
    return &shared->connections[end->connection];
}

static struct stream *outgoing(const struct end *end)
{
    return &connection_of(end)->streams[end->side];
}

static struct stream *incoming(const struct end *end)
{
    return &connection_of(end)->streams[!end->side];
}

static uint64_t unread(const struct stream *stream)
{
    return stream->sent - stream->received;
}

/* A byte by its position, its connection and its direction. */
static unsigned char pattern(const struct stream *stream, uint64_t position)
{
    uint32_t salt = (uint32_t)((const char *)stream - (const char *)shared);
    return (unsigned char)(((uint32_t)position + salt * 7) * 2654435761u >> 23);
}

/* What does not count: see "room" above. */
static short unknown_of(const struct end *end)
{
    return (outgoing(end)->full ? POLLOUT : 0) | (incoming(end)->full ? POLLRDHUP : 0);
}

static short mask_of(const struct end *end, short interest)
{
    struct pollfd entry = {.fd = end->fd, .events = interest};
    if (poll(&entry, 1, 0) < 0)
        return POLLNVAL;
    return entry.revents & ~unknown_of(end);
}

/* ---- moving bytes ---------------------------------------------------------------- */

/* The next `len` bytes by one of the calls that send. */
static long send_by(const struct end *end, size_t len, int how)
{
    struct stream *stream = outgoing(end);
    for (size_t i = 0; i < len; i++)
        bytes[i] = pattern(stream, stream->sent + i);
    struct iovec parts[2] = {{bytes, len / 3}, {bytes + len / 3, len - len / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    int flags = stream->full ? MSG_DONTWAIT : 0;
    stream->sent += len; /* before a reader who sleeps can see them */
    long n = flags || how % 5 == 0 ? send(end->fd, bytes, len, flags)
             : how % 5 == 1        ? write(end->fd, bytes, len)
             : how % 5 == 2        ? writev(end->fd, parts, 2)
             : how % 5 == 3        ? sendmsg(end->fd, &message, 0)
                                   : send(end->fd, bytes, len, MSG_NOSIGNAL);
    stream->sent -= len - (n > 0 ? (size_t)n : 0);
    if (n >= 0 && len > 0 && stream->finished)
        say(" MODEL: sent after SHUT_WR");
    if (n < 0 && errno != EAGAIN)
        connection_of(end)->disturbed = true;
    return n;
}

static void act_send(struct end *end, int a, int b)
{
    size_t len = PICK(lengths, a);
    struct stream *stream = outgoing(end);
    say("send %zu by %d", len, b % 5);
    if (incoming(end)->full || (!stream->full && unread(stream) + len > ROOM)) {
        say(": nothing is promised");
        return;
    }
    long n = send_by(end, len, b);
    if (stream->full && (n > 0 || (n < 0 && errno == EAGAIN)))
        say(" -> some or EAGAIN");
    else
        say_result(n);
}

/* Checks what was received against the model. */
static void judge(const struct end *end, long n, size_t len, bool taken)
{
    struct stream *stream = incoming(end);
    for (long i = 0; i < n; i++)
        if (bytes[i] != pattern(stream, stream->received + i)) {
            say(" MODEL: byte %ld is wrong", i);
            break;
        }
    if (n < 0 && errno != EAGAIN)
        connection_of(end)->disturbed = true;
    if (n == 0 && len > 0 && unread(stream) > 0 && !connection_of(end)->disturbed)
        say(" MODEL: the end, and %lu bytes are missing", (unsigned long)unread(stream));
    if (n > 0 && (uint64_t)n > unread(stream))
        say(" MODEL: more than was sent");
    if (n > 0 && taken)
        stream->received += n;
}

/* Behind a full stream that was shut and then torn off comes the FIN, if there was room
 * for it, or the reset. */
static void forget_reset(const struct end *end)
{
    int error;
    socklen_t len = sizeof error;
    getsockopt(end->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    say(" to the end or a reset");
}

/* Receives all that there is. */
static void act_drain(struct end *end)
{
    struct stream *stream = incoming(end);
    bool was_full = stream->full;
    end->drained |= was_full;
    long n, total = 0;
    int left_ms = DRAIN_MS;
    say("drain");
    for (;;) {
        n = recv(end->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        judge(end, n, sizeof bytes, true);
        if (n > 0) {
            total += n;
            continue;
        }
        bool may_come = n == 0 ? stream->unwanted && was_full : errno == EAGAIN;
        if (!may_come || unread(stream) == 0 || left_ms-- == 0)
            break;
        /* The rest waits for an acknowledgement on its way. */
        usleep(1000);
    }
    if (n < 0 && errno == EAGAIN && unread(stream) > 0)
        say(" MODEL: %lu bytes do not come", (unsigned long)unread(stream));
    if (n < 0 && errno == EAGAIN)
        say(" until EAGAIN");
    else if (was_full && stream->finished && connection_of(end)->disturbed)
        forget_reset(end);
    else
        say(n == 0 ? " to the end" : " until %s", strerrorname_np(errno));
    if (!was_full)
        say(" -> %ld", total);
    stream->full = false;
}

/* A call without MSG_DONTWAIT is made only if `poll` says that it returns at once. */
static long receive_by(const struct end *end, size_t len, int how)
{
    struct iovec parts[2] = {{bytes, len / 3}, {bytes + len / 3, len - len / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    bool ready = mask_of(end, POLLIN) & (POLLIN | POLLHUP | POLLERR);
    switch (how) {
    case 0:
        return ready ? read(end->fd, bytes, len) : recv(end->fd, bytes, len, MSG_DONTWAIT);
    case 1:
        return ready ? readv(end->fd, parts, 2) : recv(end->fd, bytes, len, MSG_DONTWAIT);
    case 2:
        return recvmsg(end->fd, &message, MSG_DONTWAIT);
    case 3:
        return recv(end->fd, bytes, len, MSG_DONTWAIT | MSG_PEEK);
    case 4:
        return recv(end->fd, bytes, len, MSG_DONTWAIT | MSG_WAITALL);
    default:
        return recv(end->fd, bytes, len, MSG_DONTWAIT);
    }
}

static void act_receive(struct end *end, int a, int b)
{
    if (incoming(end)->full) {
        act_drain(end);
        return;
    }
    size_t len = PICK(lengths, a);
    int how = b % 6;
    say("receive %zu by %d", len, how);
    long n = receive_by(end, len, how);
    say_result(n);
    judge(end, n, len, how != 3);
}

static void act_fill(struct end *end)
{
    say("fill");
    if (incoming(end)->full || outgoing(end)->unwanted) {
        say(": nothing is promised");
        return;
    }
    outgoing(end)->full = true;
    long n;
    while ((n = send_by(end, 4096, 0)) > 0)
        ;
    say_result(n);
}

/* ---- waiting --------------------------------------------------------------------- */

static void act_poll(struct end *end, int a)
{
    say("poll");
    say_mask(PICK(interests, a));
    say(" ->");
    say_mask((unsigned short)mask_of(end, PICK(interests, a)));
}

static void act_watch(struct end *end, int a, int b)
{
    static const char *const verbs[] = {"add", "change", "add", "remove"};
    static const int calls[] = {EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_ADD, EPOLL_CTL_DEL};
    static const struct { unsigned flags; const char *name; } manners[] = {
        {0, "level"}, {EPOLLET, "edge"}, {EPOLLONESHOT, "once"}};
    int call = calls[a % 4], manner = a / 4 % 3;
    struct epoll_event event = {.events = (unsigned short)PICK(interests, b) | manners[manner].flags,
                                .data.u32 = (uint32_t)(end - ends)};
    if (set < 0)
        set = epoll_create1(EPOLL_CLOEXEC);
    say("watch: %s %s", verbs[a % 4], manners[manner].name);
    say_mask((unsigned short)PICK(interests, b));
    int result = epoll_ctl(set, call, end->fd, &event);
    say_result(result);
    if (result == 0) {
        end->watched = call != EPOLL_CTL_DEL;
        end->edge = end->watched && manner == 1;
    }
}

static void act_wait(int timeout_ms)
{
    struct epoll_event events[SLOTS * 4];
    unsigned level[SLOTS] = {0}, edge[SLOTS] = {0};
    say("wait");
    if (set < 0)
        return;
    for (int slot = 0; slot < SLOTS; slot++)
        if (ends[slot].fd >= 0 && ends[slot].watched && outgoing(&ends[slot])->full) {
            say(": not while full");
            return;
        }
    int n = epoll_wait(set, events, SLOTS * 4, timeout_ms);
    if (n < 0)
        say_result(n);
    for (int i = 0; i < n; i++) {
        struct end *end = &ends[events[i].data.u32];
        events[i].events &= ~(unsigned)unknown_of(end);
        if (!end->edge)
            level[end - ends] |= events[i].events;
        else if (!end->drained)
            edge[end - ends] |= events[i].events;
        short all = POLLIN | POLLOUT | POLLPRI | POLLRDHUP;
        if (end->edge && (events[i].events & ~(unsigned short)mask_of(end, all)))
            say(" MODEL: an edge that is not true");
    }
    for (int slot = 0; slot < SLOTS; slot++)
        if (level[slot]) {
            say(" %d:", slot);
            say_mask(level[slot]);
        }
    for (int slot = 0; slot < SLOTS; slot++)
        if (edge[slot]) {
            say("\nedge %d:", slot);
            say_mask(edge[slot]);
        }
    for (int slot = 0; slot < SLOTS; slot++)
        ends[slot].drained = false;
}

/* What may sleep until somebody else does something. */
static void act_sleep(struct end *end, int a, int b)
{
    struct pollfd entry = {.fd = end->fd, .events = POLLIN | POLLRDHUP};
    if (b % 3 == 0 && !incoming(end)->full) {
        size_t len = PICK(lengths, a);
        if (len == 0 && outgoing(end)->full)
            len = 1; /* without room for a byte, news of room to send wakes it, too */
        say("sleep in recv %zu", len);
        long n = recv(end->fd, bytes, len, 0);
        if (n > 0 && incoming(end)->full)
            say(" -> some");
        else
            say_result(n);
        judge(end, n, len, true);
    } else if (b % 3 == 1) {
        say("sleep in poll");
        poll(&entry, 1, -1);
        say(" ->");
        say_mask(mask_of(end, entry.events));
    } else {
        say("sleep in ");
        act_wait(EPOLL_SLEEP_MS);
    }
}

/* ---- the life of an end ---------------------------------------------------------- */

static void forget(struct end *end)
{
    if (unread(incoming(end)) > 0)
        connection_of(end)->disturbed = true;
    *end = (struct end){.fd = -1};
}

/* See "ghosts" above. */
static void take_off(const struct end *end)
{
    if (end->watched && shared->pids[CLIENT + 1] != 0)
        epoll_ctl(set, EPOLL_CTL_DEL, end->fd, NULL);
}

static void act_close(struct end *end)
{
    say("close");
    take_off(end);
    int result = close(end->fd);
    forget(end);
    say_result(result);
}

static void act_duplicate(struct end *end, int a)
{
    struct end *other = &ends[a % SLOTS];
    say("duplicate to %d", a % SLOTS);
    if (other == end)
        return;
    int fd;
    if (other->fd >= 0) {
        take_off(other);
        fd = dup2(end->fd, other->fd);
        forget(other);
    } else {
        fd = a & 64 ? dup(end->fd) : fcntl(end->fd, F_DUPFD_CLOEXEC, 100);
    }
    *other = *end;
    other->fd = fd;
    other->watched = other->edge = false;
    say(fd >= 0 ? " -> done" : " -> failed");
}

static void act_shutdown(struct end *end, int how)
{
    say("shutdown %s", (const char *[]){"RD", "WR", "RDWR"}[how]);
    if (how != SHUT_WR && incoming(end)->full) {
        say(": nothing is promised");
        return;
    }
    int result = shutdown(end->fd, how);
    if (result == 0 && how != SHUT_RD)
        outgoing(end)->finished = true;
    if (result == 0 && how != SHUT_WR)
        incoming(end)->unwanted = true;
    /* What has arrived or arrives after that may be thrown away. */
    if (how != SHUT_WR)
        connection_of(end)->disturbed = true;
    say_result(result);
}

static void act_nonblock(struct end *end, int a)
{
    int flags = fcntl(end->fd, F_GETFL);
    say("nonblock %d", a & 1);
    say_result(fcntl(end->fd, F_SETFL, a & 1 ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

static void act_linger(struct end *end, int a)
{
    struct linger linger = {.l_onoff = a % 3 != 0};
    say("linger %s", linger.l_onoff ? "0" : "off");
    connection_of(end)->disturbed = true;
    say_result(setsockopt(end->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
}

static void act_option(struct end *end, int a, int b)
{
    int value = 0;
    socklen_t len = sizeof value;
    if (a % 3 == 0) {
        int result = getsockopt(end->fd, SOL_SOCKET, SO_ERROR, &value, &len);
        say("SO_ERROR %s", value ? strerrorname_np(value) : "0");
        say_result(result);
    } else if (a % 3 == 1) {
        int result = ioctl(end->fd, FIONREAD, &value);
        if (incoming(end)->full && value > 0)
            say("FIONREAD some");
        else
            say("FIONREAD %d", value);
        say_result(result);
    } else {
        value = PICK(lowats, b);
        say("SO_RCVLOWAT %d", value);
        say_result(setsockopt(end->fd, SOL_SOCKET, SO_RCVLOWAT, &value, len));
    }
}

static struct sockaddr_in address_of_listener(void)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = shared->port,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void act_open(struct end *end, const struct order *order)
{
    struct sockaddr_in address = address_of_listener();
    int on = 1, result = 0;
    if (order->what == CONNECT) {
        end->fd = socket(AF_INET, SOCK_STREAM, 0);
        result = connect(end->fd, (struct sockaddr *)&address, sizeof address);
    } else {
        end->fd = accept(listener, NULL, NULL);
    }
    end->connection = order->number;
    end->side = order->what == CONNECT ? CLIENT : SERVER;
    /* A second small message would wait for the acknowledgement of the first. */
    setsockopt(end->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (end->fd < 0 || result < 0)
        say("MODEL: cannot connect: %s", strerrorname_np(errno));
}

/* ---- the player's loop ----------------------------------------------------------- */

static void look_around(void)
{
    for (int slot = 0; slot < SLOTS; slot++)
        if (ends[slot].fd >= 0)
            mask_of(&ends[slot], POLLIN | POLLOUT);
}

static bool needs_an_end(int what)
{
    return what != LOOK && what != CONNECT && what != ACCEPT && what != FORK && what != WAIT && what != LEAVE;
}

/* From the slot that the order names on, so that few orders come to nothing. CLOSE
 * before OPEN means what it says. */
static bool find_an_end(struct order *order)
{
    for (int tries = 0; ends[order->slot].fd < 0; tries++) {
        if (tries == SLOTS || order->number == EXACTLY)
            return false;
        order->slot = (order->slot + 1) % SLOTS;
    }
    return true;
}

static void act(const struct order *order)
{
    struct end *end = &ends[order->slot];
    int a = order->a, b = order->b;
    answer.slot = needs_an_end(order->what) ? order->slot : -1;
    switch (order->what) {
    case CONNECT:
    case ACCEPT:    act_open(end, order); break;
    case SEND:      act_send(end, a, b); break;
    case RECEIVE:   act_receive(end, a, b); break;
    case SHUTDOWN:  act_shutdown(end, a % 3); break;
    case CLOSE:     act_close(end); break;
    case DUPLICATE: act_duplicate(end, a); break;
    case POLL:      act_poll(end, a); break;
    case NONBLOCK:  act_nonblock(end, a); break;
    case LINGER:    act_linger(end, a); break;
    case OPTION:    act_option(end, a, b); break;
    case WATCH:     act_watch(end, a, b); break;
    case WAIT:      act_wait(0); break;
    case FILL:      act_fill(end); break;
    case DRAIN:     act_drain(end); break;
    case SLEEP:     act_sleep(end, a, b); break;
    case LOOK:      look_around(); break;
    case FORK:      say("fork %s", name_of(order->number)); break;
    case LEAVE:     say(a & 1 ? "killed" : "exit"); break;
    }
}

/* A process begins its life. Two in one epoll set would take each other's edges. */
static void begin(int self)
{
    shared->pids[self] = getpid();
    if (set >= 0)
        close(set);
    set = -1;
    for (int slot = 0; slot < SLOTS; slot++)
        ends[slot].watched = ends[slot].edge = false;
}

static void play(int self)
{
    struct order order;
    /* So that the end of the conductor is the end of all. */
    for (int player = 0; player < PLAYERS_MAX; player++)
        close(channels[player][0]);
    begin(self);
    while (recv(channels[self][1], &order, sizeof order, 0) == sizeof order) {
        bool ends_here = order.what == LEAVE;
        answer = (struct answer){.slot = -1};
        int pipes_before = sigpipes;
        if (order.what == FORK && fork() == 0) {
            self = order.number;
            begin(self);
            continue;
        }
        if (!needs_an_end(order.what) || find_an_end(&order))
            act(&order);
        if (sigpipes != pipes_before)
            say(" and SIGPIPE");
        for (int slot = 0; ends_here && slot < SLOTS; slot++)
            if (ends[slot].fd >= 0)
                forget(&ends[slot]);
        send(channels[self][1], &answer, sizeof answer, MSG_NOSIGNAL);
        if (ends_here && order.a & 1)
            raise(SIGKILL);
        if (ends_here)
            break;
    }
    _exit(0);
}

static void listen_somewhere(void)
{
    struct sockaddr_in address = address_of_listener();
    socklen_t len = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, len) || listen(listener, 16) ||
        getsockname(listener, (struct sockaddr *)&address, &len))
        exit(2);
    shared->port = address.sin_port;
}

/* ---- the conductor --------------------------------------------------------------- */

static bool alive[PLAYERS_MAX] = {true, true};
static int player_count = 2, sleeper = -1, sleeper_step;

static bool hear(int player, int timeout_ms)
{
    struct pollfd entry = {.fd = channels[player][0], .events = POLLIN};
    return poll(&entry, 1, timeout_ms) == 1 &&
           recv(channels[player][0], &answer, sizeof answer, 0) == sizeof answer;
}

static void must_hear(int player, int step)
{
    if (hear(player, ANSWER_MS))
        return;
    printf("%3d %s MODEL: no answer\n", step, name_of(player));
    exit(3);
}

static void tell(int player, struct order order)
{
    send(channels[player][0], &order, sizeof order, MSG_NOSIGNAL);
}

static void ask(int player, struct order order, int step)
{
    tell(player, order);
    must_hear(player, step);
}

static void note(int player, int step)
{
    if (answer.slot >= 0)
        printf("%3d %s, end %d: %s\n", step, name_of(player), answer.slot, answer.text);
    else if (answer.text[0])
        printf("%3d %s: %s\n", step, name_of(player), answer.text);
}

static void note_sleeper(int timeout_ms)
{
    if (sleeper < 0 || !hear(sleeper, timeout_ms))
        return;
    note(sleeper, sleeper_step);
    sleeper = -1;
}

static void conduct_open(int slot, bool warm, int step)
{
    if (!alive[SERVER] || !alive[CLIENT] || sleeper == SERVER || sleeper == CLIENT ||
        shared->connection_count == CONNECTIONS_MAX)
        return;
    int number = shared->connection_count++;
    const int sides[] = {CLIENT, SERVER};
    for (int i = 0; i < 2; i++) /* what is in the slot goes */
        ask(sides[i], (struct order){CLOSE, slot, 0, 0, EXACTLY}, step);
    ask(CLIENT, (struct order){CONNECT, slot, 0, 0, number}, step);
    ask(SERVER, (struct order){ACCEPT, slot, 0, 0, number}, step);
    for (int i = 0; warm && i < 2 * WARM_ROUNDS; i++) {
        ask(i & 1 ? SERVER : CLIENT, (struct order){SEND, slot, 1, 0, 0}, step);
        ask(i & 1 ? CLIENT : SERVER, (struct order){RECEIVE, slot, 1, 0, 0}, step);
    }
    printf("%3d open %d %s%s\n", step, slot, warm ? "warm" : "cold",
           strstr(answer.text, "MODEL") ? answer.text : "");
}

/* Waits until the process is gone and the kernel has closed its descriptors. */
static void see_off(int player, int step)
{
    int pidfd = (int)syscall(SYS_pidfd_open, shared->pids[player], 0);
    struct pollfd entry = {.fd = pidfd, .events = POLLIN};
    if (pidfd >= 0)
        poll(&entry, 1, ANSWER_MS);
    close(pidfd);
    alive[player] = false;
    usleep(DEATH_MS * 1000);
    for (int other = 0; other < player_count; other++)
        if (alive[other] && other != sleeper)
            ask(other, (struct order){LOOK, 0, 0, 0, 0}, step);
}

static void conduct(const unsigned char *operation, int step)
{
    int what = PICK(deck, operation[0]), slot = operation[1] >> 4 & (SLOTS - 1);
    int player = (operation[1] & 15) % player_count;
    struct order order = {what, slot, operation[2], operation[3], player_count};
    if (what == OPEN) {
        conduct_open(slot, operation[2] & 1, step);
        return;
    }
    if (!alive[player] || player == sleeper)
        return;
    if (what == FORK && player_count == PLAYERS_MAX)
        return;
    if (what == SLEEP && sleeper >= 0)
        return;
    tell(player, order);
    if (what == SLEEP) {
        sleeper = player;
        sleeper_step = step;
        return;
    }
    must_hear(player, step);
    note(player, step);
    if (what == FORK)
        alive[player_count++] = true;
    else if (what == LEAVE)
        see_off(player, step);
}

/* Whoever sleeps must wake up when all others are gone. */
static void conclude(int step)
{
    for (int player = 0; player < player_count; player++)
        if (alive[player] && player != sleeper) {
            ask(player, (struct order){LEAVE, 0, 0, 0, 0}, step);
            see_off(player, step);
        }
    if (sleeper >= 0) {
        int last = sleeper;
        note_sleeper(ANSWER_MS);
        if (sleeper >= 0)
            printf("%3d %s MODEL: does not wake up\n", sleeper_step, name_of(last));
        kill(shared->pids[last], SIGKILL);
    }
}

/* Lets whoever started us do something between two operations: tells who plays, and waits
   for a byte. */
static void let_intervene(void)
{
    int pids[PLAYERS_MAX];
    for (int player = 0; player < PLAYERS_MAX; player++)
        pids[player] = player < player_count && alive[player] ? shared->pids[player] : 0;
    char go_on;
    if (write(INTERVENTIONS_OUT, pids, sizeof pids) != sizeof pids ||
        read(INTERVENTIONS_IN, &go_on, 1) != 1)
        exit(3);
}

int main(void)
{
    static unsigned char list[LIST_MAX];
    bool intervenes = getenv("PLAYER_INTERVENTIONS") != NULL;
    size_t len = fread(list, 1, sizeof list, stdin);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    for (int slot = 0; slot < SLOTS; slot++)
        ends[slot].fd = -1;
    for (int player = 0; player < PLAYERS_MAX; player++)
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channels[player]);
    signal(SIGCHLD, SIG_IGN);
    struct sigaction action = {.sa_handler = on_sigpipe, .sa_flags = SA_RESTART};
    sigaction(SIGPIPE, &action, NULL);
    listen_somewhere();
    for (int player = SERVER; player <= CLIENT; player++)
        if (fork() == 0) {
            if (player == CLIENT)
                close(listener);
            play(player);
        }
    close(listener);
    int step = 0;
    for (; (size_t)step < len / 4; step++) {
        if (intervenes)
            let_intervene();
        conduct(list + step * 4, step);
        note_sleeper(GRACE_MS);
    }
    conclude(step);
    return 0;
}
