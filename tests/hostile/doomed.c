/* doomed: clients of an echo server that send more than they read, and die of it.
 *
 *   doomed PORT SEED SECONDS
 *
 * A process for each connection, a few at a time. It talks to the server for a while, sends
 * until nobody takes any more, and is killed, exits or closes in the middle: often while the
 * connection moves, one direction in shared memory already and the other still on TCP. Some
 * have ended their half before. Prints how many there were, and how many of them were killed.
 */
#include "common.h"

#include <signal.h>
#include <sys/wait.h>

#define AT_A_TIME 4
#define LIFE_MS 40
#define ECHOES 6
#define PIECE_MAX 65536

/* Of the dice: those that are no other end are killed, too. */
enum end { CLOSES, EXITS, KILLED_HALF_CLOSED, KILLED, ENDS = KILLED + 2 };

static char bytes[PIECE_MAX];

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("connect");
    return fd;
}

static void talk(int fd, uint64_t *dice)
{
    for (uint64_t turns = next_random(dice) % ECHOES; turns > 0; turns--) {
        size_t len = 1 + next_random(dice) % 200;
        if (send(fd, bytes, len, MSG_NOSIGNAL) != (ssize_t)len
            || recv(fd, bytes, len, MSG_WAITALL) != (ssize_t)len)
            fail("no echo");
    }
}

/* Reads less than it sends, or nothing. */
static void flood(int fd, uint64_t *dice, double until, bool reads)
{
    while (now_s() < until) {
        if (send(fd, bytes, 1 + next_random(dice) % PIECE_MAX, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            usleep(500);
        if (reads && next_random(dice) % 3 == 0)
            recv(fd, bytes, next_random(dice) % PIECE_MAX, MSG_DONTWAIT);
    }
}

static _Noreturn void live(int port, uint64_t seed)
{
    uint64_t dice = seed;
    int fd = connect_to(port);
    uint64_t end = next_random(&dice) % ENDS;
    talk(fd, &dice);
    flood(fd, &dice, now_s() + (double)(next_random(&dice) % LIFE_MS) / 1000, next_random(&dice) % 2);
    if (end == KILLED_HALF_CLOSED) {
        shutdown(fd, SHUT_WR);
        usleep(next_random(&dice) % 10000);
    }
    if (end == CLOSES)
        close(fd);
    if (end != CLOSES && end != EXITS)
        raise(SIGKILL);
    exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        fail("usage: doomed PORT SEED SECONDS");
    int port = atoi(argv[1]), count = 0, killed = 0, living = 0;
    uint64_t seed = strtoull(argv[2], NULL, 10) * 1000000;
    double end = now_s() + atof(argv[3]);
    while (living > 0 || now_s() < end) {
        if (living < AT_A_TIME && now_s() < end) {
            pid_t pid = fork();
            if (pid < 0)
                fail("fork");
            if (pid == 0)
                live(port, seed + (uint64_t)count);
            count++;
            living++;
            continue;
        }
        int status;
        wait(&status);
        living--;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            killed++;
        else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail("one has ended otherwise");
    }
    printf("%d clients, %d killed\n", count, killed);
}
