/*
 * support.h: what the POSIX programs share.
 *
 * Each program in this directory is an ordinary C program that states what
 * Linux TCP does. It must pass plain, and it must pass unchanged with
 * libsidestep.so preloaded, when the bytes of its connections leave TCP for
 * shared memory after the first few messages.
 *
 * A test is a function that owns one end of a connection, `p->self`. The other
 * end, "the peer", obeys: `peer_do(p, do_send, 100, 0)` makes the peer send a
 * hundred bytes and returns when it has. Written so, one script runs in every
 * setting, because the peer may live
 *
 *   same thread     the script itself works the other descriptor; nothing may
 *                   block on the other side's application;
 *   other thread    of this process;
 *   other process   forked before the connection exists (the usual life).
 *
 * and each of them comes `cold` (the script starts on a fresh connection, so a
 * library that moves the stream does it in the middle of the script) and `warm`
 * (after a few messages each way, so it has moved before), with the script on
 * the connecting and on the accepting end.
 *
 * The amounts a script leaves unread stay below 16 KiB: nobody promised a
 * program more buffer than that without a reader.
 */
#ifndef SIDESTEP_POSIX_SUPPORT_H
#define SIDESTEP_POSIX_SUPPORT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- assertions: they count, report, and let the program go on ------------------- */

