/*
 * surroundings.c: a process that changes what is around it, with connections open: its
 * root, its user, its namespaces, and the ways to make children that libc's fork handlers
 * do not see. The connections go on, and new ones can be made.
 *
 * What only root may do is tried as root, and said to be left out otherwise.
 */
#include "support.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { ROUNDS = 20, NOBODY = 65534 };

static void talk(struct pair *p)
{
    for (int i = 1; i <= ROUNDS; i++) {
        CHECK_EQ(do_send(&p->self, i * 10, 0), i * 10);
        CHECK_EQ(peer_do(p, do_recv, i * 10, 0), i * 10);
        CHECK_EQ(peer_do(p, do_send, i * 10, 0), i * 10);
        CHECK_EQ(do_recv(&p->self, i * 10, 0), i * 10);
    }
}

static void talk_on_a_new_one(void)
{
    struct pair made;
    if (CHECK(pair_open(&made, (struct setting){.place = OTHER_PROCESS, .client = true}))) {
        talk(&made);
        pair_close(&made);
    }
}

/* In a child, because there is no way back: a connection that has moved, a change, the
 * same connection, and one that is made then. */
static void across(bool change(void))
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct pair made;
        if (CHECK(pair_open(&made, (struct setting){.place = OTHER_PROCESS, .warm = true}))) {
            talk(&made);
            if (CHECK(change())) {
                talk(&made);
                talk_on_a_new_one();
            }
            pair_close(&made);
        }
        _exit(0);
    }
    CHECK_EQ(await_child(child), 0);
}

static bool is_root(const char *what)
{
    if (geteuid() == 0)
        return true;
    fprintf(stderr, "surroundings.c: without root, %s is left out\n", what);
    return false;
}

/* ---- root folder and user ---------------------------------------------------------- */

static bool change_root(void)
{
    char empty[] = "/tmp/surroundings-XXXXXX";
    return mkdtemp(empty) && chroot(empty) == 0 && chdir("/") == 0 && access("/proc", F_OK) != 0;
}

static void in_an_empty_root(struct pair *p)
{
    (void)p;
    if (is_root("chroot"))
        across(change_root);
}

static bool become_nobody(void)
{
    return setgid(NOBODY) == 0 && setuid(NOBODY) == 0;
}

static void as_another_user(struct pair *p)
{
    (void)p;
    if (is_root("setuid"))
        across(become_nobody);
}

/* ---- namespaces ---------------------------------------------------------------------- */

static bool unshare_files(void)
{
    return unshare(CLONE_FILES | CLONE_FS) == 0;
}

static void with_files_of_its_own(struct pair *p)
{
    (void)p;
    across(unshare_files);
}

static bool raise_loopback(void)
{
    struct {
        char name[16];
        short flags;
        char rest[64];
    } request = {.name = "lo", .flags = 1 /* IFF_UP */};
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    bool is_up = ioctl(any, SIOCSIFFLAGS, &request) == 0;
    return close(any) == 0 && is_up;
}

static bool unshare_network(void)
{
    return unshare(CLONE_NEWNET) == 0 && raise_loopback();
}

/* The old connection is one of the old network. */
static void in_another_network(struct pair *p)
{
    (void)p;
    if (is_root("unshare"))
        across(unshare_network);
}

static bool unshare_mounts(void)
{
    return unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC) == 0;
}

static void with_mounts_of_its_own(struct pair *p)
{
    (void)p;
    if (is_root("unshare"))
        across(unshare_mounts);
}

/* Children are numbered anew, and the first is 1; connections are used on both sides of
 * the border. */
static void in_another_numbering(struct pair *p)
{
    if (!is_root("unshare"))
        return;
    fflush(NULL);
    pid_t outer = fork();
    if (outer == 0) {
        CHECK_EQ(unshare(CLONE_NEWPID), 0);
        pid_t inner = fork();
        if (inner == 0) {
            CHECK_EQ(getpid(), 1);
            talk(p);
            talk_on_a_new_one();
            _exit(0);
        }
        CHECK_EQ(await_child(inner), 0);
        _exit(0);
    }
    CHECK_EQ(await_child(outer), 0);
}

