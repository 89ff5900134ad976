/*
 * setup.c: what it takes to begin a connection that is worth moving.
 *
 * The client makes one connection after the other, each for a few short messages that wait for
 * their echo, as many as two ends take to agree, and says how long one took:
 *
 *     setup server ADDRESS PORT
 *     setup client ADDRESS PORT SECONDS
 *
 * It then waits for the end of its standard input, so that somebody can look what the connections
 * were.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGES = 10 };

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static struct sockaddr_in address_of(char **words)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    must(inet_pton(AF_INET, words[0], &address.sin_addr) == 1, "address");
    address.sin_port = htons((in_port_t)atoi(words[1]));
    return address;
}

static int new_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    must(fd >= 0, "socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return fd;
}

static void no_delay(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void serve(struct sockaddr_in address)
{
    int listener = new_socket();
    must(bind(listener, (void *)&address, sizeof address) == 0, "bind");
    must(listen(listener, 128) == 0, "listen");
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        must(fd >= 0, "accept");
        no_delay(fd);
        char byte;
        while (recv(fd, &byte, 1, 0) == 1)
            must(send(fd, &byte, 1, 0) == 1, "send");
        close(fd);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void call(struct sockaddr_in address)
{
    int fd = new_socket();
    must(connect(fd, (void *)&address, sizeof address) == 0, "connect");
    no_delay(fd);
    char byte = 'x';
    for (int i = 0; i < MESSAGES; i++) {
        must(send(fd, &byte, 1, 0) == 1, "send");
        must(recv(fd, &byte, 1, 0) == 1, "recv");
    }
    close(fd);
}

int main(int count, char **words)
{
    if (count == 4 && strcmp(words[1], "server") == 0)
        serve(address_of(words + 2));
    if (count != 5 || strcmp(words[1], "client") != 0) {
        fprintf(stderr, "usage: setup server ADDRESS PORT | client ADDRESS PORT SECONDS\n");
        return 2;
    }
    struct sockaddr_in address = address_of(words + 2);
    double duration = atof(words[4]);
    /* Who meets for the first time takes longer: that is once, and not what is measured. */
    for (double begin = now(); now() - begin < duration / 4;)
        call(address);
    double begin = now(), end;
    long calls = 0;
    do {
        call(address);
        calls++;
        end = now();
    } while (end - begin < duration);
    printf("took %.3f microseconds each\n", (end - begin) * 1e6 / (double)calls);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
