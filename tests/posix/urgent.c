/*
 * urgent.c: TCP's urgent byte as Linux does it (tcp(7)): one byte, the last of a
 * MSG_OOB send, out of the stream unless SO_OOBINLINE says otherwise; a mark in the
 * stream where it was, at which reading stops.
 */
#include "support.h"

enum { URGENT = POLLIN | POLLPRI | POLLOUT };

static char buffer[1000];

static long do_send_text(struct end *end, long text, long flags)
{
    return send(end->fd, (const char *)text, strlen((const char *)text), (int)flags);
}

static void peer_sends(struct pair *p, const char *text, int flags)
{
    CHECK_EQ(peer_do(p, do_send_text, (long)text, flags), strlen(text));
}

static bool received(ssize_t n, const char *text)
{
    return n == (ssize_t)strlen(text) && memcmp(buffer, text, n) == 0;
}

/* POLLPRI stays until the byte was taken or the stream read past it. */
static bool await_urgent(int fd)
{
    return CHECK_EQ(poll_once(fd, POLLPRI, HANG_MS), POLLPRI);
}

static int at_mark(int fd)
{
    int mark = -1;
    CHECK_EQ(ioctl(fd, SIOCATMARK, &mark), 0);
    CHECK_EQ(sockatmark(fd), mark);
    return mark;
}

static void alone(struct pair *p)
{
    int fd = p->self.fd;
    peer_sends(p, "!", MSG_OOB);
    await_urgent(fd);
    CHECK_EQ(at_mark(fd), 1);
    CHECK(received(recv(fd, buffer, 10, MSG_OOB), "!"));
    CHECK_ERRNO(recv(fd, buffer, 10, MSG_OOB), EINVAL); /* only once */
    CHECK_ERRNO(recv(fd, buffer, 10, MSG_DONTWAIT), EAGAIN);
    peer_sends(p, "after", 0);
    CHECK(received(recv(fd, buffer, 5, MSG_WAITALL), "after"));
    CHECK_EQ(at_mark(fd), 0);
}

/* recv() up to the mark first, then beyond; the byte itself is not in the stream. */
static void read_stops_at_the_mark(struct pair *p)
{
    int fd = p->self.fd;
    peer_sends(p, "before", 0);
    peer_sends(p, "!", MSG_OOB);
    peer_sends(p, "after", 0);
    await_urgent(fd);
    CHECK_EQ(at_mark(fd), 0);
    CHECK(received(recv(fd, buffer, 100, 0), "before"));
    CHECK_EQ(at_mark(fd), 1);
    CHECK(received(recv(fd, buffer, 100, MSG_OOB), "!"));
    CHECK(received(recv(fd, buffer, 5, MSG_WAITALL), "after"));
    CHECK_EQ(at_mark(fd), 0);
    CHECK_MASK(fd, POLLOUT);
}

/* A MSG_OOB send of several bytes: only the last is urgent. */
static void last_byte_is_urgent(struct pair *p)
{
    int fd = p->self.fd;
    peer_sends(p, "abc", MSG_OOB);
    await_urgent(fd);
    CHECK(received(recv(fd, buffer, 10, MSG_OOB), "c"));
    CHECK(received(recv(fd, buffer, 10, 0), "ab"));
    CHECK_ERRNO(recv(fd, buffer, 10, MSG_DONTWAIT), EAGAIN);
}

/* Taken before the stream is read: the mark stays where it was. */
static void taken_early(struct pair *p)
{
    int fd = p->self.fd;
    peer_sends(p, "before", 0);
    peer_sends(p, "!", MSG_OOB);
    peer_sends(p, "after", 0);
    await_urgent(fd);
    CHECK(received(recv(fd, buffer, 1, MSG_OOB), "!"));
    CHECK(received(recv(fd, buffer, 100, 0), "before"));
    CHECK_EQ(at_mark(fd), 1);
    CHECK(received(recv(fd, buffer, 5, MSG_WAITALL), "after"));
}

