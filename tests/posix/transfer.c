/*
 * transfer.c: every call that moves bytes, and what it returns.
 *
 * The law is POSIX send(), recv() and friends, with Linux' additions in the
 * manual pages recv(2), send(2), recvmmsg(2), readv(2).
 */
#include "support.h"

/* A buffer whose length the compiler does not know at the call, so that with
 * _FORTIFY_SOURCE the checked aliases (__read_chk, __recv_chk, …) are used. */
static unsigned char buffer[65536];
static volatile size_t opaque;

static size_t len_of(size_t len)
{
    opaque = len;
    return opaque;
}

/* ---- one call each way ----------------------------------------------------------- */

static void send_and_recv(struct pair *p)
{
    CHECK_EQ(send(p->self.fd, next_bytes(&p->self, 100), 100, 0), 100);
    CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
    peer_do(p, do_send, 200, 0);
    await_readable(p->self.fd, 200);
    CHECK_EQ(recv(p->self.fd, buffer, len_of(sizeof buffer), 0), 200);
    CHECK(take_bytes(&p->self, buffer, 200));
}

static void write_and_read(struct pair *p)
{
    CHECK_EQ(write(p->self.fd, next_bytes(&p->self, 100), 100), 100);
    peer_do(p, do_recv, 100, 0);
    peer_do(p, do_send, 200, 0);
    await_readable(p->self.fd, 200);
    CHECK_EQ(read(p->self.fd, buffer, len_of(150)), 150);
    CHECK(take_bytes(&p->self, buffer, 150));
    CHECK_EQ(read(p->self.fd, buffer, len_of(150)), 50);
    CHECK(take_bytes(&p->self, buffer, 50));
}

/* On a connected stream the address given to sendto() is ignored, and recvfrom()
 * reports none: it leaves the buffer alone and sets the length to 0. */
static void sendto_and_recvfrom(struct pair *p)
{
    struct sockaddr_in elsewhere = {
        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(0x7f0a0b0c)};
    CHECK_EQ(sendto(p->self.fd, next_bytes(&p->self, 10), 10, 0, (struct sockaddr *)&elsewhere,
                    sizeof elsewhere), 10);
    CHECK_EQ(sendto(p->self.fd, next_bytes(&p->self, 10), 10, 0, NULL, 0), 10);
    peer_do(p, do_recv, 20, 0);

    peer_do(p, do_send, 30, 0);
    await_readable(p->self.fd, 30);
    struct sockaddr_storage from;
    memset(&from, 0x5a, sizeof from);
    socklen_t from_len = sizeof from;
    CHECK_EQ(recvfrom(p->self.fd, buffer, len_of(15), 0, (struct sockaddr *)&from, &from_len), 15);
    CHECK(take_bytes(&p->self, buffer, 15));
    CHECK_EQ(from_len, 0);
    CHECK_EQ(from.ss_family, 0x5a5a);
    CHECK_EQ(recvfrom(p->self.fd, buffer, len_of(15), 0, NULL, NULL), 15);
    CHECK(take_bytes(&p->self, buffer, 15));
}

static void sendmsg_and_recvmsg(struct pair *p)
{
    enum { PIECES = 5, PIECE = 7 };
    unsigned char *bytes = next_bytes(&p->self, PIECES * PIECE);
    struct iovec out[PIECES], in[PIECES];
    for (int i = 0; i < PIECES; i++)
        out[i] = (struct iovec){bytes + i * PIECE, PIECE};
    struct msghdr message = {.msg_iov = out, .msg_iovlen = PIECES};
    CHECK_EQ(sendmsg(p->self.fd, &message, 0), PIECES * PIECE);
    peer_do(p, do_recv, PIECES * PIECE, 0);

    peer_do(p, do_send, PIECES * PIECE, 0);
    await_readable(p->self.fd, PIECES * PIECE);
    memset(buffer, 0, 100);
    for (int i = 0; i < PIECES; i++)
        in[i] = (struct iovec){buffer + i * PIECE, PIECE};
    struct sockaddr_storage name;
    char control[64];
    message = (struct msghdr){.msg_name = &name,
                              .msg_namelen = sizeof name,
                              .msg_iov = in,
                              .msg_iovlen = PIECES,
                              .msg_control = control,
                              .msg_controllen = sizeof control,
                              .msg_flags = -1};
    CHECK_EQ(recvmsg(p->self.fd, &message, 0), PIECES * PIECE);
    CHECK(take_bytes(&p->self, buffer, PIECES * PIECE));
    CHECK_EQ(message.msg_namelen, 0);
    CHECK_EQ(message.msg_controllen, 0);
    CHECK_EQ(message.msg_flags, 0);
}