/* ---- children that no fork handler sees ----------------------------------------------- */

/* The end lives in shared memory, so that both processes count the same positions. */
static struct end *shared_end(struct pair *p)
{
    struct end *end = shared_scratch();
    *end = p->self;
    return end;
}

static int work(void *argument)
{
    struct end *end = argument;
    CHECK_EQ(do_send(end, 100, 0), 100);
    CHECK_EQ(do_recv(end, 40, 0), 40);
    close(end->fd);
    return 0;
}

/* Goes on when the parent has closed already. */
static int work_alone(void *argument)
{
    struct end *end = argument;
    sleep_ms(50);
    for (int i = 0; i < ROUNDS; i++)
        CHECK_EQ(do_send(end, 100, 0), 100);
    return 0;
}

typedef pid_t maker(int task(void *), struct end *end);

/* The child works and closes, which ends nothing: we go on. Then another goes on, and
 * the end of the connection is its end. */
static void share_with_a_child(struct pair *p, maker *make)
{
    struct end *end = shared_end(p);
    fflush(NULL);
    for (int i = 0; i < 3; i++) {
        pid_t child = make(work, end);
        if (!CHECK(child > 0))
            return;
        CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
        CHECK_EQ(peer_do(p, do_send, 100, 0), 100);
        CHECK_EQ(await_child(child), 0);
        CHECK_EQ(do_recv(end, 60, 0), 60);
        CHECK_EQ(do_send(end, 10, 0), 10);
        CHECK_EQ(peer_do(p, do_recv, 10, 0), 10);
    }
    pid_t child = make(work_alone, end);
    self_close(p);
    CHECK_EQ(peer_do(p, do_recv, 100 * ROUNDS, 0), 100 * ROUNDS);
    CHECK_EQ(peer_do(p, do_recv_eof, 0, 0), 0);
    CHECK_EQ(await_child(child), 0);
}

static pid_t by_clone(int task(void *), struct end *end)
{
    static char stack[64 << 10] __attribute__((aligned(16)));
    return clone(task, stack + sizeof stack, SIGCHLD, end);
}

static void child_of_clone(struct pair *p)
{
    share_with_a_child(p, by_clone);
}

static pid_t by_Fork(int task(void *), struct end *end)
{
    pid_t child = _Fork();
    if (child == 0)
        _exit(task(end));
    return child;
}

static void child_of_Fork(struct pair *p)
{
    share_with_a_child(p, by_Fork);
}

static pid_t by_system_call(int task(void *), struct end *end)
{
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        _exit(task(end));
    return child;
}

static void child_of_a_system_call(struct pair *p)
{
    share_with_a_child(p, by_system_call);
}

/* A thread made by clone shares everything; it is no child. */
static int thread_work(void *argument)
{
    struct end *end = argument;
    CHECK_EQ(do_send(end, 100, 0), 100);
    return 0;
}

static void thread_of_clone(struct pair *p)
{
    size_t size = 256 << 10;
    char *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int flags = CLONE_VM | CLONE_FILES | CLONE_FS | CLONE_VFORK | SIGCHLD;
    pid_t child = clone(thread_work, stack + size, flags, &p->self);
    CHECK_EQ(await_child(child), 0);
    CHECK_EQ(peer_do(p, do_recv, 100, 0), 100);
    talk(p);
    munmap(stack, size);
}

static const struct test tests[] = {
    {"in_an_empty_root", in_an_empty_root, ALONE},
    {"as_another_user", as_another_user, ALONE},
    {"with_files_of_its_own", with_files_of_its_own, ALONE},
    {"in_another_network", in_another_network, ALONE},
    {"with_mounts_of_its_own", with_mounts_of_its_own, ALONE},
    {"in_another_numbering", in_another_numbering, PROCESS_ONLY},
    {"child_of_clone", child_of_clone, PROCESS_ONLY},
    {"child_of_Fork", child_of_Fork, PROCESS_ONLY},
    {"child_of_a_system_call", child_of_a_system_call, PROCESS_ONLY},
    {"thread_of_clone", thread_of_clone, PROCESS_ONLY},
};

int main(int argc, char **argv)
{
    return RUN_TESTS(argc, argv, tests);
}
