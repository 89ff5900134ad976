/* foreign: what a preloaded library adds to send() and recv() on descriptors
 * that are none of its business.
 *
 *   foreign [--seconds 0.5]
 *
 * Times short batches of a call as the program makes it (through whatever is
 * preloaded) and of the same function of libc itself, one after the other, so
 * that both see the same clock speed and the same neighbours, and reports the
 * median over the batches of each and of their difference. Run plain, the
 * difference is the error of the meter. Prints one JSON object in ns per
 * call. */
#include "bench.h"

#include <dlfcn.h>
#include <gnu/lib-names.h>

/* Long enough that reading the clock (some 30 ns) does not show, short enough
 * that most batches pass undisturbed by timer ticks. */
#define CALLS_PER_BATCH 1000

#define BATCHES_MAX 20000

typedef ssize_t send_function(int, const void *, size_t, int);
typedef ssize_t recv_function(int, void *, size_t, int);

/* The two implementations that are compared. */
struct calls {
    send_function *send;
    recv_function *recv;
};

static int left, right; /* a pair of AF_UNIX stream sockets */
static int no_socket;   /* /dev/null */

static void expect(bool as_expected, const char *call)
{
    if (!as_expected)
        die("%s did not answer as expected", call);
}

/* ---- what is timed: one call each -------------------------------------- */

static void unix_pair(const struct calls *calls)
{
    char byte = 'x';
    expect(calls->send(left, &byte, 1, MSG_DONTWAIT) == 1, "send");
    expect(calls->recv(right, &byte, 1, MSG_DONTWAIT) == 1, "recv");
}

static void unix_recv_empty(const struct calls *calls)
{
    char byte;
    expect(calls->recv(right, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN,
           "recv");
}

static void null_recv(const struct calls *calls)
{
    char byte;
    expect(calls->recv(no_socket, &byte, 1, 0) < 0 && errno == ENOTSOCK,
           "recv");
}

static void null_send(const struct calls *calls)
{
    char byte = 'x';
    expect(calls->send(no_socket, &byte, 1, MSG_NOSIGNAL) < 0 &&
               errno == ENOTSOCK,
           "send");
}

struct subject {
    const char *name;
    void (*body)(const struct calls *);
    int calls; /* that one turn of the body makes */
};

static const struct subject subjects[] = {
    {"unix_send_recv", unix_pair, 2},
    {"unix_recv_empty", unix_recv_empty, 1},
    {"null_recv", null_recv, 1},
    {"null_send", null_send, 1},
};

#define SUBJECT_COUNT (sizeof subjects / sizeof subjects[0])

/* ---- the meter --------------------------------------------------------- */

static double batch_ns(const struct subject *subject,
                       const struct calls *calls)
{
    double start_s = now_s();
    for (int i = 0; i < CALLS_PER_BATCH; i++)
        subject->body(calls);
    double each_s = (now_s() - start_s) / CALLS_PER_BATCH;
    return each_s * 1e9 / subject->calls;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

static void measure(const struct subject *subject, const struct calls *ours,
                    const struct calls *libc, double window_s)
{
    static double call[BATCHES_MAX], direct[BATCHES_MAX], added[BATCHES_MAX];
    double end_s = now_s() + window_s;
    int n = 0;
    while (n < BATCHES_MAX && (n == 0 || now_s() < end_s)) {
        /* The order alternates: neither always runs in a warmer cache. */
        bool first = n % 2 == 0;
        double a = batch_ns(subject, first ? ours : libc);
        double b = batch_ns(subject, first ? libc : ours);
        call[n] = first ? a : b;
        direct[n] = first ? b : a;
        added[n] = call[n] - direct[n];
        n++;
    }
    printf("\"%s\":{\"call_ns\":%.2f,\"libc_ns\":%.2f,\"added_ns\":%.2f}",
           subject->name, median(call, n), median(direct, n),
           median(added, n));
}

/* libc's own functions, past everything that is preloaded. */
static struct calls libc_calls(void)
{
    void *libc = dlopen(LIBC_SO, RTLD_NOW | RTLD_NOLOAD);
    struct calls calls = {0};
    errno = 0;
    if (libc == NULL)
        die("%s", dlerror());
    /* ISO C has no cast from void * to a function; POSIX promises that the
     * bits are the same. */
    void *send = dlsym(libc, "send"), *recv = dlsym(libc, "recv");
    memcpy(&calls.send, &send, sizeof send);
    memcpy(&calls.recv, &recv, sizeof recv);
    if (calls.send == NULL || calls.recv == NULL)
        die("libc without send or recv");
    return calls;
}

int main(int argc, char *argv[])
{
    (void)argc;
    double window_s = number_option(argv, "--seconds", "0.5", 0.01);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        die("socketpair");
    left = pair[0];
    right = pair[1];
    no_socket = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (no_socket < 0)
        die("/dev/null");
    struct calls ours = {.send = send, .recv = recv};
    struct calls libc = libc_calls();
    putchar('{');
    for (size_t i = 0; i < SUBJECT_COUNT; i++) {
        if (i > 0)
            putchar(',');
        measure(&subjects[i], &ours, &libc, window_s / SUBJECT_COUNT);
    }
    puts("}");
    return 0;
}
