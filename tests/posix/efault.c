/*
 * efault.c: bad pointers. What a call may not read or write is EFAULT and no fault, whatever
 * the descriptor is: UDP and UNIX sockets, pipes, epoll sets, and TCP connections on which
 * nothing has moved; with nothing else open, and beside connections that have moved.
 *
 * Not here: what libc itself reads before it calls the kernel (the time-outs of `select`,
 * `pselect` and `ppoll`), and calls on a connection that has moved (docs/limitations.md).
 */
#include "support.h"

#include <linux/sched.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

/* A page that may not be touched, behind one that may; and one that is only to be read. */
static struct {
    char *last;    /* the last 64 bytes that are there */
    void *nowhere; /* the page behind */
    void *constant;
} memory;

enum { PAGE = 4096, LAST = 64 };

static void map_memory(void)
{
    if (memory.nowhere)
        return;
    char *at = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    memory.constant = at;
    memory.nowhere = at + 2 * PAGE;
    memory.last = at + 2 * PAGE - LAST;
    CHECK_EQ(mprotect(memory.nowhere, PAGE, PROT_NONE), 0);
    CHECK_EQ(mprotect(memory.constant, PAGE, PROT_READ), 0);
}

/* All that is bad: not to be touched, not mapped, and not the program's at all. */
static void *bad_pointer(int number)
{
    switch (number) {
    case 0:
        return memory.nowhere;
    case 1:
        return (void *)16;
    default:
        return (void *)-64;
    }
}

enum { BAD_POINTERS = 3 };

