/*
 * threads.c: several threads on one socket. On Linux a sleeping call holds the open
 * file, not the number: shutdown() wakes it, close() and dup2() do not.
 */
#include "support.h"

/* Time for what must not happen. */
enum { SETTLE_MS = 20 };

static unsigned char buffer[1000];

struct reader {
    pthread_t thread;
    volatile pid_t id; /* 0: not yet at its call */
    int fd;
    int flags;
    long result;
    int error;
    volatile bool done;
};

static void *read_once(void *argument)
{
    struct reader *reader = argument;
    char bytes[100];
    reader->id = thread_id();
    reader->result = recv(reader->fd, bytes, sizeof bytes, reader->flags);
    reader->error = errno;
    reader->done = true;
    return NULL;
}

/* A thread that sleeps in its call. */
static void start(struct reader *reader, void *(*call)(void *))
{
    CHECK_EQ(pthread_create(&reader->thread, NULL, call, reader), 0);
    while (reader->id == 0)
        sleep_ms(1);
    await_asleep(reader->id);
    CHECK(!reader->done);
}

/* A thread asleep in recv(). */
static void start_reader(struct reader *reader, int fd, int flags)
{
    *reader = (struct reader){.fd = fd, .flags = flags};
    start(reader, read_once);
}

static void finish_reader(struct reader *reader, long want)
{
    pthread_join(reader->thread, NULL);
    errno = reader->error;
    CHECK_EQ(reader->result, want);
}

/* ---- shutdown by another thread -------------------------------------------------- */

static void shutdown_wakes_reader(struct pair *p)
{
    static const int hows[] = {SHUT_RD, SHUT_RDWR};
    struct reader reader;
    start_reader(&reader, p->self.fd, 0);
    CHECK_EQ(shutdown(p->self.fd, hows[p->setting.warm]), 0);
    finish_reader(&reader, 0);
}

static void shutdown_wakes_all_readers(struct pair *p)
{
    struct reader readers[3];
    for (int i = 0; i < 3; i++)
        start_reader(&readers[i], p->self.fd, i == 1 ? MSG_PEEK : 0);
    CHECK_EQ(shutdown(p->self.fd, SHUT_RD), 0);
    for (int i = 0; i < 3; i++)
        finish_reader(&readers[i], 0);
}

/* Ending our sending does not concern our readers. */
static void shutdown_wr_leaves_reader(struct pair *p)
{
    struct reader reader;
    start_reader(&reader, p->self.fd, 0);
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    sleep_ms(SETTLE_MS);
    CHECK(!reader.done);
    peer_do(p, do_send, 5, 0);
    finish_reader(&reader, 5);
}

