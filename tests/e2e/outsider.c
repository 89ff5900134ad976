/* outsider: an echo server and its client that use their connection in ways which are
 * not those of most programs, or are built so that nothing can be preloaded.
 *
 *   outsider WAY server [ADDRESS:]PORT
 *   outsider WAY client [ADDRESS:]PORT SEED
 *
 *   calls    the functions of libc (for static, musl and 32-bit builds)
 *   number   the same through syscall(2)
 *   ring     io_uring, from the first byte on
 *   mixed    io_uring after some messages by the functions of libc
 *   files    the functions of libc, beside a ring for files
 *   own      system call instructions of its own
 *   half     sends by the functions of libc, receives by instructions of its own
 *
 * The client compares every byte that comes back, says `verified N bytes`, keeps the
 * connection open until its standard input ends, and then expects the server's end. With
 * `mixed` a first connection may fail, but it must say so: then a second one is verified.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifdef WITH_RING
#include <liburing.h>
#endif

/* A prime, so that data which slipped by any power of two never looks right again. */
#define PERIOD 100003
#define MESSAGE_LEN_MAX 50000
#define MESSAGES 200
/* Enough for a connection to move. */
#define MESSAGES_BEFORE 20

static uint8_t pattern[PERIOD + MESSAGE_LEN_MAX], received[MESSAGE_LEN_MAX];

static void die(const char *what)
{
    fprintf(stderr, "outsider: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- the ways ---------------------------------------------------------- */

/* As send() and recv(): a count, or -1 and errno. */
struct way {
    const char *name;
    ssize_t (*send)(int fd, const void *at, size_t len);
    ssize_t (*receive)(int fd, void *at, size_t len);
};

static ssize_t send_by_call(int fd, const void *at, size_t len)
{
    return send(fd, at, len, MSG_NOSIGNAL);
}

static ssize_t receive_by_call(int fd, void *at, size_t len)
{
    return recv(fd, at, len, 0);
}

#ifdef SYS_sendto
static ssize_t send_by_number(int fd, const void *at, size_t len)
{
    return syscall(SYS_sendto, fd, at, len, MSG_NOSIGNAL, NULL, 0);
}

static ssize_t receive_by_number(int fd, void *at, size_t len)
{
    return syscall(SYS_recvfrom, fd, at, len, 0, NULL, NULL);
}
#endif

#ifdef WITH_RING
static struct io_uring ring;

static void make_ring(void)
{
    int error = ring.ring_fd ? 0 : io_uring_queue_init(8, &ring, 0);
    if (error) {
        errno = -error;
        die("io_uring_queue_init");
    }
}

static ssize_t complete(void)
{
    struct io_uring_cqe *done;
    int error = io_uring_submit_and_wait(&ring, 1);
    if (error >= 0)
        error = io_uring_wait_cqe(&ring, &done);
    if (error < 0) {
        errno = -error;
        die("io_uring_submit_and_wait");
    }
    int result = done->res;
    io_uring_cqe_seen(&ring, done);
    if (result < 0)
        errno = -result;
    return result < 0 ? -1 : result;
}

static ssize_t send_by_ring(int fd, const void *at, size_t len)
{
    make_ring();
    io_uring_prep_send(io_uring_get_sqe(&ring), fd, at, len, MSG_NOSIGNAL);
    return complete();
}

static ssize_t receive_by_ring(int fd, void *at, size_t len)
{
    make_ring();
    io_uring_prep_recv(io_uring_get_sqe(&ring), fd, at, len, 0);
    return complete();
}

static void read_a_file(void)
{
    int file = open("/proc/self/exe", O_RDONLY);
    make_ring();
    io_uring_prep_read(io_uring_get_sqe(&ring), file, received, 4, 0);
    if (complete() != 4 || memcmp(received, "\177ELF", 4) != 0)
        die("reading a file through io_uring");
    close(file);
}
#endif

#ifdef WITH_INSTRUCTIONS
/* As libc's syscall(), but inlined: each call has an instruction, and before it the number. */
static inline __attribute__((always_inline)) long instruction(long number, long a, long b, long c,
                                                              long d, long e, long f)
{
    long result;
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    result = x0;
#endif
    if (result < 0)
        errno = (int)-result;
    return result < 0 ? -1 : result;
}

/* The two calls in turn. */
static ssize_t send_by_instruction(int fd, const void *at, size_t len)
{
    static unsigned turn;
    return turn++ % 2 ? instruction(SYS_write, fd, (long)at, (long)len, 0, 0, 0)
                      : instruction(SYS_sendto, fd, (long)at, (long)len, MSG_NOSIGNAL, 0, 0);
}

static ssize_t receive_by_instruction(int fd, void *at, size_t len)
{
    static unsigned turn;
    struct pollfd input = {.fd = fd, .events = POLLIN};
    if (instruction(SYS_ppoll, (long)&input, 1, 0, 0, 0, 0) < 0)
        return -1;
    return turn++ % 2 ? instruction(SYS_read, fd, (long)at, (long)len, 0, 0, 0)
                      : instruction(SYS_recvfrom, fd, (long)at, (long)len, 0, 0, 0);
}
#endif

static const struct way ways[] = {
    {"calls", send_by_call, receive_by_call},
#ifdef SYS_sendto
    {"number", send_by_number, receive_by_number},
#endif
#ifdef WITH_RING
    {"ring", send_by_ring, receive_by_ring},
    {"mixed", send_by_ring, receive_by_ring},
    {"files", send_by_call, receive_by_call},
#endif
#ifdef WITH_INSTRUCTIONS
    {"own", send_by_instruction, receive_by_instruction},
    {"half", send_by_call, receive_by_instruction},
#endif
};

static const struct way *way;

static void choose_way(const char *name)
{
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
        if (strcmp(ways[i].name, name) == 0)
            way = &ways[i];
    if (!way) {
        errno = EINVAL;
        die(name);
    }
#ifdef WITH_RING
    if (strcmp(name, "files") == 0)
        read_a_file();
#endif
}

static int is_mixed(void)
{
    return strcmp(way->name, "mixed") == 0;
}

/* ---- the roles --------------------------------------------------------- */

/* Of `PORT`, which is one of loopback, or `ADDRESS:PORT`. */
static struct sockaddr_in address_of(const char *place)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    const char *colon = strchr(place, ':');
    char ip[INET_ADDRSTRLEN] = "";
    if (colon) {
        snprintf(ip, sizeof ip, "%.*s", (int)(colon - place), place);
        if (inet_pton(AF_INET, ip, &address.sin_addr) != 1)
            die(place);
    }
    address.sin_port = htons((uint16_t)atoi(colon ? colon + 1 : place));
    return address;
}

static void serve(const char *port)
{
    struct sockaddr_in address = address_of(port);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8))
        die("listen");
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            die("accept");
        ssize_t n;
        while ((n = way->receive(fd, received, sizeof received)) > 0)
            for (ssize_t done = 0; done < n;) {
                ssize_t sent = way->send(fd, received + done, (size_t)(n - done));
                if (sent < 0)
                    die("send");
                done += sent;
            }
        close(fd);
    }
}

