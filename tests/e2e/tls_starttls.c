/* A server of one connection with a protocol like SMTP, which begins TLS by STARTTLS.
 *
 * usage: tls_starttls PORT WAY
 *
 * WAY is how it holds the connection: `blocking`; `level` or `edge`, by epoll; `poll`; `dup`, by a second number, on which TLS begins;
 * `late`, when the client's first bytes of TLS are there already; `fork`, by a child, and the parent then tries to send beside it;
 * `exec`, by a program that is given the descriptor; `given`, by a child that is sent it (SCM_RIGHTS); `busy`, with another thread in
 * recv at first.
 *
 * It takes a line byte by byte, so what comes behind STARTTLS stays in the socket. What it prints is what the calls said.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sidestep_tls.h"

static int set = -1, begun[2] = {-1, -1};
static const char *way;

static int is(const char *name)
{
    return strcmp(way, name) == 0;
}

/* As `read` and `write` that wait, whether or not the socket does. */
static ssize_t await(int fd, ssize_t (*call)(int, void *, size_t), void *at, size_t len, uint32_t events)
{
    for (;;) {
        ssize_t n = call(fd, at, len);
        if (n >= 0 || errno != EAGAIN)
            return n;
        if (is("poll")) {
            struct pollfd wanted = {.fd = fd, .events = events == EPOLLIN ? POLLIN : POLLOUT};
            poll(&wanted, 1, -1);
            continue;
        }
        struct epoll_event event = {.events = events | (is("edge") ? EPOLLET : 0), .data.fd = fd};
        epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
        epoll_wait(set, &event, 1, -1);
    }
}

static ssize_t put(int fd, void *at, size_t len)
{
    return write(fd, at, len);
}

static int say(int fd, const char *text)
{
    char line[200];
    int len = snprintf(line, sizeof line, "%s\r\n", text);
    return await(fd, put, line, len, EPOLLOUT) == len ? 0 : -1;
}

/* 0, or -1 at the end or with errno. */
static int take_line(int fd, char *line, size_t room)
{
    for (size_t at = 0; at + 1 < room; at++) {
        errno = 0;
        if (await(fd, read, line + at, 1, EPOLLIN) != 1)
            return -1;
        if (line[at] == '\n') {
            line[at] = 0;
            line[strcspn(line, "\r")] = 0;
            return 0;
        }
    }
    return -1;
}

static int echo(int fd, size_t len)
{
    char *bytes = malloc(len);
    size_t at = 0;
    for (ssize_t n; at < len; at += n)
        if ((n = await(fd, read, bytes + at, len - at, EPOLLIN)) <= 0)
            return -1;
    for (ssize_t n = at = 0; at < len; at += n)
        if ((n = await(fd, put, bytes + at, len - at, EPOLLOUT)) <= 0)
            return -1;
    free(bytes);
    return 0;
}

static _Atomic int receiver;

static void *receive(void *at)
{
    char byte;
    receiver = gettid();
    return (void *)recv(*(int *)at, &byte, 1, MSG_PEEK);
}

/* Whether the other thread waits in the kernel. */
static int is_receiving(void)
{
    char path[64];
    long call = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", receiver);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0;
    int is_one = fscanf(file, "%ld", &call) == 1 && call == SYS_recvfrom;
    fclose(file);
    return is_one;
}

/* Its own and the peer's. */
static void take_names(int fd, struct sockaddr_in names[2])
{
    socklen_t len = sizeof *names;
    getsockname(fd, (struct sockaddr *)names, &len);
    len = sizeof *names;
    getpeername(fd, (struct sockaddr *)(names + 1), &len);
}