static void *send_all(void *argument)
{
    struct reader *writer = argument;
    static char bytes[32 << 20];
    writer->id = thread_id();
    writer->result = send(writer->fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    writer->error = errno;
    writer->done = true;
    return NULL;
}

/* A writer asleep on a full buffer is woken too: it says how much went out, and the
 * next write fails. */
static void shutdown_wakes_writer(struct pair *p)
{
    struct reader writer = {.fd = p->self.fd};
    start(&writer, send_all);
    CHECK_EQ(shutdown(p->self.fd, SHUT_RDWR), 0);
    pthread_join(writer.thread, NULL);
    CHECK_BETWEEN(writer.result, 1, (32 << 20) - 1);
    CHECK_ERRNO(send(p->self.fd, "x", 1, MSG_NOSIGNAL), EPIPE);
}

static void *poll_for_input(void *argument)
{
    struct reader *reader = argument;
    reader->id = thread_id();
    reader->result = poll_once(reader->fd, POLLIN | POLLRDHUP, HANG_MS);
    reader->done = true;
    return NULL;
}

static void shutdown_wakes_poll(struct pair *p)
{
    struct reader reader = {.fd = p->self.fd};
    start(&reader, poll_for_input);
    CHECK_EQ(shutdown(p->self.fd, SHUT_RD), 0);
    finish_reader(&reader, POLLIN | POLLRDHUP);
}

static void *wait_for_input(void *argument)
{
    struct reader *reader = argument;
    struct epoll_event event;
    reader->id = thread_id();
    reader->result = epoll_wait(reader->fd, &event, 1, HANG_MS) == 1 ? (long)event.events : -1;
    reader->done = true;
    return NULL;
}

static void *wait_for_ever(void *argument)
{
    struct reader *reader = argument;
    struct epoll_event event;
    reader->id = thread_id();
    reader->result = epoll_wait(reader->fd, &event, 1, -1);
    reader->done = true;
    return NULL;
}

static void shutdown_wakes_epoll(struct pair *p)
{
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
    epoll_ctl(set, EPOLL_CTL_ADD, p->self.fd, &event);
    struct reader reader = {.fd = set};
    start(&reader, wait_for_input);
    CHECK_EQ(shutdown(p->self.fd, SHUT_RD), 0);
    finish_reader(&reader, EPOLLIN | EPOLLRDHUP);
    close(set);
}

/* ---- close by another thread ----------------------------------------------------- */

/* The sleeper stays asleep, and still gets what comes next; the peer sees the end
 * only after that. */
static void close_leaves_reader(struct pair *p)
{
    struct reader reader;
    start_reader(&reader, p->self.fd, 0);
    CHECK_EQ(self_close(p), 0);
    sleep_ms(SETTLE_MS);
    CHECK(!reader.done);
    CHECK_EQ(peer_do(p, do_send, 5, 0), 5);
    finish_reader(&reader, 5);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* dup2() over the number is the same, and new calls find the new file (this is how
 * Java closes a socket under its readers). */
static void dup2_leaves_reader(struct pair *p)
{
    int ends[2], fd = p->self.fd;
    CHECK_EQ(pipe(ends), 0);
    struct reader reader;
    start_reader(&reader, fd, 0);
    CHECK_EQ(dup2(ends[0], fd), fd);
    sleep_ms(SETTLE_MS);
    CHECK(!reader.done);
    CHECK_EQ(write(ends[1], "pipe", 4), 4);
    CHECK_EQ(read(fd, buffer, 10), 4);
    CHECK_ERRNO(recv(fd, buffer, 10, 0), ENOTSOCK);
    CHECK_EQ(peer_do(p, do_send, 5, 0), 5);
    finish_reader(&reader, 5);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    close(ends[0]), close(ends[1]);
}

/* Another connection takes the number: the sleeper keeps the old one. */
static void dup2_of_another_connection(struct pair *p)
{
    int fd = p->self.fd;
    struct pair other;
    pair_open(&other, (struct setting){.place = SAME_THREAD, .warm = p->setting.warm});
    struct reader reader;
    start_reader(&reader, fd, 0);
    CHECK_EQ(dup2(other.self.fd, fd), fd);
    close(other.self.fd);
    other.self.fd = fd;
    p->self.fd = -1;
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(peer_do(&other, do_send, 7, 0), 7);
        CHECK_EQ(do_recv(&other.self, 7, 0), 7);
        CHECK_EQ(do_send(&other.self, 7, 0), 7);
        CHECK_EQ(peer_do(&other, do_recv, 7, 0), 7);
    }
    CHECK(!reader.done);
    CHECK_EQ(peer_do(p, do_send, 5, 0), 5);
    finish_reader(&reader, 5);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    pair_close(&other);
}

/* The peer ends while the sleeper's number is gone. */
static void close_then_peer_ends(struct pair *p)
{
    struct reader reader;
    start_reader(&reader, p->self.fd, 0);
    self_close(p);
    CHECK_EQ(peer_do(p, do_close, 0, 0), 0);
    finish_reader(&reader, 0);
}

/* ---- cancellation ---------------------------------------------------------------- */

/* recv() is a cancellation point; the cancelled sleeper takes nothing with it. */
static void cancelled_reader(struct pair *p)
{
    for (int flags = 0; flags <= MSG_PEEK; flags += MSG_PEEK) {
        struct reader reader;
        start_reader(&reader, p->self.fd, flags);
        CHECK_EQ(pthread_cancel(reader.thread), 0);
        void *result;
        pthread_join(reader.thread, &result);
        CHECK(result == PTHREAD_CANCELED);
        CHECK(!reader.done);
        peer_do(p, do_send, 10, 0);
        CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    }
}

static void cancelled_poll(struct pair *p)
{
    struct reader reader = {.fd = p->self.fd};
    start(&reader, poll_for_input);
    CHECK_EQ(pthread_cancel(reader.thread), 0);
    void *result;
    pthread_join(reader.thread, &result);
    CHECK(result == PTHREAD_CANCELED);
    peer_do(p, do_send, 10, 0);
    CHECK_EQ(poll_once(p->self.fd, POLLIN, HANG_MS), POLLIN);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
}

/* The set tells the others all that it has: once per message, as edges are. */
static void cancelled_epoll(struct pair *p)
{
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    epoll_ctl(set, EPOLL_CTL_ADD, p->self.fd, &event);
    for (int round = 0; round < 2; round++) {
        struct reader reader = {.fd = set};
        start(&reader, round == 0 ? wait_for_ever : wait_for_input);
        CHECK_EQ(pthread_cancel(reader.thread), 0);
        void *result;
        pthread_join(reader.thread, &result);
        CHECK(result == PTHREAD_CANCELED);
        CHECK(!reader.done);
        peer_do(p, do_send, 10, 0);
        CHECK_EQ(epoll_wait(set, &event, 1, HANG_MS), 1);
        CHECK_EQ(epoll_wait(set, &event, 1, 0), 0);
        CHECK_EQ(do_recv(&p->self, 10, 0), 10);
    }
    close(set);
}

/* ---- several at once ------------------------------------------------------------- */

/* One sleeper, one message: exactly one of two readers gets it. */
static void one_message_one_reader(struct pair *p)
{
    struct reader readers[2];
    for (int i = 0; i < 2; i++)
        start_reader(&readers[i], p->self.fd, 0);
    peer_do(p, do_send, 1, 0);
    uint64_t deadline = now_ms() + HANG_MS;
    while (readers[0].done + readers[1].done == 0 && now_ms() < deadline)
        sleep_ms(1);
    sleep_ms(SETTLE_MS); /* for a second one, which must not come */
    CHECK_EQ(readers[0].done + readers[1].done, 1);
    peer_do(p, do_send, 1, 0);
    finish_reader(&readers[0], 1);
    finish_reader(&readers[1], 1);
}

enum { SHARE = 1 << 20 };
static long counts[256];

static void *count_bytes(void *argument)
{
    int fd = *(int *)argument;
    unsigned char bytes[5000];
    long n, mine[256] = {0};
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        for (long i = 0; i < n; i++)
            mine[bytes[i]]++;
    CHECK_EQ(n, 0);
    for (int i = 0; i < 256; i++)
        __atomic_add_fetch(&counts[i], mine[i], __ATOMIC_RELAXED);
    return NULL;
}

struct writer {
    int fd;
    unsigned char value;
};

static void *write_bytes(void *argument)
{
    struct writer *writer = argument;
    unsigned char bytes[1537];
    memset(bytes, writer->value, sizeof bytes);
    for (long left = SHARE; left > 0;) {
        size_t len = left < (long)sizeof bytes ? (size_t)left : sizeof bytes;
        if (!CHECK_EQ(send(writer->fd, bytes, len, 0), len))
            break;
        left -= (long)len;
    }
    return NULL;
}

/* Two writers on one end: SHARE bytes of each value. */
static long do_two_writers(struct end *end, long a, long b)
{
    (void)a, (void)b;
    pthread_t threads[2];
    struct writer writers[2] = {{end->fd, 1}, {end->fd, 2}};
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, write_bytes, &writers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return shutdown(end->fd, SHUT_WR);
}

/* Two writers there, two readers here: every byte arrives once. */
static void two_writers_two_readers(struct pair *p)
{
    pthread_t threads[2];
    memset(counts, 0, sizeof counts);
    peer_start(p, 0, do_two_writers, 0, 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, count_bytes, &p->self.fd), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(peer_finish(p), 0);
    /* Warm-up bytes were all read before, so nothing else may appear. */
    CHECK_EQ(counts[1], SHARE);
    CHECK_EQ(counts[2], SHARE);
    long other = 0;
    for (int i = 0; i < 256; i++)
        other += i == 1 || i == 2 ? 0 : counts[i];
    CHECK_EQ(other, 0);
}

enum { LONG_MESSAGE = 40000, SHORT_MESSAGE = 20000, MESSAGES = LONG_MESSAGE + SHORT_MESSAGE };
static pthread_barrier_t ready_to_send;

static void *write_message(void *argument)
{
    struct writer *writer = argument;
    size_t len = writer->value == 1 ? LONG_MESSAGE : SHORT_MESSAGE;
    unsigned char bytes[LONG_MESSAGE];
    memset(bytes, writer->value, len);
    pthread_barrier_wait(&ready_to_send);
    CHECK_EQ(send(writer->fd, bytes, len, 0), len);
    return NULL;
}

/* Two threads send a message each, at once. */
static long do_two_messages(struct end *end, long a, long b)
{
    (void)a, (void)b;
    pthread_t threads[2];
    struct writer writers[2] = {{end->fd, 1}, {end->fd, 2}};
    pthread_barrier_init(&ready_to_send, NULL, 2);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, write_message, &writers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return pthread_barrier_destroy(&ready_to_send);
}

/* A send() that need not wait for room comes in one piece, however long it is: Linux
 * gives the lock of the socket back only to wait. */
static void messages_in_one_piece(struct pair *p)
{
    static unsigned char bytes[MESSAGES];
    for (int round = 0; round < 100; round++) {
        peer_start(p, 0, do_two_messages, 0, 0);
        long seams = 0, n = 0;
        while (n < MESSAGES) {
            long more = recv(p->self.fd, bytes + n, MESSAGES - n, 0);
            if (!CHECK_BETWEEN(more, 1, MESSAGES - n))
                break;
            n += more;
        }
        CHECK_EQ(peer_finish(p), 0);
        for (int i = 1; i < MESSAGES; i++)
            seams += bytes[i] != bytes[i - 1];
        if (!CHECK_EQ(seams, 1))
            break;
    }
}

static void *read_exactly(void *argument)
{
    CHECK_EQ(do_recv(argument, SHARE, 0), SHARE);
    return NULL;
}

/* A reader and a writer on the same socket do not get into each other's way. */
static void reader_beside_writer(struct pair *p)
{
    struct end out = p->self;
    pthread_t reader;
    CHECK_EQ(pthread_create(&reader, NULL, read_exactly, &p->self), 0);
    sleep_ms(5); /* asleep before we fill our side */
    peer_start(p, 0, do_recv, SHARE, 0);
    CHECK_EQ(do_send(&out, SHARE, 0), SHARE);
    CHECK_EQ(peer_finish(p), SHARE);
    CHECK_EQ(peer_do(p, do_send, SHARE, 0), SHARE);
    pthread_join(reader, NULL);
}

/* Connections come and go in many threads at once. */
static struct sockaddr_storage service;
static socklen_t service_len;

static void *service_thread(void *argument)
{
    int listener = *(int *)argument;
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            return NULL; /* the listener was shut down */
        char bytes[64];
        long n;
        while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
            CHECK_EQ(send(fd, bytes, n, MSG_NOSIGNAL), n);
        CHECK_EQ(n, 0);
        close(fd);
    }
}

