/* stdio.c: sockets behind FILE streams, as small servers and old clients use them. */
#include "support.h"

#include <stdarg.h>

static char line[70000];

/* The argument with which the program is one that says something and returns. */
#define LEAVE "--leave"

static long do_send_text(struct end *end, long text, long b)
{
    (void)b;
    return write(end->fd, (const char *)text, strlen((const char *)text));
}

/* Reads as many bytes as the text has; true if they are the same. */
static long do_expect_text(struct end *end, long text, long b)
{
    (void)b;
    char got[1000];
    size_t len = strlen((const char *)text);
    ssize_t n = recv(end->fd, got, len, MSG_WAITALL);
    return n == (ssize_t)len && memcmp(got, (const char *)text, len) == 0;
}

#define PEER_SAYS(p, text) CHECK_EQ(peer_do(p, do_send_text, (long)(text), 0), strlen(text))
#define PEER_HEARS(p, text) CHECK_EQ(peer_do(p, do_expect_text, (long)(text), 0), 1)

/* The stream owns the descriptor from here on. */
static FILE *stream_of(struct pair *p, const char *mode)
{
    FILE *stream = fdopen(p->self.fd, mode);
    CHECK(stream != NULL);
    CHECK_EQ(fileno(stream), p->self.fd);
    p->self.fd = -1;
    return stream;
}

