/*
 * One connection, of this program with itself: a message of 64 bytes goes to and fro, and each is read before the
 * next is sent, so no call ever waits. Every `walk_send` and `walk_receive` is one warm call, and what it executes
 * is what `cargo xtask walk` counts.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MESSAGE = 64, ROUNDS_TO_WARM_UP = 500 };

static char out[MESSAGE], in[MESSAGE];

static void must(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

__attribute__((noinline)) static ssize_t walk_send(int fd)
{
    return send(fd, out, sizeof out, 0);
}

__attribute__((noinline)) static ssize_t walk_receive(int fd)
{
    return recv(fd, in, sizeof in, 0);
}

static void connect_to_itself(int ends[2])
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(listener >= 0 && bind(listener, (struct sockaddr *)&at, len) == 0, "bind");
    must(listen(listener, 1) == 0 && getsockname(listener, (struct sockaddr *)&at, &len) == 0, "listen");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    must(ends[0] >= 0 && connect(ends[0], (struct sockaddr *)&at, len) == 0, "connect");
    ends[1] = accept(listener, NULL, NULL);
    must(ends[1] >= 0, "accept");
}

int main(int argc, char **argv)
{
    int ends[2], rounds = argc > 1 ? atoi(argv[1]) : 1;
    connect_to_itself(ends);
    for (int i = 0; i < 2 * ROUNDS_TO_WARM_UP; i++) {
        must(send(ends[i % 2], out, sizeof out, 0) == MESSAGE, "send");
        must(recv(ends[(i + 1) % 2], in, sizeof in, MSG_WAITALL) == MESSAGE, "recv");
    }
    for (int i = 0; i < rounds; i++) {
        must(walk_send(ends[i % 2]) == MESSAGE, "send");
        must(walk_receive(ends[(i + 1) % 2]) == MESSAGE, "recv");
    }
    return 0;
}
