/*
 * namespaces.c: a connection in several PID namespaces. Process and thread numbers mean
 * something else in each of them; the connection is one, as it is among the processes of one
 * namespace.
 */
#include "support.h"

#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* ---- streams that can be told apart -------------------------------------------- */

/* Each sender has a stream of its own, and each byte says whose it is and which. So a byte
 * that is lost, doubled or overwritten is seen, in whatever order the senders take turns. */
enum { STREAMS = 2, PERIOD = 127 };

static unsigned char byte_of(int stream, uint64_t position)
{
    return (unsigned char)(stream << 7 | position % PERIOD);
}

static void fill_stream(unsigned char *at, size_t len, int stream, uint64_t position)
{
    for (size_t i = 0; i < len; i++)
        at[i] = byte_of(stream, position + i);
}

/* Peer: receives so many bytes of the two streams. With a negative
 * number any of the first may be missing at its end, and the connection ends. */
static long take_streams(struct end *end, long first, long second)
{
    static unsigned char chunk[1 << 16];
    long seen[STREAMS] = {0};
    while (seen[0] < first || seen[1] < second || first < 0) {
        ssize_t n = recv(end->fd, chunk, sizeof chunk, 0);
        if (n == 0 && first < 0)
            break;
        if (!CHECK(n > 0))
            return -1;
        for (ssize_t i = 0; i < n; i++) {
            int stream = chunk[i] >> 7;
            if (chunk[i] != byte_of(stream, seen[stream])) {
                fprintf(stderr, "stream %d, byte %ld: ", stream,
                        seen[stream]);
                CHECK_EQ(chunk[i], byte_of(stream, seen[stream]));
                return -1;
            }
            seen[stream]++;
        }
    }
    if (first >= 0)
        CHECK_EQ(seen[0], first);
    else
        CHECK_BETWEEN(seen[0], 0, -first);
    CHECK_EQ(seen[1], second);
    return 0;
}

/* ---- processes in namespaces of their own --------------------------------------- */

/* A process in a PID namespace of its own does what it is told, a byte at a time. */
struct worker {
    pid_t pid;     /* as we know it */
    pid_t outside; /* its parent, which ends with it */
    int control;   /* to it */
    int stream;    /* the stream that it sends */
};

static bool lacks_namespaces; /* said once */

/* Whether this process may make PID namespaces; says so if not. */
static bool can_unshare(void)
{
    if (lacks_namespaces)
        return false;
    pid_t child = fork();
    if (child == 0)
        _exit(unshare(CLONE_NEWPID) != 0);
    lacks_namespaces = await_child(child) != 0;
    if (lacks_namespaces)
        fprintf(stderr, "skipped: no PID namespace may be made\n");
    return !lacks_namespaces;
}

/* fork() while the limit leaves no room for a descriptor. */
static pid_t fork_without_room(void)
{
    struct rlimit limit, none;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 0;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    pid_t child = fork();
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return child;
}

/* How the next workers are made. */
static pid_t (*make_process)(void) = fork;

/* Starts a worker: `work` is its life, with the descriptor of the connection. */
static struct worker start_worker(int stream, int fd, void (*work)(int control, int stream, int fd))
{
    int ways[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ways), 0);
    struct worker worker = {.control = ways[0], .stream = stream};
    fflush(NULL);
    worker.outside = make_process();
    if (worker.outside == 0) {
        close(ways[0]);
        CHECK_EQ(unshare(CLONE_NEWPID), 0);
        int begun[2];
        CHECK_EQ(pipe2(begun, O_CLOEXEC), 0);
        pid_t inside = make_process();
        if (inside == 0) {
            CHECK_EQ(getpid(), 1);
            /* The worker speaks after its number was told. */
            char nothing;
            close(begun[1]);
            CHECK_EQ(read(begun[0], &nothing, 1), 0);
            close(begun[0]);
            work(ways[1], stream, fd);
            _exit(0);
        }
        /* Only the worker has it now. */
        close(fd);
        CHECK_EQ(write(ways[1], &inside, sizeof inside), sizeof inside);
        close(ways[1]);
        close(begun[1]);
        await_child(inside);
        _exit(0);
    }
    close(ways[1]);
    CHECK_EQ(recv(ways[0], &worker.pid, sizeof worker.pid, MSG_WAITALL), sizeof worker.pid);
    return worker;
}

static void tell(struct worker *worker, char what)
{
    CHECK_EQ(write(worker->control, &what, 1), 1);
}

/* What it says next. */
static char hear(struct worker *worker)
{
    char said = 0;
    CHECK_EQ(read(worker->control, &said, 1), 1);
    return said;
}

/* Whether it says something within the time. */
static bool is_heard(struct worker *worker, int timeout_ms)
{
    return poll_once(worker->control, POLLIN, timeout_ms) != 0;
}