/* Nobody takes it: reading past the mark forgets it. */
static void never_taken(struct pair *p)
{
    int fd = p->self.fd;
    peer_sends(p, "before", 0);
    peer_sends(p, "!", MSG_OOB);
    peer_sends(p, "after", 0);
    await_urgent(fd);
    CHECK(received(recv(fd, buffer, 100, 0), "before"));
    CHECK_EQ(at_mark(fd), 1);
    CHECK(received(recv(fd, buffer, 5, MSG_WAITALL), "after"));
    CHECK_EQ(poll_once(fd, POLLPRI, 0), 0);
    CHECK_ERRNO(recv(fd, buffer, 1, MSG_OOB), EINVAL);
}

/* With SO_OOBINLINE it is a byte of the stream like any other, except that
 * reading still stops before it. */
static void inline_in_the_stream(struct pair *p)
{
    int fd = p->self.fd;
    CHECK_EQ(set_int(fd, SOL_SOCKET, SO_OOBINLINE, 1), 0);
    peer_sends(p, "before", 0);
    peer_sends(p, "!", MSG_OOB);
    peer_sends(p, "after", 0);
    await_urgent(fd);
    CHECK_ERRNO(recv(fd, buffer, 1, MSG_OOB), EINVAL);
    CHECK_EQ(at_mark(fd), 0);
    CHECK(received(recv(fd, buffer, 100, 0), "before"));
    CHECK_EQ(at_mark(fd), 1);
    CHECK_EQ(poll_once(fd, POLLPRI, 0), POLLPRI);
    CHECK(received(recv(fd, buffer, 6, MSG_WAITALL), "!after"));
    CHECK_EQ(at_mark(fd), 0);
    CHECK_EQ(poll_once(fd, POLLPRI, 0), 0);
}

/* FIONREAD counts up to the mark, when it lies ahead. */
static void queue_length(struct pair *p)
{
    int fd = p->self.fd, queued = -1;
    peer_sends(p, "before", 0);
    peer_sends(p, "!", MSG_OOB);
    await_urgent(fd);
    CHECK_EQ(ioctl(fd, FIONREAD, &queued), 0);
    CHECK_EQ(queued, 6);
    CHECK(received(recv(fd, buffer, 100, 0), "before"));
    CHECK_EQ(ioctl(fd, FIONREAD, &queued), 0);
    CHECK_EQ(queued, 0);
}

/* MSG_PEEK sees the byte and leaves it. */
static void peek(struct pair *p)
{
    int fd = p->self.fd;
    peer_sends(p, "!", MSG_OOB);
    await_urgent(fd);
    CHECK(received(recv(fd, buffer, 10, MSG_OOB | MSG_PEEK), "!"));
    CHECK(received(recv(fd, buffer, 10, MSG_OOB | MSG_PEEK), "!"));
    struct iovec vector = {buffer, 10};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    CHECK_EQ(recvmsg(fd, &message, MSG_OOB), 1);
    CHECK_EQ(message.msg_flags, MSG_OOB);
    CHECK_ERRNO(recv(fd, buffer, 10, MSG_OOB), EINVAL);
}

/* There is one urgent byte: a second one before the first is taken replaces it, and
 * the first becomes part of the stream. */
static void second_replaces_first(struct pair *p)
{
    int fd = p->self.fd;
    peer_sends(p, "a", 0);
    peer_sends(p, "1", MSG_OOB);
    await_urgent(fd);
    peer_sends(p, "b", 0);
    peer_sends(p, "2", MSG_OOB);
    /* Until the second has arrived the first may still be seen. */
    uint64_t deadline = now_ms() + HANG_MS;
    do
        CHECK_EQ(recv(fd, buffer, 1, MSG_OOB | MSG_PEEK), 1);
    while (buffer[0] == '1' && now_ms() < deadline);
    CHECK_EQ(buffer[0], '2');
    char all[10];
    int len = 0;
    ssize_t n;
    while (len < 3 && (n = recv(fd, all + len, sizeof all - len, MSG_DONTWAIT)) > 0)
        len += (int)n;
    CHECK_EQ(len, 3);
    CHECK_EQ(memcmp(all, "a1b", 3), 0);
    CHECK_EQ(at_mark(fd), 1);
    CHECK(received(recv(fd, buffer, 1, MSG_OOB), "2"));
}

