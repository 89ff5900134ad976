/* What the bench programs share: ending with a reason, starting a second
 * process of the same program, and reading clocks and /proc.
 *
 * The processes of one bench are started with execv() of /proc/self/exe, not
 * by fork() alone: each then begins like any program a user starts, and a
 * preloaded library in it has no history. */
#ifndef SIDESTEP_BENCH_H
#define SIDESTEP_BENCH_H

/* accept4, pipe2 and friends. This header comes before any other. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Longest queue of connections not yet accepted: clients here connect faster
 * than a server on the same CPU accepts. The kernel caps it at somaxconn. */
#define LISTEN_BACKLOG 4096

/* More roles' arguments than any bench uses. */
#define ROLE_ARGS_MAX 16

__attribute__((format(printf, 1, 2), noreturn)) static inline void
die(const char *format, ...)
{
    int error = errno;
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    if (error != 0)
        fprintf(stderr, ": %s", strerror(error));
    fputc('\n', stderr);
    exit(1);
}

static inline double seconds_of(clockid_t clock)
{
    struct timespec now;
    if (clock_gettime(clock, &now) != 0)
        die("clock_gettime");
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline double now_s(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

static inline void sleep_s(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

/* A process that plays a part in a bench, with a pipe from its standard
 * output and one to its standard input. */
struct role {
    pid_t pid;
    FILE *from; /* what it prints */
    int to;     /* its standard input; closing it asks the role to end */
};

static inline void become_role(const char *program, char *const words[],
                               int input, int output)
{
    /* A bench that is killed must not leave its halves behind. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dup2(input, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0)
        die("dup2");
    execvp(program, words);
    die("starting %s", program);
}

static inline struct role start_command(const char *program,
                                        char *const words[])
{
    int in[2], out[2];
    /* Close-on-exec: no role may hold the other role's pipes open. */
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        die("pipe2");
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0)
        become_role(program, words, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    FILE *from = fdopen(out[0], "r");
    if (from == NULL)
        die("fdopen");
    return (struct role){.pid = pid, .from = from, .to = in[1]};
}

/* The same program with other words. */
static inline struct role start_role(char *const words[])
{
    return start_command("/proc/self/exe", words);
}

/* Waits for a line that begins with `word` and returns what follows it. */
static inline const char *await_line(struct role *role, const char *word)
{
    static char line[256];
    size_t len = strlen(word);
    errno = 0;
    if (fgets(line, sizeof line, role->from) == NULL)
        die("a half of the bench ended before it said '%s'", word);
    if (strncmp(line, word, len) != 0)
        die("expected '%s', got '%s'", word, line);
    return line + len;
}

/* Says one line to the process that started this role. */
__attribute__((format(printf, 1, 2))) static inline void
say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

static inline void end_role(struct role *role)
{
    int status = 0;
    close(role->to);
    if (waitpid(role->pid, &status, 0) != role->pid)
        die("waitpid");
    errno = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("a half of the bench failed (wait status 0x%x)", (unsigned)status);
}

static inline int listen_loopback(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, len) != 0 ||
        listen(fd, LISTEN_BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        die("a listener on 127.0.0.1");
    *port = ntohs(address.sin_port);
    return fd;
}

static inline void set_nodelay(int fd)
{
    int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
        die("TCP_NODELAY");
}

static inline void connect_loopback(int fd, uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("connect to 127.0.0.1:%u", port);
    set_nodelay(fd);
}

/* The value of option `--name` among `args`, or `otherwise`. */
static inline const char *option(char *const args[], const char *name,
                                 const char *otherwise)
{
    for (; args[0] != NULL; args++)
        if (strcmp(args[0], name) == 0) {
            errno = 0;
            if (args[1] == NULL)
                die("%s needs a value", name);
            return args[1];
        }
    return otherwise;
}

static inline double number_option(char *const args[], const char *name,
                                   const char *otherwise, double least)
{
    const char *text = option(args, name, otherwise);
    char *end;
    double value = strtod(text, &end);
    errno = 0;
    if (end == text || *end != '\0' || !(value >= least))
        die("%s: '%s' is not a number of at least %g", name, text, least);
    return value;
}

#endif
