/* A server and a client that know nothing of Sidestep.
 *
 *   talker serve PORT                 echoes, one connection after the other, for ever
 *   talker call PORT N TRIPS LEN      N connections, each with so many round trips of so many
 *                                     bytes each way; between the last one and its close it
 *                                     waits for the end of standard input
 *   talker turn USER PORT             serves as this user, who it becomes after it has had a
 *                                     connection with itself
 *   talker under PROGRAM WORDS...     runs a program under a filter of system calls that lets all pass
 *   talker taken PORT                 one connection, for which it holds the name that Sidestep would
 *                                     bind
 *   talker late PORT                  one such connection, begun without waiting, that is not
 *                                     established at once */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char bytes[1 << 20];

static void check(int result, const char *what)
{
    if (result < 0) {
        perror(what);
        exit(1);
    }
}

static int tcp(int port, struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check(fd, "socket");
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_port = htons(port);
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return fd;
}

static void send_all(int fd, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = send(fd, bytes + done, len - done, MSG_NOSIGNAL);
        check(n, "send");
        done += n;
    }
}

static void serve(int port)
{
    struct sockaddr_in address;
    int listener = tcp(port, &address), on = 1;
    check(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), "setsockopt");
    check(bind(listener, (struct sockaddr *)&address, sizeof address), "bind");
    check(listen(listener, 64), "listen");
    puts("ready");
    fflush(stdout);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        check(fd, "accept");
        ssize_t n;
        while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
            send_all(fd, n);
        close(fd);
    }
}

static void talk(int fd, int trips, size_t len)
{
    for (int trip = 0; trip < trips; trip++) {
        send_all(fd, len);
        check(recv(fd, bytes, len, MSG_WAITALL) == (ssize_t)len ? 0 : -1, "recv");
    }
}

static void linger(void)
{
    puts("done");
    fflush(stdout);
    while (getchar() != EOF) {
    }
}

static void call(int port, int connections, int trips, size_t len)
{
    for (int i = 0; i < connections; i++) {
        struct sockaddr_in address;
        int fd = tcp(port, &address);
        check(connect(fd, (struct sockaddr *)&address, sizeof address), "connect");
        talk(fd, trips, len);
        if (i + 1 == connections)
            linger();
        close(fd);
    }
}

static void call_with_name_taken(int port)
{
    struct sockaddr_in address, own;
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    socklen_t len = sizeof own;
    int fd = tcp(port, &address), holder = socket(AF_UNIX, SOCK_DGRAM, 0);
    check(holder, "socket");
    check(connect(fd, (struct sockaddr *)&address, sizeof address), "connect");
    check(getsockname(fd, (struct sockaddr *)&own, &len), "getsockname");
    int name_len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1,
                            "sidestep/1/connection/127.0.0.1:%d-127.0.0.1:%d",
                            ntohs(own.sin_port), port);
    len = offsetof(struct sockaddr_un, sun_path) + 1 + name_len;
    check(bind(holder, (struct sockaddr *)&name, len), "bind");
    talk(fd, 20, 100);
    linger();
}

static void call_late(int port)
{
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    int fd = tcp(port, &address);
    check(fcntl(fd, F_SETFL, O_NONBLOCK), "fcntl");
    int connected = connect(fd, (struct sockaddr *)&address, sizeof address);
    check(connected < 0 && errno == EINPROGRESS ? 0 : -1, "connect");
    if (getpeername(fd, (struct sockaddr *)&address, &len) == 0) {
        puts("established at once");
        exit(1);
    }
    struct pollfd room = { .fd = fd, .events = POLLOUT };
    check(poll(&room, 1, -1), "poll");
    check(fcntl(fd, F_SETFL, 0), "fcntl");
    talk(fd, 1, 5);
    linger();
}

static void turn(int user)
{
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    int listener = tcp(0, &address), client = tcp(0, &address);
    check(bind(listener, (struct sockaddr *)&address, len), "bind");
    check(listen(listener, 1), "listen");
    check(getsockname(listener, (struct sockaddr *)&address, &len), "getsockname");
    check(connect(client, (struct sockaddr *)&address, len), "connect");
    int server = accept(listener, NULL, NULL);
    check(server, "accept");
    /* Long enough to be worth moving. */
    for (int trip = 0; trip < 40; trip++) {
        send_all(client, 5);
        check(recv(server, bytes, 5, MSG_WAITALL) == 5 ? 0 : -1, "recv");
        send_all(server, 5);
        check(recv(client, bytes, 5, MSG_WAITALL) == 5 ? 0 : -1, "recv");
    }
    close(client);
    close(server);
    close(listener);
    check(setgid(user), "setgid");
    check(setuid(user), "setuid");
}

static void run_under_a_filter(char **words)
{
    struct sock_filter rule = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = { .len = 1, .filter = &rule };
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl");
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), "seccomp");
    execv(words[0], words);
    check(-1, words[0]);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "under") == 0)
        run_under_a_filter(argv + 2);
    if (argc == 4 && strcmp(argv[1], "turn") == 0) {
        turn(atoi(argv[2]));
        serve(atoi(argv[3]));
    }
    if (argc == 3 && strcmp(argv[1], "taken") == 0) {
        call_with_name_taken(atoi(argv[2]));
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "late") == 0) {
        call_late(atoi(argv[2]));
        return 0;
    }
    if (argc == 3)
        serve(atoi(argv[2]));
    if (argc == 6)
        call(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    return argc == 6 ? 0 : 2;
}
