/*
 * The calls whose costs are counted: `cargo xtask costs KIND` for what each kind costs, `cargo xtask walk` for the
 * files that a warm message passes. A kind is a function of its own, so Callgrind can collect just that.
 *
 *   costs KIND ROUNDS
 *
 * Both ends of each connection are of this program, and what is sent is received before the next is sent: no call
 * ever waits, and every round is like the one before it.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MESSAGE = 64, BULK = 32 << 10, ROUNDS_TO_WARM_UP = 500 };

#define COUNTED __attribute__((noinline)) static

static char out[BULK], in[BULK];

static void must(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

COUNTED void counted_send(int fd, ssize_t len)
{
    must(send(fd, out, len, 0) == len, "send");
}

COUNTED void counted_receive(int fd, ssize_t len)
{
    must(recv(fd, in, len, MSG_WAITALL) == len, "recv");
}

COUNTED void counted_pipe(const int ends[2])
{
    must(write(ends[1], out, MESSAGE) == MESSAGE, "write");
    must(read(ends[0], in, MESSAGE) == MESSAGE, "read");
}

static int listener(struct sockaddr_in *at)
{
    socklen_t len = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    *at = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    must(fd >= 0 && bind(fd, (struct sockaddr *)at, len) == 0, "bind");
    must(listen(fd, 1) == 0 && getsockname(fd, (struct sockaddr *)at, &len) == 0, "listen");
    return fd;
}

static void connect_to_itself(int server, const struct sockaddr_in *at, int ends[2])
{
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    must(ends[0] >= 0 && connect(ends[0], (const struct sockaddr *)at, sizeof *at) == 0, "connect");
    ends[1] = accept(server, NULL, NULL);
    must(ends[1] >= 0, "accept");
}

/* Messages to and fro: so many that a connection that may move has moved, and has used its ring. */
enum { EXCHANGES = 6 };

static void exchange(const int ends[2])
{
    for (int message = 0; message < 2 * EXCHANGES; message++) {
        int side = message % 2;
        must(send(ends[side], out, MESSAGE, 0) == MESSAGE, "send");
        must(recv(ends[!side], in, MESSAGE, MSG_WAITALL) == MESSAGE, "recv");
    }
}

COUNTED void counted_connection(int server, const struct sockaddr_in *at)
{
    int ends[2];
    connect_to_itself(server, at, ends);
    exchange(ends);
    must(close(ends[0]) == 0 && close(ends[1]) == 0, "close");
}

int main(int argc, char **argv)
{
    must(argc == 3, "usage: costs message|bulk|pipe|connection ROUNDS");
    const char *kind = argv[1];
    int rounds = atoi(argv[2]), ends[2], pipes[2];
    struct sockaddr_in at;
    int server = listener(&at);
    if (!strcmp(kind, "connection")) {
        for (int i = 0; i < rounds; i++)
            counted_connection(server, &at);
        return 0;
    }
    connect_to_itself(server, &at, ends);
    must(pipe(pipes) == 0, "pipe");
    for (int i = 0; i < ROUNDS_TO_WARM_UP; i++)
        exchange(ends);
    ssize_t len = strcmp(kind, "bulk") ? MESSAGE : BULK;
    for (int i = 0; i < rounds; i++) {
        if (!strcmp(kind, "pipe")) {
            counted_pipe(pipes);
        } else {
            counted_send(ends[i % 2], len);
            counted_receive(ends[(i + 1) % 2], len);
        }
    }
    return 0;
}