/* True if the expression holds. */
#define CHECK(expression) \
    check((expression) ? true : false, errno, __FILE__, __LINE__, #expression)

/* True if `got`, evaluated first and once, equals `want`. */
#define CHECK_EQ(got, want)                                               \
    ({                                                                    \
        long got_ = (long)(got);                                          \
        int errno_ = errno;                                               \
        check_eq(got_, (long)(want), errno_, __FILE__, __LINE__, #got);   \
    })

/* True if the call returns -1 with exactly this errno. */
#define CHECK_ERRNO(call, want)                                           \
    ({                                                                    \
        errno = 0;                                                        \
        long got_ = (long)(call);                                         \
        int errno_ = errno;                                               \
        check_errno(got_, errno_, want, __FILE__, __LINE__, #call);       \
    })

/* True if low <= got <= high. */
#define CHECK_BETWEEN(got, low, high)                                     \
    ({                                                                    \
        long got_ = (long)(got);                                          \
        int errno_ = errno;                                               \
        check_between(got_, (long)(low), (long)(high), errno_, __FILE__,  \
                      __LINE__, #got);                                    \
    })

/* True if poll() with interest IN|PRI|OUT|RDHUP shows exactly this mask, at
 * once or after the moment a segment may need to arrive. */
#define CHECK_MASK(fd, want) \
    check_mask(fd, POLLIN | POLLPRI | POLLOUT | POLLRDHUP, want, __FILE__, __LINE__)

bool check(bool holds, int error, const char *file, int line, const char *text);
bool check_eq(long got, long want, int error, const char *file, int line, const char *text);
bool check_errno(long result, int error, int want, const char *file, int line, const char *text);
bool check_between(long got, long low, long high, int error, const char *file, int line,
                   const char *text);
bool check_mask(int fd, short interest, short want, const char *file, int line);

/* How many have failed so far: for a program that ends without reporting. */
unsigned long failures(void);

/* ---- one end of a connection ----------------------------------------------------- */

/* Payload is a pattern by stream position, so a lost, doubled or misplaced byte
 * is seen at once. Each direction has its own salt. */
struct end {
    int fd;               /* -1 once the script has closed it */
    uint64_t sent;        /* stream position of the next byte to send */
    uint64_t received;    /* and of the next byte to receive */
    unsigned send_salt, receive_salt;
};

void pattern_fill(void *buffer, size_t len, uint64_t position, unsigned salt);
bool pattern_holds(const void *buffer, size_t len, uint64_t position, unsigned salt);

/* The next `len` bytes of our outgoing pattern, counted as sent. The buffer is
 * per thread and at least 64 KiB. */
void *next_bytes(struct end *end, size_t len);
/* True if the buffer holds the next `len` incoming bytes; counts them. */
bool take_bytes(struct end *end, const void *buffer, size_t len);

/* ---- what a peer can be told to do ----------------------------------------------- */

/* Only a hang takes so long, however busy the machine is. No wait for what has to come is
 * shorter: a verdict that rests on being quick is one on the machine. */
enum { HANG_MS = 60000 };

/* Where musl looks at less than Linux and glibc do, or at more. */
#ifdef __GLIBC__
enum { IS_GLIBC = 1 };
#else
enum { IS_GLIBC = 0 };
#endif

/* Runs on the peer's side; the result and errno travel back. */
typedef long peer_action(struct end *peer, long a, long b);

enum { STAGE_SIZE = 1 << 20 }; /* most bytes of a single call */

long do_send(struct end *end, long len, long flags);      /* all of it, checked */
long do_send_once(struct end *end, long len, long flags); /* one send(), raw result */
long do_recv(struct end *end, long len, long flags);      /* exactly len, checked */
long do_recv_once(struct end *end, long len, long flags); /* one recv(), raw result */
long do_recv_eof(struct end *end, long a, long b);        /* recv() gives 0 */
long do_shutdown(struct end *end, long how, long b);
long do_close(struct end *end, long a, long b);
long do_linger(struct end *end, long on, long seconds);
long do_nonblock(struct end *end, long on, long b);
long do_fill(struct end *end, long chunk, long b);  /* send until EAGAIN; bytes */
long do_drain(struct end *end, long most, long b);  /* recv until EAGAIN or EOF; bytes */
long do_poll(struct end *end, long events, long timeout_ms); /* revents */
long do_setsockopt_int(struct end *end, long level_and_name, long value);
long do_getsockopt_int(struct end *end, long level_and_name, long b);
#define OPTION(level, name) ((long)(level) << 16 | (name))
long do_die(struct end *end, long a, long b);       /* SIGKILL, no reply */
long do_exit(struct end *end, long a, long b);      /* _exit without close, no reply */
long do_echo(struct end *end, long len, long rounds);

/* ---- a pair ---------------------------------------------------------------------- */

enum peer_place { SAME_THREAD, OTHER_THREAD, OTHER_PROCESS };

/* Which addresses the two ends use. */
enum family {
    V4,     /* 127.0.0.1 both */
    V6,     /* ::1 both */
    MAPPED, /* an IPv6 socket connects to ::ffff:127.0.0.1, the listener is IPv4 */
    DUAL,   /* an IPv4 socket connects to an IPv6 listener on [::] */
};

struct setting {
    enum peer_place place;
    bool warm;
    bool client; /* the script's end is the one that connected */
    enum family family;
};

struct pair {
    struct end self;
    struct setting setting;
    struct end peer;  /* SAME_THREAD: the other end; else unused */
    int peer_fd;      /* the peer's descriptor where this process has it, or -1 */
    int control;      /* to the peer's thread or process */
    pthread_t thread;
    pid_t process;    /* of the peer in OTHER_PROCESS, else 0 */
};

/* Makes a connected (and, if the setting says so, warm) pair; false on failure. */
bool pair_open(struct pair *pair, struct setting setting);
/* Ends the peer and closes what the script left open. */
void pair_close(struct pair *pair);
/* A few verified one-byte messages each way. */
void pair_warm(struct pair *pair);

/* The peer does it now; returns when it has. errno is the peer's. */
long peer_do(struct pair *pair, peer_action *action, long a, long b);
/* The peer does it while the script goes on; one at a time, collected by peer_finish. Not in
 * SAME_THREAD. With a delay the peer first waits until the script sleeps in its call, and then
 * for so long: the script is woken, however late it came to sleep. */
void peer_start(struct pair *pair, int delay_ms, peer_action *action, long a, long b);
long peer_finish(struct pair *pair);
/* For actions that end the peer's process: nothing comes back. Waits for its death. */
void peer_end(struct pair *pair, peer_action *action);

/* Closes the script's own end. */
int self_close(struct pair *pair);

/* ---- tests ----------------------------------------------------------------------- */

enum {
    ALONE = 1,         /* makes its own sockets: once, with an empty pair */
    ACTIVE_PEER = 2,   /* the peer must act while the script blocks: no SAME_THREAD */
    PROCESS_ONLY = 4,  /* the peer is a process */
    SLOW = 8,          /* sleeps: two settings instead of all */
    FAMILIES = 16,     /* also IPv6 and mixed addresses */
    COUNTS_EDGES = 32, /* counts edge-triggered reports or asks for their order: only on connections
                        * that have moved, because the move repeats one, as EPOLL_CTL_MOD does, and
                        * those that have moved and those that have not are not put in order */
};

struct test {
    const char *name;
    void (*run)(struct pair *pair);
    int traits;
};

#define RUN_TESTS(argc, argv, tests) \
    run_tests(argc, argv, tests, sizeof(tests) / sizeof(tests)[0])
int run_tests(int argc, char **argv, const struct test *tests, size_t count);

/* ---- small things ---------------------------------------------------------------- */

uint64_t now_ms(void);
void sleep_ms(int ms);
/* Waits until FIONREAD reports at least `len`. */
bool await_readable(int fd, int len);
/* Waits until a thread, or the only thread of a process, sleeps in the kernel. False: it has
 * ended instead. */
bool await_asleep(pid_t id);
/* The number of this thread, for await_asleep. */
pid_t thread_id(void);
/* Waits until the child ends; its wait status, or -1. */
int await_child(pid_t child);
/* How many SIGPIPEs this process has received so far. */
int sigpipes(void);
int set_nonblock(int fd, bool on);
int set_int(int fd, int level, int name, int value);
int get_int(int fd, int level, int name);
short poll_once(int fd, short events, int timeout_ms);
/* A system call by an instruction of our own, which no library sees. The result is the
 * kernel's: an error is a negative number. */
long past_libc(long number, long a, long b, long c, long d, long e);
/* Whether a connection's bytes have left TCP, so that what goes past the library goes
 * astray. Plainly never. */
bool is_moved(int fd);
/* Says with `-w` whether it has: for connections that a test makes itself. */
void witness_move(int fd);
/* A listener on a free port; its address and length in *address. */
int make_listener(enum family family, struct sockaddr_storage *address, socklen_t *len);
/* Memory that stays shared across fork, zeroed at the start of each test. */
void *shared_scratch(void); /* 4096 bytes */
/* This thread gets `signal` once, `delay_ms` from now (again each `every_ms`, if not 0). */
void signal_me(int signal, int delay_ms, int every_ms);
void signal_me_stop(void);

/* ---- epoll ----------------------------------------------------------------------- */

int epoll_add(int set, int fd, uint32_t events, uint64_t data);
int epoll_mod(int set, int fd, uint32_t events, uint64_t data);
/* Exactly one event with this data word; its mask. 0: none within the time. */
uint32_t one_event(int set, uint64_t data, int timeout_ms);
#define CHECK_SILENT(set) CHECK_EQ(one_event(set, 0, 0), 0)
/* A data word of which all 64 bits must come back. */
#define WORD 0x123456789abcdef0u
/* Sends from the peer and waits for it to be here, so that what epoll says next is
 * about it. */
void arrive(struct pair *pair, long len);

#endif