static void none_there(struct pair *p)
{
    CHECK_ERRNO(recv(p->self.fd, buffer, 1, MSG_OOB), EINVAL);
    CHECK_EQ(at_mark(p->self.fd), 0);
    peer_sends(p, "x", 0);
    CHECK_EQ(recv(p->self.fd, buffer, 10, 0), 1);
    CHECK_ERRNO(recv(p->self.fd, buffer, 1, MSG_OOB), EINVAL);
    CHECK_EQ(at_mark(p->self.fd), 0);
}

/* One byte, which must be this one. */
static long do_recv_text(struct end *end, long want, long flags)
{
    char byte = 0;
    long n = recv(end->fd, &byte, 1, (int)flags);
    CHECK_EQ(byte, want);
    return n;
}

/* Urgent bytes between ordinary ones do not disturb the stream. */
static void many_in_a_stream(struct pair *p)
{
    int fd = p->self.fd;
    for (int i = 0; i < 12; i++) {
        char text[2] = {(char)('a' + i % 26), 0}, urgent[2] = {(char)('A' + i % 26), 0};
        CHECK_EQ(send(fd, text, 1, 0), 1);
        CHECK_EQ(send(fd, urgent, 1, MSG_OOB), 1);
        CHECK_EQ(peer_do(p, do_poll, POLLPRI, HANG_MS), POLLPRI);
        CHECK_EQ(peer_do(p, do_recv_text, (long)urgent[0], MSG_OOB), 1);
        CHECK_EQ(peer_do(p, do_recv_text, (long)text[0], 0), 1);
    }
}

/* ---- signals, poll --------------------------------------------------------------- */

static volatile sig_atomic_t urgent_signals;

static void on_sigurg(int signal)
{
    (void)signal;
    urgent_signals++;
}

static void signal_to_the_owner(struct pair *p)
{
    int fd = p->self.fd;
    struct sigaction action = {.sa_handler = on_sigurg, .sa_flags = SA_RESTART}, old;
    sigaction(SIGURG, &action, &old);
    urgent_signals = 0;
    CHECK_EQ(fcntl(fd, F_SETOWN, getpid()), 0);
    CHECK_EQ(fcntl(fd, F_GETOWN), getpid());
    peer_sends(p, "normal", 0);
    CHECK_EQ(recv(fd, buffer, 6, MSG_WAITALL), 6);
    CHECK_EQ(urgent_signals, 0);
    for (int i = 1; i <= 3; i++) {
        peer_sends(p, "!", MSG_OOB);
        await_urgent(fd);
        uint64_t deadline = now_ms() + HANG_MS;
        while (urgent_signals < i && now_ms() < deadline)
            sleep_ms(1);
        CHECK_EQ(urgent_signals, i);
        CHECK(received(recv(fd, buffer, 1, MSG_OOB), "!"));
    }
    sigaction(SIGURG, &old, NULL);
}

/* No owner, no signal. */
static void no_signal_without_owner(struct pair *p)
{
    struct sigaction action = {.sa_handler = on_sigurg, .sa_flags = SA_RESTART}, old;
    sigaction(SIGURG, &action, &old);
    urgent_signals = 0;
    peer_sends(p, "!", MSG_OOB);
    await_urgent(p->self.fd);
    CHECK_EQ(urgent_signals, 0);
    sigaction(SIGURG, &old, NULL);
}

static void poll_wakes(struct pair *p)
{
    peer_start(p, 20, do_send_text, (long)"!", MSG_OOB);
    CHECK_EQ(poll_once(p->self.fd, POLLPRI, HANG_MS), POLLPRI);
    CHECK_EQ(peer_finish(p), 1);
    CHECK(received(recv(p->self.fd, buffer, 1, MSG_OOB), "!"));
    CHECK_EQ(poll_once(p->self.fd, POLLPRI, 0), 0);
}