/* No buffers, empty buffers, buffers beyond what is there. */
static void odd_vectors(struct pair *p)
{
    struct msghdr none = {0};
    CHECK_EQ(sendmsg(p->self.fd, &none, 0), 0);
    unsigned char *bytes = next_bytes(&p->self, 20);
    struct iovec holes[] = {{bytes, 0}, {bytes, 10}, {NULL, 0}, {bytes + 10, 10}, {bytes, 0}};
    struct msghdr message = {.msg_iov = holes, .msg_iovlen = 5};
    CHECK_EQ(sendmsg(p->self.fd, &message, 0), 20);
    peer_do(p, do_recv, 20, 0);

    peer_do(p, do_send, 25, 0);
    await_readable(p->self.fd, 25);
    struct iovec in[] = {
        {buffer, 0}, {buffer, 10}, {buffer + 10, 10}, {NULL, 0}, {buffer + 20, 1000}};
    CHECK_EQ(readv(p->self.fd, in, 5), 25);
    CHECK(take_bytes(&p->self, buffer, 25));
}

static void writev_and_readv(struct pair *p)
{
    enum { PIECES = 300 };
    struct iovec vector[PIECES];
    unsigned char *bytes = next_bytes(&p->self, PIECES * 3);
    for (int i = 0; i < PIECES; i++)
        vector[i] = (struct iovec){bytes + i * 3, 3};
    CHECK_EQ(writev(p->self.fd, vector, PIECES), PIECES * 3);
    peer_do(p, do_recv, PIECES * 3, 0);

    peer_do(p, do_send, PIECES * 3, 0);
    await_readable(p->self.fd, PIECES * 3);
    for (int i = 0; i < PIECES; i++)
        vector[i] = (struct iovec){buffer + i * 3, 3};
    CHECK_EQ(readv(p->self.fd, vector, PIECES), PIECES * 3);
    CHECK(take_bytes(&p->self, buffer, PIECES * 3));
}

/* The most vector entries allowed works; one more does not, and takes nothing.
 * The plain calls say EINVAL, the message calls EMSGSIZE. */
static void vector_limits(struct pair *p)
{
    static struct iovec vector[IOV_MAX + 1];
    unsigned char *bytes = next_bytes(&p->self, IOV_MAX);
    for (int i = 0; i <= IOV_MAX; i++)
        vector[i] = (struct iovec){bytes + i % IOV_MAX, 1};
    CHECK_ERRNO(writev(p->self.fd, vector, IOV_MAX + 1), EINVAL);
    int negative = -(int)len_of(1);
    CHECK_ERRNO(writev(p->self.fd, vector, negative), EINVAL);
    struct msghdr message = {.msg_iov = vector, .msg_iovlen = IOV_MAX + 1};
    CHECK_ERRNO(sendmsg(p->self.fd, &message, 0), EMSGSIZE);
    CHECK_EQ(writev(p->self.fd, vector, IOV_MAX), IOV_MAX);
    peer_do(p, do_recv, IOV_MAX, 0);

    peer_do(p, do_send, IOV_MAX, 0);
    await_readable(p->self.fd, IOV_MAX);
    for (int i = 0; i <= IOV_MAX; i++)
        vector[i] = (struct iovec){buffer + i, 1};
    CHECK_ERRNO(readv(p->self.fd, vector, IOV_MAX + 1), EINVAL);
    CHECK_ERRNO(recvmsg(p->self.fd, &message, 0), EMSGSIZE);
    CHECK_EQ(readv(p->self.fd, vector, IOV_MAX), IOV_MAX);
    CHECK(take_bytes(&p->self, buffer, IOV_MAX));
    /* A single length or a sum beyond SSIZE_MAX is refused by readv and writev. */
    struct iovec huge[] = {{buffer, SSIZE_MAX}, {buffer, SSIZE_MAX}, {buffer, (size_t)-1}};
    CHECK_ERRNO(writev(p->self.fd, &huge[2], 1), EINVAL);
    CHECK_ERRNO(readv(p->self.fd, &huge[2], 1), EINVAL);
}