static void read_lines(struct pair *p)
{
    FILE *stream = stream_of(p, "r");
    PEER_SAYS(p, "one\ntwo\nthree");
    CHECK(fgets(line, sizeof line, stream) != NULL);
    CHECK_EQ(strcmp(line, "one\n"), 0);
    CHECK(fgets(line, sizeof line, stream) != NULL);
    CHECK_EQ(strcmp(line, "two\n"), 0);
    PEER_SAYS(p, " and more\n");
    CHECK(fgets(line, sizeof line, stream) != NULL);
    CHECK_EQ(strcmp(line, "three and more\n"), 0);
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK(fgets(line, sizeof line, stream) == NULL);
    CHECK(feof(stream));
    CHECK(!ferror(stream));
    CHECK_EQ(fclose(stream), 0);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

static void write_lines(struct pair *p)
{
    FILE *stream = stream_of(p, "w");
    CHECK_EQ(fprintf(stream, "%s %d\n", "answer", 42), 10);
    /* Fully buffered: nothing goes before fflush(). */
    CHECK_EQ(peer_do(p, do_poll, POLLIN, 5), 0);
    CHECK_EQ(fflush(stream), 0);
    PEER_HEARS(p, "answer 42\n");
    CHECK_EQ(fputs("last words", stream) >= 0, 1);
    CHECK_EQ(fclose(stream), 0);
    PEER_HEARS(p, "last words");
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

static void line_buffered(struct pair *p)
{
    FILE *stream = stream_of(p, "w");
    CHECK_EQ(setvbuf(stream, NULL, _IOLBF, 0), 0);
    for (int i = 0; i < 20; i++) {
        fprintf(stream, "line\n");
        PEER_HEARS(p, "line\n");
    }
    fclose(stream);
}

static void unbuffered(struct pair *p)
{
    FILE *stream = stream_of(p, "w");
    CHECK_EQ(setvbuf(stream, NULL, _IONBF, 0), 0);
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(fputc('x', stream), 'x');
        PEER_HEARS(p, "x");
    }
    fclose(stream);
}

/* The usual way for both directions: a stream each, on a duplicate each. */
static void two_streams(struct pair *p)
{
    FILE *out = fdopen(dup(p->self.fd), "w");
    FILE *in = stream_of(p, "r");
    CHECK(out != NULL);
    for (int i = 0; i < 20; i++) {
        fprintf(out, "hello\n");
        fflush(out);
        PEER_HEARS(p, "hello\n");
        PEER_SAYS(p, "world\n");
        CHECK(fgets(line, sizeof line, in) != NULL);
        CHECK_EQ(strcmp(line, "world\n"), 0);
    }
    CHECK_EQ(fclose(out), 0);
    PEER_SAYS(p, "still open\n");
    CHECK(fgets(line, sizeof line, in) != NULL);
    CHECK_EQ(fclose(in), 0);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

/* One stream both ways: glibc lets a socket change direction after fflush(). */
static void one_stream_both_ways(struct pair *p)
{
    FILE *stream = stream_of(p, "r+");
    for (int i = 0; i < 20; i++) {
        fprintf(stream, "ask\n");
        CHECK_EQ(fflush(stream), 0);
        PEER_HEARS(p, "ask\n");
        PEER_SAYS(p, "reply\n");
        CHECK(fgets(line, sizeof line, stream) != NULL);
        CHECK_EQ(strcmp(line, "reply\n"), 0);
    }
    CHECK_EQ(fclose(stream), 0);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
}

static void characters(struct pair *p)
{
    FILE *stream = stream_of(p, "r");
    PEER_SAYS(p, "abc");
    CHECK_EQ(getc(stream), 'a');
    CHECK_EQ(fgetc(stream), 'b');
    CHECK_EQ(ungetc('B', stream), 'B');
    CHECK_EQ(getc_unlocked(stream), 'B');
    CHECK_EQ(getc(stream), 'c');
    PEER_SAYS(p, "17 words\n");
    int number = 0;
    CHECK_EQ(fscanf(stream, "%d %100s", &number, line), 2);
    CHECK_EQ(number, 17);
    CHECK_EQ(strcmp(line, "words"), 0);
    CHECK_EQ(getc(stream), '\n');
    peer_do(p, do_close, 0, 0);
    CHECK_EQ(getc(stream), EOF);
    fclose(stream);
}

static void by_getline(struct pair *p)
{
    FILE *stream = stream_of(p, "r");
    char *text = NULL;
    size_t size = 0;
    PEER_SAYS(p, "a line;another;rest");
    peer_do(p, do_shutdown, SHUT_WR, 0);
    CHECK_EQ(getdelim(&text, &size, ';', stream), 7);
    CHECK_EQ(getdelim(&text, &size, ';', stream), 8);
    CHECK_EQ(getline(&text, &size, stream), 4);
    CHECK_EQ(strcmp(text, "rest"), 0);
    CHECK_EQ(getline(&text, &size, stream), -1);
    free(text);
    fclose(stream);
}

enum { BULK = 1 << 20 };

static void bulk(struct pair *p)
{
    static unsigned char bytes[BULK];
    struct end end = p->self;
    FILE *in = fdopen(dup(p->self.fd), "r"), *out = stream_of(p, "w");
    pattern_fill(bytes, BULK, end.sent, end.send_salt);
    peer_start(p, 0, do_recv, BULK, 0);
    CHECK_EQ(fwrite(bytes, 1, BULK, out), BULK);
    CHECK_EQ(fflush(out), 0);
    CHECK_EQ(peer_finish(p), BULK);
    peer_start(p, 0, do_send, BULK, 0);
    CHECK_EQ(fread(bytes, 1, BULK, in), BULK);
    CHECK(take_bytes(&end, bytes, BULK));
    CHECK_EQ(peer_finish(p), BULK);
    fclose(in), fclose(out);
}

/* dprintf() writes at once and needs no stream. */
static void __attribute__((format(printf, 2, 3))) say(int fd, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    CHECK(vdprintf(fd, format, arguments) > 0);
    va_end(arguments);
}

static void descriptor_printf(struct pair *p)
{
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(dprintf(p->self.fd, "%s-%05d", "number", 42), 12);
        PEER_HEARS(p, "number-00042");
        say(p->self.fd, "%c", 'y');
        PEER_HEARS(p, "y");
    }
}

/* Errors come through: nothing to read on a non-blocking socket, and a broken pipe. */
static void errors(struct pair *p)
{
    int fd = p->self.fd;
    set_nonblock(fd, true);
    FILE *in = fdopen(dup(fd), "r"), *out = stream_of(p, "w");
    errno = 0;
    CHECK(fgets(line, sizeof line, in) == NULL);
    CHECK_EQ(errno, EAGAIN);
    CHECK(ferror(in));
    CHECK(!feof(in));
    clearerr(in);
    PEER_SAYS(p, "now\n");
    await_readable(fd, 4);
    CHECK(fgets(line, sizeof line, in) != NULL);
    shutdown(fd, SHUT_WR);
    fprintf(out, "too late");
    int before = sigpipes();
    errno = 0;
    CHECK_EQ(fflush(out), EOF);
    CHECK_EQ(errno, EPIPE);
    CHECK_EQ(sigpipes() - before, 1);
    fclose(in);
    fclose(out);
}

/* freopen() closes the socket and opens something else under the same stream. */
static void reopened(struct pair *p)
{
    FILE *stream = stream_of(p, "w");
    fprintf(stream, "before");
    stream = freopen("/dev/null", "w", stream);
    CHECK(stream != NULL);
    PEER_HEARS(p, "before");
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    fclose(stream);
}

/* Not a mode for a socket; and fdopen of nothing. */
static void refused(struct pair *p)
{
    errno = 0;
    CHECK(fdopen(p->self.fd, "x") == NULL);
    CHECK_EQ(errno, EINVAL);
    if (IS_GLIBC) {
        CHECK(fdopen(987, "r") == NULL);
        CHECK_EQ(errno, EBADF);
    }
    FILE *stream = stream_of(p, "r");
    CHECK_EQ(fseek(stream, 0, SEEK_SET), -1);
    CHECK_EQ(errno, ESPIPE);
    fclose(stream);
}

/* inetd style: the socket is standard input and output of a child. */
static void standard_streams(struct pair *p)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(p->self.fd, 0);
        dup2(p->self.fd, 1);
        close(p->self.fd);
        while (fgets(line, sizeof line, stdin)) {
            printf("heard %s", line);
            fflush(stdout);
        }
        printf("bye\n");
        fflush(stdout);
        _exit(0);
    }
    self_close(p);
    for (int i = 0; i < 10; i++) {
        PEER_SAYS(p, "hello\n");
        PEER_HEARS(p, "heard hello\n");
    }
    peer_do(p, do_shutdown, SHUT_WR, 0);
    PEER_HEARS(p, "bye\n");
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    CHECK_EQ(await_child(child), 0);
}