/* Sends a message and takes it back; false if a call fails. */
static int echo(const struct way *by, int fd, size_t at, size_t len)
{
    const uint8_t *bytes = pattern + at % PERIOD;
    for (size_t done = 0; done < len;) {
        ssize_t n = by->send(fd, bytes + done, len - done);
        if (n < 0)
            return 0;
        done += (size_t)n;
    }
    for (size_t done = 0; done < len;) {
        ssize_t n = by->receive(fd, received + done, len - done);
        if (n <= 0)
            return 0;
        done += (size_t)n;
    }
    if (memcmp(received, bytes, len) != 0) {
        errno = EBADMSG;
        die("a wrong byte");
    }
    return 1;
}

static int connection(const char *port)
{
    struct sockaddr_in address = address_of(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        die("connect");
    if (is_mixed())
        for (int i = 0; i < MESSAGES_BEFORE; i++)
            if (!echo(&ways[0], fd, 0, 100))
                die("before the ring");
    return fd;
}

static void use(const char *port)
{
    int fd = connection(port);
    if (is_mixed() && !echo(way, fd, 0, 100)) {
        printf("refused: %s\n", strerror(errno));
        close(fd);
        fd = connection(port);
    }
    size_t verified = 0;
    for (int i = 0; i < MESSAGES; i++) {
        size_t len = 1 + (size_t)rand() % MESSAGE_LEN_MAX;
        if (!echo(way, fd, verified, len))
            die("echo");
        verified += len;
    }
    printf("verified %zu bytes\n", verified);
    fflush(stdout);
    while (read(0, received, sizeof received) > 0)
        ;
    shutdown(fd, SHUT_WR);
    if (way->receive(fd, received, 1) != 0)
        die("the end");
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    choose_way(argv[1]);
    if (strcmp(argv[2], "server") == 0)
        serve(argv[3]);
    srand((unsigned)atoi(argv[4]));
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = i < PERIOD ? (uint8_t)rand() : pattern[i - PERIOD];
    use(argv[3]);
}