/* Offset -1 means "the current position": the call is then good for sockets. */
static void preadv2_and_pwritev2(struct pair *p)
{
    unsigned char *bytes = next_bytes(&p->self, 40);
    struct iovec out[] = {{bytes, 15}, {bytes + 15, 25}};
    CHECK_EQ(pwritev2(p->self.fd, out, 2, -1, 0), 40);
    peer_do(p, do_recv, 40, 0);
    CHECK_ERRNO(pwritev2(p->self.fd, out, 2, 0, 0), ESPIPE);
    CHECK_ERRNO(pwritev(p->self.fd, out, 2, 0), ESPIPE);
    CHECK_ERRNO(pwrite(p->self.fd, bytes, 1, 0), ESPIPE);

    peer_do(p, do_send, 40, 0);
    await_readable(p->self.fd, 40);
    struct iovec in[] = {{buffer, 15}, {buffer + 15, 25}};
    CHECK_ERRNO(preadv2(p->self.fd, in, 2, 0, 0), ESPIPE);
    CHECK_ERRNO(pread(p->self.fd, buffer, len_of(1), 0), ESPIPE);
    CHECK_ERRNO(lseek(p->self.fd, 0, SEEK_CUR), ESPIPE);
    CHECK_EQ(preadv2(p->self.fd, in, 2, -1, 0), 40);
    CHECK(take_bytes(&p->self, buffer, 40));
}