static void *customer_thread(void *argument)
{
    int number = (int)(intptr_t)argument;
    for (int round = 0; round < 30; round++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (!CHECK_EQ(connect(fd, (struct sockaddr *)&service, service_len), 0))
            return NULL;
        for (int i = 0; i < 12; i++) {
            int out[2] = {number, round * 100 + i}, in[2] = {0, 0};
            CHECK_EQ(send(fd, out, sizeof out, 0), sizeof out);
            CHECK_EQ(recv(fd, in, sizeof in, MSG_WAITALL), sizeof in);
            CHECK_EQ(in[0], out[0]);
            CHECK_EQ(in[1], out[1]);
        }
        close(fd);
    }
    return NULL;
}

static void coming_and_going(struct pair *p)
{
    (void)p;
    enum { THREADS = 4 };
    pthread_t servers[THREADS], customers[THREADS];
    int listener = make_listener(V4, &service, &service_len);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&servers[i], NULL, service_thread, &listener);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&customers[i], NULL, customer_thread, (void *)(intptr_t)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(customers[i], NULL);
    /* shutdown() wakes everybody who sleeps in accept(). */
    CHECK_EQ(shutdown(listener, SHUT_RDWR), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(servers[i], NULL);
    close(listener);
}

/* A socket outlives the thread that made it. */
static void *make_pair_thread(void *argument)
{
    pair_open(argument, (struct setting){.place = SAME_THREAD, .warm = true});
    return NULL;
}