/* More than the stream's buffer, so that a part of it has gone and the rest is in there. */
enum { LEFT = 10000 };

/* Says LEFT bytes through a stream, and leaves the rest to the end of the process. */
static void say_and_leave(int fd, uint64_t position, unsigned salt)
{
    static unsigned char bytes[LEFT];
    FILE *stream = fdopen(fd, "w");
    pattern_fill(bytes, LEFT, position, salt);
    if (!stream || fwrite(bytes, 1, LEFT, stream) != LEFT) {
        _exit(1);
    }
}

static void hears_what_is_left(struct pair *p, pid_t child)
{
    self_close(p);
    CHECK_EQ(peer_do(p, do_recv, LEFT, 0), LEFT);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    CHECK_EQ(await_child(child), 0);
}

/* exit() flushes what nobody has flushed, and only then the connection ends. */
static void left_by_exit(struct pair *p)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        say_and_leave(p->self.fd, p->self.sent, p->self.send_salt);
        exit(0);
    }
    hears_what_is_left(p, child);
}

/* So does the end of main(), here in a program that was given the connection by exec. */
static void left_by_return(struct pair *p)
{
    fflush(NULL);
    char words[3][32];
    snprintf(words[0], sizeof words[0], "%d", p->self.fd);
    snprintf(words[1], sizeof words[1], "%llu", (unsigned long long)p->self.sent);
    snprintf(words[2], sizeof words[2], "%u", p->self.send_salt);
    pid_t child = fork();
    if (child == 0) {
        fcntl(p->self.fd, F_SETFD, 0);
        execl("/proc/self/exe", "stdio", LEAVE, words[0], words[1], words[2], (char *)NULL);
        _exit(1);
    }
    hears_what_is_left(p, child);
}

static const struct test tests[] = {
    {"read_lines", read_lines, FAMILIES},
    {"write_lines", write_lines, 0},
    {"line_buffered", line_buffered, 0},
    {"unbuffered", unbuffered, 0},
    {"two_streams", two_streams, 0},
    {"one_stream_both_ways", one_stream_both_ways, 0},
    {"characters", characters, 0},
    {"by_getline", by_getline, 0},
    {"bulk", bulk, ACTIVE_PEER},
    {"descriptor_printf", descriptor_printf, 0},
    {"errors", errors, 0},
    {"reopened", reopened, 0},
    {"refused", refused, 0},
    {"standard_streams", standard_streams, PROCESS_ONLY},
    {"left_by_exit", left_by_exit, PROCESS_ONLY},
    {"left_by_return", left_by_return, PROCESS_ONLY},
};

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], LEAVE) == 0) {
        say_and_leave(atoi(argv[2]), strtoull(argv[3], NULL, 10), (unsigned)strtoul(argv[4], NULL, 10));
        return 0;
    }
    return RUN_TESTS(argc, argv, tests);
}