static void begin(int fd)
{
    struct pollfd input = {.fd = fd, .events = POLLIN};
    pthread_t thread;
    if (is("late"))
        poll(&input, 1, -1);
    if (is("busy")) {
        /* The client waits for the answer to this, and speaks next when it has TLS. */
        pthread_create(&thread, NULL, receive, &fd);
        while (!is_receiving())
            sched_yield();
        printf("busy %d\n", sidestep_tls_start(fd) == -1 && errno == EBUSY);
        say(fd, "220 once more");
        pthread_join(thread, NULL);
    }
    int number = is("dup") ? dup(fd) : fd;
    struct sockaddr_in names[4] = {0};
    take_names(fd, names);
    errno = 0;
    printf("start %d", sidestep_tls_start(number));
    printf(" errno %d\n", errno);
    take_names(fd, names + 2);
    if (memcmp(names, names + 2, 2 * sizeof *names) != 0)
        printf("other names\n");
    fflush(stdout);
    if (number != fd)
        close(number);
    if (begun[1] >= 0 && write(begun[1], "x", 1) == 1)
        close(begun[1]);
}

static int serve(int fd)
{
    char line[1000], answer[200];
    if (is("level") || is("edge") || is("poll"))
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    if (is("level") || is("edge")) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        set = epoll_create1(0);
        epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    }
    say(fd, "220 a.example ESMTP");
    while (take_line(fd, line, sizeof line) == 0) {
        if (strncasecmp(line, "EHLO", 4) == 0) {
            say(fd, "250-a.example");
            say(fd, "250 STARTTLS");
        } else if (strcmp(line, "STARTTLS") == 0) {
            say(fd, "220 go ahead");
            begin(fd);
        } else if (strncmp(line, "NOOP", 4) == 0) {
            struct sidestep_tls tls = {0};
            int asked = sidestep_tls_status(fd, &tls);
            snprintf(answer, sizeof answer, "250 asked %d state %d version %d.%d rule '%s'", asked, tls.state,
                     tls.version[0], tls.version[1], tls.rule);
            say(fd, answer);
        } else if (strncmp(line, "ECHO ", 5) == 0) {
            if (echo(fd, atoi(line + 5)) != 0)
                break;
        } else if (strcasecmp(line, "QUIT") == 0) {
            say(fd, "221 bye");
            printf("quit\n");
            return 0;
        } else {
            printf("line '%s'\n", line);
            say(fd, "500 what?");
        }
    }
    printf("end errno %d\n", errno);
    return 0;
}

/* The child has the connection, and the parent, which has it too, sends when TLS has begun. */
static int serve_forked(int fd)
{
    char byte;
    if (pipe(begun) != 0)
        return 1;
    if (fork() == 0) {
        close(begun[0]);
        int status = serve(fd);
        fflush(stdout);
        _exit(status);
    }
    close(begun[1]);
    if (read(begun[0], &byte, 1) == 1) {
        int sent = send(fd, "LEAK\r\n", 6, MSG_NOSIGNAL);
        printf("beside %d errno %d\n", sent, sent < 0 ? errno : 0);
        fflush(stdout);
    }
    close(fd);
    return wait(NULL) > 0 ? 0 : 1;
}

/* A child that was there before the connection is sent it. */
static int serve_given(int listener)
{
    int pair[2], fd = -1;
    char byte = 'x', space[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return 1;
    if (fork() == 0) {
        int status = recvmsg(pair[1], &message, 0) != 1;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        status = status || serve(fd);
        fflush(stdout);
        _exit(status);
    }
    fd = accept(listener, NULL, NULL);
    struct cmsghdr *beside = CMSG_FIRSTHDR(&message);
    *beside = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(beside), &fd, sizeof fd);
    int sent = sendmsg(pair[0], &message, 0) == 1;
    close(fd);
    return wait(NULL) > 0 && sent ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int on = 1;
    char number[16];
    if (argc != 3)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    way = argv[2];
    if (strncmp(argv[1], "fd", 2) == 0)
        return serve(atoi(argv[1] + 2));
    address.sin_port = htons(atoi(argv[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0)
        return 1;
    puts("listens");
    if (is("given"))
        return serve_given(listener);
    int fd = accept(listener, NULL, NULL);
    if (fd < 0)
        return 1;
    if (is("fork"))
        return serve_forked(fd);
    if (is("exec")) {
        snprintf(number, sizeof number, "fd%d", fd);
        execl(argv[0], argv[0], number, "exec", NULL);
        return 1;
    }
    return serve(fd);
}