static void maker_is_gone(struct pair *p)
{
    (void)p;
    struct pair made;
    pthread_t maker;
    CHECK_EQ(pthread_create(&maker, NULL, make_pair_thread, &made), 0);
    pthread_join(maker, NULL);
    pair_warm(&made);
    pair_close(&made);
}

static const struct test tests[] = {
    {"shutdown_wakes_reader", shutdown_wakes_reader, SLOW},
    {"shutdown_wakes_all_readers", shutdown_wakes_all_readers, SLOW},
    {"shutdown_wr_leaves_reader", shutdown_wr_leaves_reader, SLOW},
    {"shutdown_wakes_writer", shutdown_wakes_writer, SLOW},
    {"shutdown_wakes_poll", shutdown_wakes_poll, SLOW},
    {"shutdown_wakes_epoll", shutdown_wakes_epoll, SLOW},
    {"close_leaves_reader", close_leaves_reader, SLOW},
    {"dup2_leaves_reader", dup2_leaves_reader, SLOW},
    {"dup2_of_another_connection", dup2_of_another_connection, SLOW},
    {"close_then_peer_ends", close_then_peer_ends, SLOW},
    {"cancelled_reader", cancelled_reader, SLOW},
    {"cancelled_poll", cancelled_poll, SLOW},
    {"cancelled_epoll", cancelled_epoll, SLOW},
    {"one_message_one_reader", one_message_one_reader, SLOW},
    {"messages_in_one_piece", messages_in_one_piece, ACTIVE_PEER},
    {"two_writers_two_readers", two_writers_two_readers, ACTIVE_PEER},
    {"reader_beside_writer", reader_beside_writer, ACTIVE_PEER},
    {"coming_and_going", coming_and_going, ALONE},
    {"maker_is_gone", maker_is_gone, ALONE},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