static void select_and_epoll_see_it(struct pair *p)
{
    int fd = p->self.fd, set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLPRI};
    CHECK_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    peer_sends(p, "!", MSG_OOB);
    CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
    CHECK_EQ(event.events, EPOLLPRI);
    fd_set exceptions;
    FD_ZERO(&exceptions);
    FD_SET(fd, &exceptions);
    struct timeval patience = {HANG_MS / 1000, 0};
    CHECK_EQ(select(fd + 1, NULL, NULL, &exceptions, &patience), 1);
    CHECK(FD_ISSET(fd, &exceptions));
    recv(fd, buffer, 1, MSG_OOB);
    CHECK_EQ(epoll_wait(set, &event, 1, 0), 0);
    close(set);
}

/* A byte that travels alone wakes nobody who only waits for ordinary data; the
 * mask shows IN when something is readable. */
static void masks(struct pair *p)
{
    int fd = p->self.fd;
    peer_sends(p, "x", 0);
    peer_sends(p, "!", MSG_OOB);
    await_urgent(fd);
    CHECK_MASK(fd, URGENT);
    CHECK_EQ(recv(fd, buffer, 1, 0), 1);
    CHECK(received(recv(fd, buffer, 1, MSG_OOB), "!"));
    CHECK_MASK(fd, POLLOUT);
}

/* A peek looks past the byte at the mark, too: behind it stands the end. */
static void peek_at_the_end(struct pair *p)
{
    int fd = p->self.fd;
    peer_sends(p, "!", MSG_OOB);
    await_urgent(fd);
    CHECK_ERRNO(recv(fd, buffer, 10, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(poll_once(fd, POLLRDHUP, HANG_MS), POLLRDHUP);
    CHECK_EQ(recv(fd, buffer, 10, MSG_PEEK | MSG_DONTWAIT), 0);
    CHECK_EQ(recv(fd, buffer, 10, MSG_PEEK), 0);
    CHECK(received(recv(fd, buffer, 10, MSG_OOB), "!")); /* it is still there */
    CHECK_EQ(recv(fd, buffer, 10, MSG_PEEK), 0);
    CHECK_EQ(recv(fd, buffer, 10, 0), 0);
}

/* A peek that waits behind the mark is woken by the end, and by bytes. */
static void peek_waits_behind_the_mark(struct pair *p)
{
    int fd = p->self.fd;
    peer_sends(p, "!", MSG_OOB);
    await_urgent(fd);
    peer_start(p, 20, do_send_text, (long)"after", 0);
    CHECK(received(recv(fd, buffer, 10, MSG_PEEK), "after"));
    CHECK_EQ(peer_finish(p), 5);
    CHECK(received(recv(fd, buffer, 10, 0), "after"));
    peer_sends(p, "!", MSG_OOB);
    await_urgent(fd);
    peer_start(p, 20, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(recv(fd, buffer, 10, MSG_PEEK), 0);
    peer_finish(p);
}

static const struct test tests[] = {
    {"alone", alone, FAMILIES},
    {"read_stops_at_the_mark", read_stops_at_the_mark, 0},
    {"last_byte_is_urgent", last_byte_is_urgent, 0},
    {"taken_early", taken_early, 0},
    {"never_taken", never_taken, 0},
    {"inline_in_the_stream", inline_in_the_stream, 0},
    {"queue_length", queue_length, 0},
    {"peek", peek, 0},
    {"peek_at_the_end", peek_at_the_end, 0},
    {"peek_waits_behind_the_mark", peek_waits_behind_the_mark, ACTIVE_PEER | SLOW},
    {"second_replaces_first", second_replaces_first, 0},
    {"none_there", none_there, 0},
    {"many_in_a_stream", many_in_a_stream, 0},
    {"signal_to_the_owner", signal_to_the_owner, 0},
    {"no_signal_without_owner", no_signal_without_owner, 0},
    {"poll_wakes", poll_wakes, ACTIVE_PEER | SLOW},
    {"select_and_epoll_see_it", select_and_epoll_see_it, 0},
    {"masks", masks, 0},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
