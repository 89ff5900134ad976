/* client: asks an echo server and looks at every byte of the answers.
 *
 *   client steady PORT [options]   connections that stay, a thread each
 *   client storm PORT [options]    connections that come and go, in threads
 *   client crowd PORT [options]    connections that all ask before any answer is read;
 *                                  one thread, rounds for as long as it takes
 *   client cycles PORT [options]   connect, eight ping-pongs, close; one thread
 *
 *   -n N   connections or threads (4)      -t S   seconds (2)
 *   -c N   cycles (1000)                   -s N   seed (1)
 *   -p N   patience: seconds that a call may wait for the server (60)
 *   -h     hold: say so when all is done, wait for the end of the input
 *   -f     forgive: a connection that fails is followed by another
 *
 * A connection ends `ok`, or `wrong` (a byte is not the one that was sent),
 * `reset` (an error or an early end), `silent` (the server let a call wait for
 * longer than our patience), `late` (the call did not even return then). Late
 * is an error exit always, the others but ok are without -f. At its end a
 * connection is shut down for writing, and must then bring nothing but the end.
 */
#include "common.h"

#include <pthread.h>

/* How much later than it should a call returns on a busy machine. */
#define SLACK_S 30
/* Messages of each connection that stays, also on a machine that is so busy that the time is over
 * before: enough to see what becomes of the connection. */
#define MESSAGES_MIN 32
#define MESSAGE_MAX 32768
#define THREADS_MAX 256
/* Destinations take turns, so that tuples in TIME_WAIT are not in the way. */
#define LOOPBACKS 16

enum verdict { OK, WRONG, RESET, SILENT, LATE, VERDICTS };
static const char *const verdict_names[] = {"ok", "wrong", "reset", "silent", "late"};

static struct {
    int port, count, cycles, patience_s;
    double seconds;
    uint64_t seed;
    bool holds, forgives, storms;
} options = {.count = 4, .cycles = 1000, .patience_s = 60, .seconds = 2, .seed = 1};

static double deadline;
static unsigned char pattern[2 * MESSAGE_MAX];

struct worker {
    pthread_t thread;
    uint64_t random;
    int index;
    uint64_t bytes, ended[VERDICTS];
};

/* Of a call that has returned this. */
static enum verdict verdict_of(ssize_t n, double began)
{
    bool is_silent = n < 0 && errno == EAGAIN;
    if (now_s() - began > options.patience_s + SLACK_S)
        return LATE;
    return n > 0 ? OK : is_silent ? SILENT : RESET;
}

/* A connected socket, or -1. */
static int connect_to(int which, enum verdict *verdict)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (unsigned)which % LOOPBACKS);
    struct timeval patience = {.tv_sec = options.patience_s};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    *verdict = RESET;
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    double began = now_s();
    bool is_connected = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    *verdict = verdict_of(is_connected ? 1 : -1, began);
    if (*verdict == OK)
        return fd;
    close(fd);
    return -1;
}

/* A call with a time-out does not outlast SIGSTOP and SIGCONT (signal(7)). */
static bool was_stopped(ssize_t n)
{
    return n < 0 && errno == EINTR;
}

/* One message there and back. */
static enum verdict ping(int fd, size_t start, size_t len, unsigned char *room)
{
    const unsigned char *message = pattern + start;
    for (size_t at = 0; at < len;) {
        double began = now_s();
        ssize_t n = send(fd, message + at, len - at, MSG_NOSIGNAL);
        if (was_stopped(n))
            continue;
        enum verdict verdict = verdict_of(n, began);
        if (verdict != OK)
            return verdict;
        at += (size_t)n;
    }
    for (size_t at = 0; at < len;) {
        double began = now_s();
        ssize_t n = recv(fd, room, len - at, 0);
        if (was_stopped(n))
            continue;
        enum verdict verdict = verdict_of(n, began);
        if (verdict != OK)
            return verdict;
        if (memcmp(room, message + at, (size_t)n) != 0)
            return WRONG;
        at += (size_t)n;
    }
    return OK;
}

/* The end: nothing may come but the end of the stream. */
static enum verdict finish(int fd, unsigned char *room)
{
    if (shutdown(fd, SHUT_WR) != 0)
        return RESET;
    double began = now_s();
    ssize_t n = recv(fd, room, MESSAGE_MAX, 0);
    enum verdict verdict = verdict_of(n, began);
    return verdict == LATE ? LATE : n == 0 ? OK : n > 0 ? WRONG : verdict;
}

/* Some messages on one connection; `fd` stays open. */
static enum verdict converse(struct worker *worker, int fd, uint64_t messages, unsigned char *room)
{
    enum verdict verdict = OK;
    uint64_t least = options.storms ? 0 : MESSAGES_MIN;
    for (uint64_t i = 0; verdict == OK && i < messages && (i < least || now_s() < deadline); i++) {
        uint64_t dice = next_random(&worker->random);
        size_t len = dice % 16 == 0 ? 1 + (dice >> 8) % MESSAGE_MAX : 1 + (dice >> 8) % 512;
        verdict = ping(fd, (dice >> 32) % MESSAGE_MAX, len, room);
        worker->bytes += verdict == OK ? len : 0;
    }
    return verdict;
}

/* One connection from its begin to its end, or, if it is to be held, until all
 * is said. */