static void end_worker(struct worker *worker)
{
    close(worker->control);
    CHECK_EQ(await_child(worker->outside), 0);
}

/* Sends a stream of so many bytes in messages of many lengths. */
static bool send_stream(int fd, int stream, size_t len)
{
    static unsigned char message[5000];
    unsigned random = 12345 + stream;
    for (size_t done = 0; done < len;) {
        random = random * 1103515245 + 12345;
        size_t n = 1 + random / 65536 % sizeof message;
        n = n < len - done ? n : len - done;
        fill_stream(message, n, stream, done);
        if (!CHECK_EQ(send(fd, message, n, MSG_NOSIGNAL), (long)n))
            return false;
        done += n;
    }
    return true;
}

/* ---- tests ------------------------------------------------------------------------ */

enum { LONG_STREAM = 1 << 20 };

static void send_when_told(int control, int stream, int fd)
{
    char told;
    CHECK_EQ(read(control, &told, 1), 1);
    send_stream(fd, stream, LONG_STREAM);
    CHECK_EQ(write(control, "d", 1), 1);
}

static void let_both_send(struct pair *p, struct worker workers[2])
{
    peer_start(p, 0, take_streams, LONG_STREAM, LONG_STREAM);
    tell(&workers[0], 's');
    tell(&workers[1], 's');
    CHECK_EQ(hear(&workers[0]), 'd');
    CHECK_EQ(hear(&workers[1]), 'd');
    CHECK_EQ(peer_finish(p), 0);
}