static void sendmmsg_and_recvmmsg(struct pair *p)
{
    enum { MESSAGES = 4, LEN = 50 };
    unsigned char *bytes = next_bytes(&p->self, MESSAGES * LEN);
    struct iovec vector[MESSAGES];
    struct mmsghdr messages[MESSAGES];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < MESSAGES; i++) {
        vector[i] = (struct iovec){bytes + i * LEN, LEN};
        messages[i].msg_hdr.msg_iov = &vector[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    CHECK_EQ(sendmmsg(p->self.fd, messages, MESSAGES, 0), MESSAGES);
    for (int i = 0; i < MESSAGES; i++)
        CHECK_EQ(messages[i].msg_len, LEN);
    peer_do(p, do_recv, MESSAGES * LEN, 0);

    /* A stream has no messages: each takes what its buffer holds. */
    peer_do(p, do_send, 2 * LEN + 10, 0);
    await_readable(p->self.fd, 2 * LEN + 10);
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < MESSAGES; i++) {
        vector[i] = (struct iovec){buffer + i * LEN, LEN};
        messages[i].msg_hdr.msg_iov = &vector[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    CHECK_EQ(recvmmsg(p->self.fd, messages, MESSAGES, MSG_DONTWAIT, NULL), 3);
    CHECK_EQ(messages[0].msg_len, LEN);
    CHECK_EQ(messages[1].msg_len, LEN);
    CHECK_EQ(messages[2].msg_len, 10);
    CHECK(take_bytes(&p->self, buffer, 2 * LEN + 10));
    CHECK_ERRNO(recvmmsg(p->self.fd, messages, MESSAGES, MSG_DONTWAIT, NULL), EAGAIN);

    /* MSG_WAITFORONE blocks for the first only. */
    peer_do(p, do_send, LEN + 1, 0);
    await_readable(p->self.fd, LEN + 1);
    CHECK_EQ(recvmmsg(p->self.fd, messages, MESSAGES, MSG_WAITFORONE, NULL), 2);
    CHECK_EQ(messages[1].msg_len, 1);
    CHECK(take_bytes(&p->self, buffer, LEN));
    CHECK(take_bytes(&p->self, buffer + LEN, 1));
}

/* recvmmsg stops at the end of the stream: EOF counts as an empty message. */
static void recvmmsg_at_eof(struct pair *p)
{
    peer_do(p, do_send, 10, 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_MASK(p->self.fd, POLLIN | POLLOUT | POLLRDHUP);
    struct iovec vector[3] = {{buffer, 50}, {buffer + 50, 50}, {buffer + 100, 50}};
    struct mmsghdr messages[3];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 3; i++) {
        messages[i].msg_hdr.msg_iov = &vector[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    CHECK_EQ(recvmmsg(p->self.fd, messages, 3, 0, NULL), 3);
    CHECK_EQ(messages[0].msg_len, 10);
    CHECK_EQ(messages[1].msg_len, 0);
    CHECK_EQ(messages[2].msg_len, 0);
    CHECK(take_bytes(&p->self, buffer, 10));
}

/* ---- zero length ----------------------------------------------------------------- */

/* Sending nothing succeeds and is not seen by the peer. */
static void sends_of_nothing(struct pair *p)
{
    CHECK_EQ(send(p->self.fd, buffer, 0, 0), 0);
    CHECK_EQ(write(p->self.fd, buffer, 0), 0);
    CHECK_EQ(send(p->self.fd, NULL, 0, MSG_DONTWAIT), 0);
    struct iovec nothing = {buffer, 0};
    CHECK_EQ(writev(p->self.fd, &nothing, 1), 0);
    CHECK_EQ(peer_do(p, do_poll, POLLIN, 0), 0);
    CHECK_EQ(peer_do(p, do_recv_once, 10, MSG_DONTWAIT), -1);
    CHECK_EQ(errno, EAGAIN);
}

/* read() of nothing returns 0 at once. recv() of nothing waits for data as any
 * other (measured): EAGAIN without, 0 with, and takes nothing. */
static void reads_of_nothing(struct pair *p)
{
    CHECK_EQ(read(p->self.fd, buffer, len_of(0)), 0);
    CHECK_ERRNO(recv(p->self.fd, buffer, len_of(0), MSG_DONTWAIT), EAGAIN);
    peer_do(p, do_send, 10, 0);
    await_readable(p->self.fd, 10);
    CHECK_EQ(read(p->self.fd, buffer, len_of(0)), 0);
    CHECK_EQ(recv(p->self.fd, buffer, len_of(0), 0), 0);
    CHECK_EQ(recv(p->self.fd, buffer, len_of(0), MSG_DONTWAIT), 0);
    CHECK_EQ(do_recv(&p->self, 10, 0), 10);
}

/* ---- discarding ------------------------------------------------------------------ */

/* MSG_TRUNC on TCP throws bytes away without copying them; even a NULL buffer is
 * good (tcp(7)). */
static void trunc_discards(struct pair *p)
{
    peer_do(p, do_send, 100, 0);
    await_readable(p->self.fd, 100);
    memset(buffer, 0xee, 60);
    CHECK_EQ(recv(p->self.fd, buffer, len_of(60), MSG_TRUNC), 60);
    CHECK_EQ(buffer[0], 0xee);
    CHECK_EQ(buffer[59], 0xee);
    CHECK_EQ(recv(p->self.fd, NULL, len_of(10), MSG_TRUNC), 10);
    p->self.received += 70;
    CHECK_EQ(do_recv(&p->self, 30, 0), 30);
}

/* With MSG_PEEK nothing is consumed, and nothing copied either. */
static void trunc_and_peek(struct pair *p)
{
    peer_do(p, do_send, 100, 0);
    await_readable(p->self.fd, 100);
    CHECK_EQ(recv(p->self.fd, NULL, len_of(1000), MSG_TRUNC | MSG_PEEK), 100);
    CHECK_EQ(do_recv(&p->self, 100, 0), 100);
}

/* ---- errno ----------------------------------------------------------------------- */

/* A call that succeeds leaves errno alone. */
static void success_keeps_errno(struct pair *p)
{
    int fd = p->self.fd;
    void *bytes = next_bytes(&p->self, 10);
    errno = ENOTTY;
    bool kept = send(fd, bytes, 10, 0) == 10 && errno == ENOTTY;
    CHECK(kept);
    peer_do(p, do_recv, 10, 0);
    peer_do(p, do_send, 10, 0);
    errno = ENOTTY;
    kept = recv(fd, buffer, len_of(10), 0) == 10 && errno == ENOTTY;
    CHECK(kept);
    take_bytes(&p->self, buffer, 10);
    errno = ENOTTY;
    kept = poll_once(fd, POLLOUT, 0) == POLLOUT && errno == ENOTTY;
    CHECK(kept);
    kept = get_int(fd, SOL_SOCKET, SO_ERROR) == 0 && errno == ENOTTY;
    CHECK(kept);
    kept = close(fd) == 0 && errno == ENOTTY;
    CHECK(kept);
    p->self.fd = -1;
}

/* ---- bulk ------------------------------------------------------------------------ */

enum { BULK = 3 << 20 };

static unsigned next_random(unsigned *state)
{
    *state = *state * 1103515245u + 12345u;
    return *state >> 8;
}

/* Sends BULK bytes by turns with every call, in sizes from 1 byte to 40 000. */
static long do_send_bulk(struct end *end, long seed, long b)
{
    (void)b;
    unsigned state = (unsigned)seed;
    long left = BULK;
    while (left > 0) {
        size_t len = 1 + next_random(&state) % (next_random(&state) % 4 ? 3000 : 40000);
        if (len > (size_t)left)
            len = left;
        unsigned char *bytes = next_bytes(end, len);
        struct iovec vector[2] = {{bytes, len / 3}, {bytes + len / 3, len - len / 3}};
        struct msghdr message = {.msg_iov = vector, .msg_iovlen = 2};
        ssize_t n;
        switch (next_random(&state) % 5) {
        case 0: n = send(end->fd, bytes, len, MSG_NOSIGNAL); break;
        case 1: n = write(end->fd, bytes, len); break;
        case 2: n = writev(end->fd, vector, 2); break;
        case 3: n = sendmsg(end->fd, &message, MSG_MORE); break;
        default: n = sendto(end->fd, bytes, len, 0, NULL, 0); break;
        }
        /* A blocking send takes all of it. */
        if (!CHECK_EQ(n, len))
            return -1;
        left -= n;
    }
    return 0;
}

static long do_recv_bulk(struct end *end, long seed, long b)
{
    (void)b;
    static __thread unsigned char bytes[40000];
    unsigned state = (unsigned)seed;
    long left = BULK;
    while (left > 0) {
        size_t len = 1 + next_random(&state) % (next_random(&state) % 4 ? 3000 : 40000);
        struct iovec vector[2] = {{bytes, len / 2}, {bytes + len / 2, len - len / 2}};
        struct msghdr message = {.msg_iov = vector, .msg_iovlen = 2};
        ssize_t n;
        switch (next_random(&state) % 5) {
        case 0: n = recv(end->fd, bytes, len, 0); break;
        case 1: n = read(end->fd, bytes, len); break;
        case 2: n = readv(end->fd, vector, 2); break;
        case 3: n = recvmsg(end->fd, &message, 0); break;
        default: n = recvfrom(end->fd, bytes, len, 0, NULL, NULL); break;
        }
        if (!CHECK(n > 0) || !CHECK(take_bytes(end, bytes, n)))
            return -1;
        left -= n;
    }
    CHECK_EQ(left, 0);
    return 0;
}

static void bulk_out(struct pair *p)
{
    peer_start(p, 0, do_recv_bulk, 1, 0);
    do_send_bulk(&p->self, 2, 0);
    CHECK_EQ(peer_finish(p), 0);
}

static void bulk_in(struct pair *p)
{
    peer_start(p, 0, do_send_bulk, 3, 0);
    do_recv_bulk(&p->self, 4, 0);
    CHECK_EQ(peer_finish(p), 0);
}

static void *bulk_sender(void *end)
{
    do_send_bulk(end, 5, 0);
    return NULL;
}

static long do_both_bulk(struct end *end, long a, long b)
{
    /* Each thread has its own copy of the positions; they are joined after. */
    struct end out = *end;
    pthread_t thread;
    if (!CHECK_EQ(pthread_create(&thread, NULL, bulk_sender, &out), 0))
        return -1;
    do_recv_bulk(end, 6, 0);
    pthread_join(thread, NULL);
    end->sent = out.sent;
    (void)a, (void)b;
    return 0;
}

/* Both directions at once, so neither side's reader may wait for its writer. */
static void bulk_both_ways(struct pair *p)
{
    peer_start(p, 0, do_both_bulk, 0, 0);
    do_both_bulk(&p->self, 0, 0);
    CHECK_EQ(peer_finish(p), 0);
}

/* Half a megabyte each way in one thread, by sends that take what fits. */
static void bulk_by_turns(struct pair *p)
{
    long sent = 0, received = 0;
    while (received < 1 << 19) {
        long n = do_send_once(&p->self, 3001, MSG_DONTWAIT);
        if (n > 0)
            sent += n;
        else if (!CHECK_EQ(errno, EAGAIN))
            return;
        if (n > 0 && sent - received < 12000)
            continue;
        received += peer_do(p, do_drain, 1 << 20, 0);
    }
    while (received < sent)
        received += peer_do(p, do_drain, 1 << 20, 0);
    CHECK_EQ(received, sent);
}

/* Ping-pong in sizes around the usual page and ring limits. */
static void echo_sizes(struct pair *p)
{
    static const int sizes[] = {1, 2, 3, 63, 64, 65, 1447, 1448, 4095, 4096, 4097, 16384, 32767,
                                32768, 32769, 65535, 65536, 65537, 131073, 300001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        peer_start(p, 0, do_echo, sizes[i], 2);
        for (int round = 0; round < 2; round++) {
            /* The peer reads all before it answers, so one side talks at a time. */
            do_send(&p->self, sizes[i], 0);
            do_recv(&p->self, sizes[i], 0);
        }
        CHECK_EQ(peer_finish(p), 0);
    }
}

/* One read takes all that is there, however it came. */
static void all_that_is_there(struct pair *p)
{
    static unsigned char bytes[11000];
    peer_do(p, do_send, 8000, 0);
    CHECK_EQ(do_send(&p->self, 2, 0), 2);
    CHECK_EQ(peer_do(p, do_recv, 2, 0), 2);
    CHECK_EQ(do_send(&p->self, 1, 0), 1);
    peer_do(p, do_send, 4096, 0);
    CHECK_EQ(do_recv(&p->self, 4096, 0), 4096);
    peer_do(p, do_send, 99, 0);
    CHECK(await_readable(p->self.fd, 8099));
    CHECK_EQ(recv(p->self.fd, bytes, sizeof bytes, 0), 8099);
    CHECK(take_bytes(&p->self, bytes, 8099));
}

static const struct test tests[] = {
    {"all_that_is_there", all_that_is_there, FAMILIES},
    {"send_and_recv", send_and_recv, FAMILIES},
    {"write_and_read", write_and_read, 0},
    {"sendto_and_recvfrom", sendto_and_recvfrom, FAMILIES},
    {"sendmsg_and_recvmsg", sendmsg_and_recvmsg, 0},
    {"odd_vectors", odd_vectors, 0},
    {"writev_and_readv", writev_and_readv, 0},
    {"vector_limits", vector_limits, 0},
    {"preadv2_and_pwritev2", preadv2_and_pwritev2, 0},
    {"sendmmsg_and_recvmmsg", sendmmsg_and_recvmmsg, 0},
    {"recvmmsg_at_eof", recvmmsg_at_eof, 0},
    {"sends_of_nothing", sends_of_nothing, 0},
    {"reads_of_nothing", reads_of_nothing, 0},
    {"trunc_discards", trunc_discards, 0},
    {"trunc_and_peek", trunc_and_peek, 0},
    {"success_keeps_errno", success_keeps_errno, 0},
    {"bulk_out", bulk_out, ACTIVE_PEER},
    {"bulk_in", bulk_in, ACTIVE_PEER},
    {"bulk_both_ways", bulk_both_ways, PROCESS_ONLY | FAMILIES},
    {"bulk_by_turns", bulk_by_turns, 0},
    {"echo_sizes", echo_sizes, ACTIVE_PEER},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