static enum verdict visit(struct worker *worker, int which, unsigned char *room)
{
    uint64_t dice = next_random(&worker->random);
    uint64_t few = dice % 32 == 0 ? 2000 : (dice >> 8) % 12;
    enum verdict verdict;
    int fd = connect_to(which, &verdict);
    if (fd < 0) {
        usleep(10000);
        return verdict;
    }
    verdict = converse(worker, fd, options.storms ? few : UINT64_MAX, room);
    if (options.holds)
        return verdict;
    if (verdict == OK)
        verdict = finish(fd, room);
    close(fd);
    return verdict;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    unsigned char *room = malloc(MESSAGE_MAX);
    enum verdict verdict;
    if (room == NULL)
        fail("malloc");
    for (int i = 0; i == 0 || now_s() < deadline; i++) {
        verdict = visit(worker, worker->index + i, room);
        worker->ended[verdict]++;
        if (options.holds || (verdict != OK && !options.forgives))
            break;
    }
    free(room);
    return NULL;
}

static int cycle(void)
{
    unsigned char room[64];
    for (int i = 0; i < options.cycles; i++) {
        enum verdict verdict;
        int fd = connect_to(i, &verdict);
        for (unsigned at = 0; at < 8 && verdict == OK; at++)
            verdict = ping(fd, at * 64, 64, room);
        if (verdict != OK) {
            printf("cycle %d: %s\n", i, verdict_names[verdict]);
            return 1;
        }
        close(fd);
    }
    printf("%d cycles\n", options.cycles);
    return 0;
}

/* The message of a connection in a round: no other client sends the same. */
static void crowd_message(char message[16], int index, int round)
{
    memcpy(message, &options.seed, 8);
    memcpy(message + 8, &index, 4);
    memcpy(message + 12, &round, 4);
}

static enum verdict crowd_round(const int *fds, int round)
{
    char message[16], answer[16];
    for (int i = 0; i < options.count; i++) {
        crowd_message(message, i, round);
        if (send(fds[i], message, sizeof message, MSG_NOSIGNAL) != sizeof message)
            return RESET;
    }
    for (int i = 0; i < options.count; i++) {
        double began = now_s();
        enum verdict verdict = verdict_of(recv(fds[i], answer, sizeof answer, MSG_WAITALL), began);
        crowd_message(message, i, round);
        if (verdict != OK)
            return verdict;
        if (memcmp(message, answer, sizeof answer) != 0)
            return WRONG;
    }
    return OK;
}

/* All at once: the first bytes of the last connection come before any answer is read. */
static int crowd(void)
{
    enum verdict verdict = OK;
    int *fds = calloc((size_t)options.count, sizeof *fds), rounds = 0;
    for (int i = 0; i < options.count && verdict == OK; i++)
        fds[i] = connect_to(i, &verdict);
    deadline = now_s() + options.seconds;
    while (verdict == OK && (rounds < MESSAGES_MIN || now_s() < deadline))
        verdict = crowd_round(fds, rounds++);
    printf("done %lu bytes", 16ul * (unsigned)options.count * (unsigned)rounds);
    for (int ended = 0; ended < VERDICTS; ended++)
        printf(" %d %s", ended == (int)verdict ? options.count : 0, verdict_names[ended]);
    printf("\n");
    fflush(stdout);
    while (options.holds && getchar() != EOF) {
    }
    return verdict != OK;
}

static int work_in_threads(void)
{
    static struct worker workers[THREADS_MAX];
    uint64_t bytes = 0, ended[VERDICTS] = {0}, failed = 0;
    deadline = now_s() + options.seconds;
    for (int i = 0; i < options.count; i++) {
        workers[i].index = i;
        workers[i].random = options.seed * 1000 + (uint64_t)i;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            fail("thread");
    }
    for (int i = 0; i < options.count; i++) {
        pthread_join(workers[i].thread, NULL);
        bytes += workers[i].bytes;
        for (int verdict = 0; verdict < VERDICTS; verdict++)
            ended[verdict] += workers[i].ended[verdict];
    }
    printf("done %lu bytes", bytes);
    for (int verdict = 0; verdict < VERDICTS; verdict++) {
        printf(" %lu %s", ended[verdict], verdict_names[verdict]);
        failed += verdict == LATE || (verdict != OK && !options.forgives) ? ended[verdict] : 0;
    }
    printf("\n");
    fflush(stdout);
    while (options.holds && getchar() != EOF) {
    }
    return failed > 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        fail("usage: client steady|storm|crowd|cycles PORT");
    const char *mode = argv[1];
    options.port = atoi(argv[2]);
    optind = 3;
    for (int letter; (letter = getopt(argc, argv, "n:t:c:s:p:hf")) != -1;) {
        switch (letter) {
        case 'n':
            options.count = atoi(optarg);
            break;
        case 't':
            options.seconds = atof(optarg);
            break;
        case 'c':
            options.cycles = atoi(optarg);
            break;
        case 's':
            options.seed = strtoull(optarg, NULL, 10);
            break;
        case 'p':
            options.patience_s = atoi(optarg);
            break;
        case 'h':
            options.holds = true;
            break;
        case 'f':
            options.forgives = true;
            break;
        default:
            return 2;
        }
    }
    bool is_crowd = strcmp(mode, "crowd") == 0;
    if (options.count < 1 || (options.count > THREADS_MAX && !is_crowd))
        fail("between 1 and 256 connections");
    options.storms = strcmp(mode, "storm") == 0;
    uint64_t state = options.seed;
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (unsigned char)next_random(&state);
    return is_crowd ? crowd() : strcmp(mode, "cycles") == 0 ? cycle() : work_in_threads();
}