/* The block, with `bad` as each of them. */
#define EACH_BAD(bad)                                                        \
    for (int bad##_ = 0; bad##_ < BAD_POINTERS; bad##_++)                    \
        for (void *bad = bad_pointer(bad##_), *once_ = bad; once_; once_ = NULL)

/* ---- waiting ------------------------------------------------------------------------- */

static void waits(int fd)
{
    EACH_BAD(bad) {
        CHECK_ERRNO(poll(bad, 1, 0), EFAULT);
        CHECK_ERRNO(poll(bad, 3, 0), EFAULT);
        CHECK_ERRNO(ppoll(bad, 1, &(struct timespec){0}, NULL), EFAULT);
        CHECK_ERRNO(select(fd + 1, bad, NULL, NULL, &(struct timeval){0}), EFAULT);
        CHECK_ERRNO(select(fd + 1, NULL, bad, NULL, &(struct timeval){0}), EFAULT);
        CHECK_ERRNO(select(fd + 1, NULL, NULL, bad, &(struct timeval){0}), EFAULT);
        CHECK_ERRNO(pselect(fd + 1, bad, NULL, NULL, &(struct timespec){0}, NULL), EFAULT);
        fd_set none;
        FD_ZERO(&none);
        CHECK_ERRNO(pselect(fd + 1, &none, NULL, NULL, &(struct timespec){0}, bad), EFAULT);
        struct pollfd entry = {.fd = fd, .events = POLLPRI};
        CHECK_ERRNO(ppoll(&entry, 1, &(struct timespec){0}, bad), EFAULT);
        CHECK_ERRNO(syscall(SYS_ppoll, bad, 1, NULL, NULL, 8), EFAULT);
        CHECK_ERRNO(syscall(SYS_ppoll, &entry, 1, bad, NULL, 8), EFAULT);
        CHECK_ERRNO(syscall(SYS_pselect6, fd + 1, bad, NULL, NULL, NULL, NULL), EFAULT);
        CHECK_ERRNO(syscall(SYS_pselect6, fd + 1, &none, NULL, NULL, bad, NULL), EFAULT);
        CHECK_ERRNO(syscall(SYS_pselect6, fd + 1, &none, NULL, NULL, NULL, bad), EFAULT);
#ifdef SYS_poll
        CHECK_ERRNO(syscall(SYS_poll, bad, 1, 0), EFAULT);
        CHECK_ERRNO(syscall(SYS_select, fd + 1, bad, NULL, NULL, NULL), EFAULT);
        CHECK_ERRNO(syscall(SYS_select, fd + 1, &none, NULL, NULL, bad), EFAULT);
#endif
        /* Nothing is read of a set without descriptors. */
        CHECK_EQ(select(0, bad, NULL, NULL, &(struct timeval){0}), 0);
    }
    /* The last entry lies in the page that is not there; all but that can be read. */
    struct pollfd *entries = (struct pollfd *)memory.last;
    int fits = LAST / (int)sizeof *entries;
    for (int i = 0; i < fits; i++)
        entries[i] = (struct pollfd){.fd = fd, .events = POLLPRI};
    CHECK_ERRNO(poll(entries, fits + 1, 0), EFAULT);
    CHECK_EQ(poll(entries, fits, 0), 0);
    CHECK_ERRNO(poll(entries, fits + 1, 0), EFAULT);
    /* To be read, but not to be written. */
    CHECK_ERRNO(poll(memory.constant, 1, 0), EFAULT);
    CHECK_ERRNO(select(64, memory.constant, NULL, NULL, &(struct timeval){0}), EFAULT);
}

static void epoll_sets(int fd)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    EACH_BAD(bad) {
        CHECK_ERRNO(epoll_ctl(set, EPOLL_CTL_ADD, fd, bad), EFAULT);
        CHECK_ERRNO(epoll_ctl(set, EPOLL_CTL_MOD, fd, bad), EFAULT);
        CHECK_EQ(epoll_add(set, fd, EPOLLOUT | EPOLLIN, WORD), 0);
        CHECK_ERRNO(epoll_ctl(set, EPOLL_CTL_MOD, fd, bad), EFAULT);
        struct epoll_event event;
        CHECK_ERRNO(epoll_pwait2(set, &event, 1, bad, NULL), EFAULT);
        CHECK_ERRNO(epoll_pwait(set, &event, 1, 0, bad), EFAULT);
        /* Nothing is read for a DEL. */
        CHECK_EQ(epoll_ctl(set, EPOLL_CTL_DEL, fd, bad), 0);
    }
    CHECK_EQ(epoll_add(set, fd, EPOLLOUT | EPOLLIN, WORD), 0);
    if (one_event(set, WORD, 0)) {
        EACH_BAD(bad) {
            CHECK_ERRNO(epoll_wait(set, bad, 1, 0), EFAULT);
            CHECK_ERRNO(epoll_pwait(set, bad, 1, 0, NULL), EFAULT);
        }
    }
    close(set);
}

/* ---- bytes ----------------------------------------------------------------------------- */

/* A read that fails may have taken a message. */
static int fed(int in, int out)
{
    CHECK_EQ(write(out, "x", 1), 1);
    CHECK_EQ(poll_once(in, POLLIN, 2000), POLLIN);
    return in;
}

static void empty(int in)
{
    char bytes[256];
    set_nonblock(in, true);
    while (read(in, bytes, sizeof bytes) > 0)
        ;
    set_nonblock(in, false);
}

/* What is sent at `out` comes at `in`. */
static void vectors(int in, int out)
{
    EACH_BAD(bad) {
        struct iovec part = {bad, 1};
        CHECK_ERRNO(readv(fed(in, out), bad, 1), EFAULT);
        CHECK_ERRNO(readv(fed(in, out), &part, 1), EFAULT);
        CHECK_ERRNO(preadv2(fed(in, out), bad, 1, -1, 0), EFAULT);
        CHECK_ERRNO(writev(out, bad, 1), EFAULT);
        CHECK_ERRNO(writev(out, &part, 1), EFAULT);
        CHECK_ERRNO(pwritev2(out, bad, 1, -1, 0), EFAULT);
        CHECK_ERRNO(read(fed(in, out), bad, 1), EFAULT);
        CHECK_ERRNO(write(out, bad, 1), EFAULT);
        empty(in);
    }
}

static void messages(int in, int out)
{
    EACH_BAD(bad) {
        struct iovec good = {memory.last, 1}, part = {bad, 1};
        struct msghdr to_nowhere = {.msg_iov = &part, .msg_iovlen = 1};
        struct msghdr of_nothing = {.msg_iov = bad, .msg_iovlen = 1};
        struct msghdr beside = {
            .msg_iov = &good, .msg_iovlen = 1, .msg_control = bad, .msg_controllen = 24,
        };
        CHECK_ERRNO(sendmsg(out, bad, 0), EFAULT);
        CHECK_ERRNO(sendmsg(out, &to_nowhere, 0), EFAULT);
        CHECK_ERRNO(sendmsg(out, &of_nothing, 0), EFAULT);
        CHECK_ERRNO(sendmsg(out, &beside, 0), EFAULT);
        CHECK_ERRNO(sendmmsg(out, bad, 1, 0), EFAULT);
        CHECK_ERRNO(send(out, bad, 1, 0), EFAULT);
        CHECK_ERRNO(sendto(out, bad, 1, 0, NULL, 0), EFAULT);
        CHECK_ERRNO(recvmsg(fed(in, out), bad, 0), EFAULT);
        CHECK_ERRNO(recvmsg(fed(in, out), &of_nothing, 0), EFAULT);
        CHECK_ERRNO(recvmsg(fed(in, out), &to_nowhere, 0), EFAULT);
        CHECK_ERRNO(recvmmsg(fed(in, out), bad, 1, 0, NULL), EFAULT);
        CHECK_ERRNO(recv(fed(in, out), bad, 1, 0), EFAULT);
        CHECK_ERRNO(recvfrom(fed(in, out), bad, 1, 0, NULL, NULL), EFAULT);
        struct mmsghdr one = {.msg_hdr = {.msg_iov = &good, .msg_iovlen = 1}};
        CHECK_ERRNO(recvmmsg(fed(in, out), &one, 1, 0, bad), EFAULT);
        empty(in);
    }
}

/* The messages before the one that is not there are sent. */
static void all_but_the_last(int in, int out)
{
    struct mmsghdr *list = (struct mmsghdr *)memory.last;
    static struct iovec part = {"x", 1};
    *list = (struct mmsghdr){.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    CHECK_EQ(sendmmsg(out, list, 2, 0), 1);
    CHECK_EQ(sendmmsg(out, list, 1, 0), 1);
    CHECK_EQ(sendmmsg(out, list, 2, 0), 1);
    char byte;
    for (int i = 0; i < 3; i++)
        CHECK_EQ(recv(in, &byte, 1, 0), 1);
}

static void pipes(void)
{
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(write(ends[1], "x", 1), 1);
    waits(ends[1]);
    epoll_sets(ends[1]);
    vectors(ends[0], ends[1]);
    EACH_BAD(bad) {
        CHECK_ERRNO(pipe(bad), EFAULT);
        CHECK_ERRNO(ioctl(ends[0], FIONREAD, bad), EFAULT);
    }
    close(ends[0]);
    close(ends[1]);
}

static void unix_sockets(int kind)
{
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, kind, 0, ends), 0);
    CHECK_EQ(send(ends[1], "x", 1, 0), 1);
    waits(ends[1]);
    epoll_sets(ends[1]);
    vectors(ends[0], ends[1]);
    messages(ends[0], ends[1]);
    all_but_the_last(ends[0], ends[1]);
    EACH_BAD(bad)
        CHECK_ERRNO(socketpair(AF_UNIX, kind, 0, bad), EFAULT);
    close(ends[0]);
    close(ends[1]);
}

static void datagrams(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof here;
    int in = socket(AF_INET, SOCK_DGRAM, 0), out = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK_EQ(bind(in, (struct sockaddr *)&here, sizeof here), 0);
    CHECK_EQ(getsockname(in, (struct sockaddr *)&here, &len), 0);
    CHECK_EQ(connect(out, (struct sockaddr *)&here, sizeof here), 0);
    waits(out);
    epoll_sets(out);
    vectors(in, out);
    messages(in, out);
    EACH_BAD(bad) {
        CHECK_ERRNO(setsockopt(out, SOL_SOCKET, SO_RCVBUF, bad, sizeof(int)), EFAULT);
        CHECK_ERRNO(getsockopt(out, SOL_SOCKET, SO_RCVBUF, bad, &len), EFAULT);
        CHECK_ERRNO(connect(out, bad, sizeof here), EFAULT);
        CHECK_ERRNO(getsockname(out, bad, &len), EFAULT);
    }
    all_but_the_last(in, out);
    close(in);
    close(out);
}

/* Rights that are to be sent lie in memory, too. */
static void rights(void)
{
    int ends[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    struct iovec part = {"x", 1};
    EACH_BAD(bad) {
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1,
            .msg_control = bad, .msg_controllen = CMSG_SPACE(sizeof(int)),
        };
        CHECK_ERRNO(sendmsg(ends[0], &message, 0), EFAULT);
        struct mmsghdr list = {.msg_hdr = message};
        CHECK_ERRNO(sendmmsg(ends[0], &list, 1, 0), EFAULT);
    }
    close(ends[0]);
    close(ends[1]);
}

static void processes(void)
{
    EACH_BAD(bad) {
        CHECK_ERRNO(syscall(SYS_clone3, bad, CLONE_ARGS_SIZE_VER0), EFAULT);
        char *const none[] = {NULL};
        CHECK_ERRNO(execve(bad, none, none), EFAULT);
    }
}

static void all(void)
{
    map_memory();
    pipes();
    unix_sockets(SOCK_STREAM);
    unix_sockets(SOCK_DGRAM);
    unix_sockets(SOCK_SEQPACKET);
    datagrams();
    rights();
    processes();
}

static void with_nothing_else_open(struct pair *p)
{
    (void)p;
    all();
}

/* Whether it has moved or not, the other descriptors are the kernel's. */
static void beside_a_connection(struct pair *p)
{
    all();
    pair_warm(p);
    all();
    CHECK_EQ(do_send(&p->self, 100, 0), 100);
    CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
}

/* A loop asks about the same good array again and again; a bad one is seen all the same. */
static void between_polls_of_a_connection(struct pair *p)
{
    map_memory();
    struct pollfd good = {.fd = p->self.fd, .events = POLLOUT};
    for (int i = 0; i < 200; i++) {
        CHECK_EQ(poll(&good, 1, 0), 1);
        if (i % 20 == 0)
            CHECK_ERRNO(poll(memory.nowhere, 1, 0), EFAULT);
    }
    fd_set set;
    for (int i = 0; i < 100; i++) {
        FD_ZERO(&set);
        FD_SET(p->self.fd, &set);
        CHECK_EQ(select(p->self.fd + 1, NULL, &set, NULL, &(struct timeval){0}), 1);
        if (i % 20 == 0)
            CHECK_ERRNO(select(p->self.fd + 1, NULL, memory.nowhere, NULL,
                               &(struct timeval){0}), EFAULT);
    }
}

/* TCP that stays TCP, because of an option that only TCP has. */
static void on_tcp(struct pair *p)
{
    (void)p;
    map_memory();
    struct sockaddr_storage address;
    socklen_t len;
    int listener = make_listener(V4, &address, &len);
    int out = socket(AF_INET, SOCK_STREAM, 0);
    EACH_BAD(bad) {
        CHECK_ERRNO(setsockopt(out, SOL_SOCKET, SO_RCVBUF, bad, sizeof(int)), EFAULT);
        CHECK_ERRNO(setsockopt(out, IPPROTO_TCP, TCP_NODELAY, bad, sizeof(int)), EFAULT);
        CHECK_ERRNO(ioctl(out, FIONBIO, bad), EFAULT);
        CHECK_ERRNO(connect(out, bad, len), EFAULT);
    }
    epoll_sets(listener);
    CHECK_EQ(set_int(out, SOL_SOCKET, SO_MAX_PACING_RATE, -1), 0);
    CHECK_EQ(connect(out, (struct sockaddr *)&address, len), 0);
    int in = accept(listener, NULL, NULL);
    waits(out);
    epoll_sets(out);
    vectors(in, out);
    messages(in, out);
    EACH_BAD(bad) {
        CHECK_ERRNO(setsockopt(out, SOL_SOCKET, SO_LINGER, bad, sizeof(struct linger)), EFAULT);
        CHECK_ERRNO(getsockopt(out, SOL_SOCKET, SO_RCVBUF, bad, &len), EFAULT);
        CHECK_ERRNO(ioctl(in, FIONREAD, bad), EFAULT);
        CHECK_ERRNO(getpeername(in, bad, &len), EFAULT);
        int file = open("/proc/self/exe", O_RDONLY);
        CHECK_ERRNO(sendfile(out, file, bad, 1), EFAULT);
        close(file);
    }
    char byte;
    CHECK_EQ(send(out, "y", 1, 0), 1);
    CHECK_EQ(recv(in, &byte, 1, 0), 1);
    CHECK_EQ(byte, 'y');
    CHECK(!is_moved(in));
    close(in);
    close(out);
    close(listener);
}

/* A time that cannot be written back stays as it is. */
static void constant_times(struct pair *p)
{
    static const struct timespec zero = {0, 0}, moment = {0, 1000000};
    struct pollfd entry = {.fd = p->self.fd, .events = POLLPRI};
    CHECK_EQ(syscall(SYS_ppoll, &entry, 1, &zero, NULL, 8), 0);
    CHECK_EQ(syscall(SYS_ppoll, &entry, 1, &moment, NULL, 8), 0);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(p->self.fd, &set);
    CHECK_EQ(syscall(SYS_pselect6, p->self.fd + 1, NULL, NULL, &set, &moment, NULL), 0);
}

static const struct test tests[] = {
    {"with_nothing_else_open", with_nothing_else_open, ALONE},
    {"beside_a_connection", beside_a_connection, 0},
    {"between_polls_of_a_connection", between_polls_of_a_connection, 0},
    {"on_tcp", on_tcp, ALONE},
    {"constant_times", constant_times, 0},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