/* Two threads with the same number, of which each could be taken for the other. */
static void both_send(struct pair *p)
{
    if (!can_unshare())
        return;
    struct worker workers[2];
    for (int i = 0; i < 2; i++)
        workers[i] = start_worker(i, p->self.fd, send_when_told);
    let_both_send(p, workers);
    end_worker(&workers[0]);
    end_worker(&workers[1]);
    self_close(p);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* The library has nothing of its own to open in them. */
static void both_send_without_room(struct pair *p)
{
    make_process = fork_without_room;
    both_send(p);
    make_process = fork;
}

/* Peer: so many bytes of stream 0, and the end. */
static long send_and_shut(struct end *end, long len, long b)
{
    (void)b;
    CHECK(send_stream(end->fd, 0, len));
    CHECK_EQ(shutdown(end->fd, SHUT_WR), 0);
    return 0;
}

/* How often each byte of the stream was received, by each worker. */
typedef uint32_t tally[PERIOD];

/* Receives up to the end. What one call gives is one piece of the stream. */
static void receive_to_the_end(int control, int stream, int fd)
{
    uint32_t *counts = (uint32_t *)shared_scratch() + stream * PERIOD;
    static unsigned char chunk[3000];
    char told;
    CHECK_EQ(read(control, &told, 1), 1);
    ssize_t n;
    while ((n = recv(fd, chunk, sizeof chunk, 0)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            if (chunk[i] != (chunk[0] + i) % PERIOD && !CHECK_EQ(chunk[i], (chunk[0] + i) % PERIOD))
                break;
            counts[chunk[i] % PERIOD]++;
        }
    }
    CHECK_EQ(n, 0);
    CHECK_EQ(write(control, "d", 1), 1);
}

static void both_receive(struct pair *p)
{
    if (!can_unshare())
        return;
    struct worker workers[2];
    for (int i = 0; i < 2; i++)
        workers[i] = start_worker(i, p->self.fd, receive_to_the_end);
    peer_start(p, 0, send_and_shut, LONG_STREAM, 0);
    tell(&workers[0], 'r');
    tell(&workers[1], 'r');
    CHECK_EQ(hear(&workers[0]), 'd');
    CHECK_EQ(hear(&workers[1]), 'd');
    CHECK_EQ(peer_finish(p), 0);
    tally *counts = shared_scratch();
    for (int byte = 0; byte < PERIOD; byte++) {
        long sent = LONG_STREAM / PERIOD + (byte < LONG_STREAM % PERIOD);
        if (!CHECK_EQ(counts[0][byte] + counts[1][byte], sent))
            break;
    }
    end_worker(&workers[0]);
    end_worker(&workers[1]);
}

/* ---- held up in the middle of a send ------------------------------------------- */

enum { PAGE = 4096, HELD_UP = 2 * PAGE };

struct held_up {
    int fault;            /* userfaultfd */
    unsigned char *bytes; /* two pages, of which the second is not there */
    int fd, stream;
};

/* The first message of a stream, of which the second half cannot be read yet. */
static bool hold_up(struct held_up *up)
{
    up->fault = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (up->fault < 0)
        return false;
    struct uffdio_api api = {.api = UFFD_API};
    up->bytes = mmap(NULL, HELD_UP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register second = {
        .range = {(uintptr_t)up->bytes + PAGE, PAGE},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };
    CHECK_EQ(ioctl(up->fault, UFFDIO_API, &api), 0);
    CHECK_EQ(ioctl(up->fault, UFFDIO_REGISTER, &second), 0);
    fill_stream(up->bytes, PAGE, up->stream, 0);
    return true;
}

static void *send_held_up(void *of)
{
    struct held_up *up = of;
    CHECK_EQ(send(up->fd, up->bytes, HELD_UP, MSG_NOSIGNAL), HELD_UP);
    return NULL;
}

/* Its second thread is held up in the middle of a send: 'h', or 'l' where that cannot be
 * done. When it is told to, it goes on: 'd'. */
static void send_with_a_pause(int control, int stream, int fd)
{
    static unsigned char page[PAGE];
    struct held_up up = {.fd = fd, .stream = stream};
    if (!hold_up(&up)) {
        CHECK_EQ(write(control, "l", 1), 1);
        return;
    }
    pthread_t sender;
    CHECK_EQ(pthread_create(&sender, NULL, send_held_up, &up), 0);
    struct uffd_msg fault;
    CHECK_EQ(read(up.fault, &fault, sizeof fault), sizeof fault);
    CHECK_EQ(write(control, "h", 1), 1);
    char told;
    if (read(control, &told, 1) != 1)
        return;
    fill_stream(page, PAGE, stream, PAGE);
    struct uffdio_copy copy = {
        .dst = (uintptr_t)up.bytes + PAGE,
        .src = (uintptr_t)page,
        .len = PAGE,
    };
    CHECK_EQ(ioctl(up.fault, UFFDIO_COPY, &copy), 0);
    pthread_join(sender, NULL);
    CHECK_EQ(write(control, "d", 1), 1);
}

static void *do_nothing(void *of)
{
    (void)of;
    for (;;)
        pause();
    return NULL;
}

/* Sends one message when it is told to. 't': with a second thread, which only has a number. */
static void send_one(int control, int stream, int fd)
{
    static unsigned char message[HELD_UP];
    char told;
    CHECK_EQ(read(control, &told, 1), 1);
    if (told == 't') {
        pthread_t idle;
        CHECK_EQ(pthread_create(&idle, NULL, do_nothing, NULL), 0);
    }
    fill_stream(message, sizeof message, stream, 0);
    CHECK_EQ(send(fd, message, sizeof message, MSG_NOSIGNAL), (long)sizeof message);
    CHECK_EQ(write(control, "d", 1), 1);
}

/* Starts one who is held up and one who would like to send, too. */
static bool start_held_up(struct pair *p, struct worker workers[2])
{
    if (!can_unshare())
        return false;
    workers[0] = start_worker(0, p->self.fd, send_with_a_pause);
    workers[1] = start_worker(1, p->self.fd, send_one);
    char said = hear(&workers[0]);
    if (said == 'h')
        return true;
    CHECK_EQ(said, 'l');
    fprintf(stderr, "skipped: no userfaultfd\n");
    end_worker(&workers[0]);
    tell(&workers[1], 's');
    end_worker(&workers[1]);
    return false;
}

/* Who is held up lives, though his number is nobody's in the other's namespace: his message is
 * in one piece. The peer looks when all is over, so what was overwritten is seen. */
static void waits_for_the_living(struct pair *p)
{
    struct worker workers[2];
    if (!start_held_up(p, workers))
        return;
    tell(&workers[1], 's');
    /* No verdict: time for the mistake that is to be seen. */
    is_heard(&workers[1], 200);
    tell(&workers[0], 'g');
    CHECK_EQ(hear(&workers[0]), 'd');
    CHECK_EQ(hear(&workers[1]), 'd');
    CHECK_EQ(peer_do(p, take_streams, HELD_UP, HELD_UP), 0);
    end_worker(&workers[0]);
    end_worker(&workers[1]);
}

/* Who is held up is killed, and there is another thread of his number in the namespace of the one
 * who waits: that one goes on. Of the dead there are whole bytes or none. */
static void goes_on_after_the_dead(struct pair *p)
{
    struct worker workers[2];
    if (!start_held_up(p, workers))
        return;
    tell(&workers[1], 't');
    is_heard(&workers[1], 50);
    CHECK_EQ(kill(workers[0].pid, SIGKILL), 0);
    CHECK_EQ(hear(&workers[1]), 'd');
    end_worker(&workers[0]);
    end_worker(&workers[1]);
    CHECK_EQ(shutdown(p->self.fd, SHUT_WR), 0);
    CHECK_EQ(peer_do(p, take_streams, -HELD_UP, HELD_UP), 0);
}

/* ---- given away, and begun in other ways ------------------------------------------ */

static void pass_fd(int over, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {"f", 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK_EQ(sendmsg(over, &message, MSG_NOSIGNAL), 1);
}

static int take_fd(int over)
{
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd = -1;
    CHECK_EQ(recvmsg(over, &message, 0), 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (CHECK(header != NULL))
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

static void take_and_send(int control, int stream, int unused)
{
    (void)unused;
    send_when_told(control, stream, take_fd(control));
}

/* By SCM_RIGHTS, to processes that never had anything of it. */
static void given_to_both(struct pair *unused)
{
    (void)unused;
    if (!can_unshare())
        return;
    for (int i = 0; i < 2; i++) {
        struct setting setting = {.place = OTHER_PROCESS, .warm = true, .client = i};
        struct worker workers[2];
        for (int n = 0; n < 2; n++)
            workers[n] = start_worker(n, -1, take_and_send);
        struct pair p;
        if (CHECK(pair_open(&p, setting))) {
            pass_fd(workers[0].control, p.self.fd);
            pass_fd(workers[1].control, p.self.fd);
            self_close(&p);
            let_both_send(&p, workers);
            pair_close(&p);
        }
        end_worker(&workers[0]);
        end_worker(&workers[1]);
    }
}

/* The children of number 1, in a namespace each, are number 1 as well. What they have inherited
 * is theirs, what they begin is their own, and the parent's stays the parent's. */
static void number_one(int control, int stream, int fd)
{
    struct end end = {.fd = fd, .send_salt = 1, .receive_salt = 1};
    struct pair own;
    struct setting setting = {.place = OTHER_THREAD, .warm = true, .client = true};
    (void)stream;
    int set = epoll_create1(EPOLL_CLOEXEC);
    CHECK(pair_open(&own, setting));
    CHECK_EQ(epoll_add(set, own.self.fd, EPOLLIN, WORD), 0);
    CHECK_EQ(unshare(CLONE_NEWPID), 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK_EQ(getpid(), 1);
        struct pair others;
        CHECK(pair_open(&others, setting));
        CHECK_EQ(epoll_add(set, others.self.fd, EPOLLIN, WORD), 0);
        CHECK_EQ(peer_do(&others, do_send, 100, 0), 100);
        CHECK_EQ(one_event(set, WORD, 2000), EPOLLIN);
        CHECK_EQ(do_recv(&others.self, 100, 0), 100);
        pair_close(&others);
        CHECK_EQ(do_send(&end, 1000, 0), 1000);
        _exit(0);
    }
    CHECK_EQ(await_child(child), 0);
    /* A child that runs in our memory closes what is its own. (The namespace has ended with its
     * number 1, so it takes another one.) */
    int outer = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    CHECK_EQ(setns(outer, CLONE_NEWPID), 0);
    CHECK_EQ(unshare(CLONE_NEWPID), 0);
    close(outer);
    child = vfork();
    if (child == 0) {
        close(own.self.fd);
        _exit(0);
    }
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(peer_do(&own, do_send, 100, 0), 100);
    CHECK_EQ(one_event(set, WORD, 2000), EPOLLIN);
    CHECK_EQ(do_recv(&own.self, 100, 0), 100);
    pair_close(&own);
    close(set);
    end.sent = 1000;
    CHECK_EQ(do_send(&end, 1000, 0), 1000);
    CHECK_EQ(write(control, "d", 1), 1);
}

/* Peer: so many bytes of a pattern from its beginning. */
static long take_pattern(struct end *end, long len, long b)
{
    struct end fresh = {.fd = end->fd, .receive_salt = 1};
    (void)b;
    CHECK_EQ(do_recv(&fresh, len, 0), len);
    return 0;
}

static void all_are_number_one(struct pair *p)
{
    if (!can_unshare())
        return;
    struct worker worker = start_worker(0, p->self.fd, number_one);
    CHECK_EQ(hear(&worker), 'd');
    CHECK_EQ(peer_do(p, take_pattern, 2000, 0), 0);
    end_worker(&worker);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"both_send", both_send, PROCESS_ONLY},
        {"both_send_without_room", both_send_without_room, PROCESS_ONLY | SLOW},
        {"both_receive", both_receive, PROCESS_ONLY},
        {"waits_for_the_living", waits_for_the_living, PROCESS_ONLY | SLOW},
        {"goes_on_after_the_dead", goes_on_after_the_dead, PROCESS_ONLY | SLOW},
        {"given_to_both", given_to_both, ALONE},
        {"all_are_number_one", all_are_number_one, PROCESS_ONLY | SLOW},
    };
    return RUN_TESTS(argc, argv, tests);
}
