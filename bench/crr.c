/*
 * crr.c: connect, request, response, close, again and again, on many threads.
 *
 *     crr serve ADDRESS PORT
 *     crr call ADDRESS PORT SECONDS
 *
 * A request has 64 bytes, a response 8192: CRR40(64B/8kB), with a server whose port is known before it is
 * asked, so that a VIP can be in front of it. The client prints how many a second there were.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 40, SERVERS = 8, REQUEST = 64, RESPONSE = 8192 };

static struct sockaddr_in address;
static atomic_long done;
static atomic_int is_over;

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static int new_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    must(fd >= 0, "socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* Returns whether all bytes have come. */
static int receive(int fd, size_t len)
{
    char bytes[RESPONSE];
    return recv(fd, bytes, len, MSG_WAITALL) == (ssize_t)len;
}

static void *serve(void *listener)
{
    static const char bytes[RESPONSE];
    for (;;) {
        int fd = accept(*(int *)listener, NULL, NULL);
        must(fd >= 0, "accept");
        if (receive(fd, REQUEST))
            send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        /* The client closes first. */
        receive(fd, 1);
        close(fd);
    }
    return NULL;
}

static void *call(void *nothing)
{
    static const char bytes[REQUEST];
    /* A reset leaves no port behind that is waited for. */
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    (void)nothing;
    while (!is_over) {
        int fd = new_socket();
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        must(connect(fd, (void *)&address, sizeof address) == 0, "connect");
        must(send(fd, bytes, sizeof bytes, 0) == sizeof bytes, "send");
        must(receive(fd, RESPONSE), "recv");
        close(fd);
        done++;
    }
    return NULL;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    pthread_t threads[CLIENTS];
    must(argc >= 4, "crr serve|call ADDRESS PORT");
    address.sin_family = AF_INET;
    must(inet_pton(AF_INET, argv[2], &address.sin_addr) == 1, "address");
    address.sin_port = htons((in_port_t)atoi(argv[3]));
    if (strcmp(argv[1], "serve") == 0) {
        int listener = new_socket();
        must(bind(listener, (void *)&address, sizeof address) == 0, "bind");
        must(listen(listener, 1024) == 0, "listen");
        for (int i = 0; i < SERVERS; i++)
            must(pthread_create(&threads[i], NULL, serve, &listener) == 0, "thread");
        pause();
        return 0;
    }
    must(argc == 5, "crr call ADDRESS PORT SECONDS");
    double begun = now(), seconds = atof(argv[4]);
    for (int i = 0; i < CLIENTS; i++)
        must(pthread_create(&threads[i], NULL, call, NULL) == 0, "thread");
    usleep((useconds_t)(seconds * 1e6));
    is_over = 1;
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    printf("%.1f\n", done / (now() - begun));
    return 0;
}
