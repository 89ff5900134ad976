/* scribbler.so: makes any program under Sidestep a hostile peer.
 *
 * Preloaded beside the library, it starts a thread that waits for the shared
 * memory of the process and writes into all of it that the process may write:
 * its own slab (which its peers read) and the wake memory of its peers.
 *
 *   HOSTILE_WHAT   all         anything, in bursts
 *                  owner       the same, and into what its peers alone should write: it takes the
 *                              slabs that it was shown, gives their files a mode, and opens them anew
 *                  clc         the agreement only, all the time: CLC messages,
 *                              ring offset and length, token, phase, RMBE length
 *                  box, ring, token, phase, rmbe    one of these
 *   HOSTILE_SEED   a number
 *   HOSTILE_AFTER  milliseconds to leave in peace (0)
 *
 * Offsets are those of crates/device/src/{slab,wake,channel}.rs.
 */
#include "common.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PAGE 4096
#define SLOTS 16384
#define RECORDS_AT PAGE
#define RECORD_LEN 256
#define CLC_AT (RECORDS_AT + SLOTS * RECORD_LEN)
#define CLC_LEN 512
#define RINGS_AT (16 << 20)
/* How many slots and how much of the rings a short-lived process uses. */
#define SLOTS_USED 64
#define RINGS_USED (4 << 20)
#define CHANNELS_AT PAGE
#define CHANNEL_STRIDE (72 << 10)
#define CHANNEL_LEN (48 + 256 * 8 + 16384 * 4)
#define CELLS_AT (5 << 20)
#define MAPPINGS_MAX 64

/* Words of a record. */
enum {
    PRODUCER = 0, SWITCH = 8, URGENT = 16, CPU = 24, FLAGS = 28, CLOSES = 32,
    CONSUMER = 64, READ_ARM = 128, WRITE_ARM = 132, CHANNELS = 136, WANTED = 140,
    PHASE = 192, PEER_SLOT = 196, RING_AT = 200, RING_LEN = 208, RMBE_LEN = 212,
    TOKEN = 216, COOKIE = 232,
};

static uint64_t state;
/* Mappings of our own: those of the library end with their link groups. */
static char *slabs[MAPPINGS_MAX], *wakes[MAPPINGS_MAX];
static size_t slab_lens[MAPPINGS_MAX], wake_lens[MAPPINGS_MAX];
static int slab_count, wake_count;

static uint64_t below(uint64_t bound)
{
    return next_random(&state) % bound;
}

static void put32(char *at, uint32_t value)
{
    __atomic_store_n((uint32_t *)at, value, __ATOMIC_RELAXED);
}

static void put64(char *at, uint64_t value)
{
    __atomic_store_n((uint64_t *)at, value, __ATOMIC_RELAXED);
}

static uint64_t get64(char *at)
{
    return __atomic_load_n((uint64_t *)at, __ATOMIC_RELAXED);
}

/* A number somebody might trip over. `near` is a plausible one. */
static uint64_t nasty(uint64_t near)
{
    switch (below(8)) {
    case 0:
        return next_random(&state);
    case 1:
        return 0;
    case 2:
        return UINT64_MAX - below(3);
    case 3:
        return near + below(5) - 2;
    case 4:
        return near + (1u << 16) - 2 + below(5);
    case 5:
        return below(1 << 20);
    case 6:
        return 1ull << below(64);
    default:
        return near + below(1 << 17) - (1 << 16);
    }
}

static void forget_mappings(void)
{
    while (slab_count > 0) {
        slab_count--;
        munmap(slabs[slab_count], slab_lens[slab_count]);
    }
    while (wake_count > 0) {
        wake_count--;
        munmap(wakes[wake_count], wake_lens[wake_count]);
    }
}

/* Maps what is mapped at `start` once more, into the next of `places`. */
static void map_again(unsigned long start, size_t len, char **places, size_t *lens, int *count)
{
    /* An old length of 0: the pages stay where they are, too. */
    char *place = *count < MAPPINGS_MAX ? mremap((char *)start, 0, len, MREMAP_MAYMOVE) : MAP_FAILED;
    if (place == MAP_FAILED)
        return;
    places[*count] = place;
    lens[(*count)++] = len;
}

static void find_mappings(void)
{
    forget_mappings();
    FILE *maps = fopen("/proc/self/maps", "re");
    struct { unsigned long start, end; bool is_slab; } found[2 * MAPPINGS_MAX];
    int count = 0;
    char line[512];
    while (maps != NULL && count < 2 * MAPPINGS_MAX && fgets(line, sizeof line, maps) != NULL) {
        char mode[8];
        if (sscanf(line, "%lx-%lx %7s", &found[count].start, &found[count].end, mode) != 3)
            continue;
        found[count].is_slab = strstr(line, "memfd:sidestep-slab") != NULL;
        bool is_ours = found[count].is_slab || strstr(line, "memfd:sidestep-wake") != NULL;
        count += is_ours && strcmp(mode, "rw-s") == 0;
    }
    if (maps != NULL)
        fclose(maps);
    /* Only now: what is mapped again would be found again. */
    for (int i = 0; i < count; i++) {
        size_t len = found[i].end - found[i].start;
        if (found[i].is_slab)
            map_again(found[i].start, len, slabs, slab_lens, &slab_count);
        else
            map_again(found[i].start, len, wakes, wake_lens, &wake_count);
    }
}

/* Maps a slab of which we have a descriptor for reading. Its file belongs to our user. */
static void open_for_writing(const char *name)
{
    char path[300], target[64] = "";
    struct stat file;
    snprintf(path, sizeof path, "/proc/self/fd/%s", name);
    if (readlink(path, target, sizeof target - 1) < 0 || strstr(target, "memfd:sidestep-slab") == NULL)
        return;
    chmod(path, 0600);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &file) != 0 || slab_count == MAPPINGS_MAX)
        return;
    size_t len = (size_t)file.st_size;
    char *place = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (place == MAP_FAILED)
        return;
    slabs[slab_count] = place;
    slab_lens[slab_count++] = len;
}

/* Beside what we were given: the slabs of others, and ours once more. */
static void find_files(void)
{
    DIR *all = opendir("/proc/self/fd");
    struct dirent *entry;
    while (all != NULL && (entry = readdir(all)) != NULL)
        open_for_writing(entry->d_name);
    if (all != NULL)
        closedir(all);
}

static char *some_record(char *slab, size_t *slot)
{
    *slot = below(SLOTS_USED);
    return slab + RECORDS_AT + *slot * RECORD_LEN;
}

static void scribble_cursors(char *record)
{
    static const int words[] = {PRODUCER, CONSUMER, PRODUCER, CONSUMER, SWITCH, URGENT};
    int word = words[below(6)];
    put64(record + word, nasty(get64(record + (below(2) ? PRODUCER : CONSUMER))));
}

static void scribble_state(char *record)
{
    static const int words[] = {FLAGS, CLOSES, CPU, READ_ARM, WRITE_ARM, CHANNELS, WANTED};
    int word = words[below(7)];
    put32(record + word, (uint32_t)(word == FLAGS ? below(16) : nasty(1)));
}

static void scribble_identity(char *record)
{
    switch (below(7)) {
    case 0:
        return put32(record + PHASE, (uint32_t)nasty(below(7)));
    case 1:
        return put32(record + PEER_SLOT, (uint32_t)nasty(below(SLOTS)));
    case 2:
        return put64(record + RING_AT, nasty(RINGS_AT));
    case 3:
        return put32(record + RING_LEN, (uint32_t)nasty(65536));
    case 4:
        return put32(record + RMBE_LEN, (uint32_t)nasty(65536));
    default:
        return put64(record + TOKEN + 8 * below(3), nasty(0));
    }
}

static void scribble_box(char *slab, size_t slot)
{
    char *box = slab + CLC_AT + slot * CLC_LEN;
    uint64_t old = get64(box + 8 * (1 + below(20)));
    if (below(4) == 0)
        put64(box, nasty(100));
    else
        put64(box + 8 * (1 + below(20)), old ^ (1ull << below(64)));
}

static void scribble_wake(char *wake)
{
    char *channel = wake + CHANNELS_AT + below(4) * CHANNEL_STRIDE;
    switch (below(6)) {
    case 0:
        return put32(wake, (uint32_t)below(2));
    case 1:
        return put32(channel, (uint32_t)below(2));
    case 2: /* Everybody's sleeping words and ready bits: as if all were awake. */
        return (void)memset(channel, 0, CHANNEL_LEN);
    case 3:
        return (void)memset(channel + 8, 0xff, CHANNEL_LEN - 8);
    case 4:
        return put64(channel + 8 * below(CHANNEL_LEN / 8), next_random(&state));
    default:
        return put64(wake + CELLS_AT + 8 * below(2 * SLOTS_USED), nasty(below(SLOTS_USED)));
    }
}

static void scribble_anything(void)
{
    uint64_t dice = below(wake_count > 0 ? 10 : 8);
    if (dice >= 8)
        return scribble_wake(wakes[below((uint64_t)wake_count)]);
    size_t slot;
    char *slab = slabs[below((uint64_t)slab_count)], *record = some_record(slab, &slot);
    if (dice < 2)
        return scribble_cursors(record);
    if (dice < 4)
        return scribble_state(record);
    if (dice < 5)
        return scribble_identity(record);
    if (dice < 6)
        return scribble_box(slab, slot);
    put64(slab + RINGS_AT + 8 * below(RINGS_USED / 8), next_random(&state));
}

/* One field of the agreement, wrong in all slots. */
static void garble(const char *what)
{
    char *slab = slabs[below((uint64_t)slab_count)];
    uint64_t value = nasty(RINGS_AT + 1);
    for (size_t slot = 0; slot < SLOTS_USED; slot++) {
        char *record = slab + RECORDS_AT + slot * RECORD_LEN;
        char *box = slab + CLC_AT + slot * CLC_LEN;
        if (strcmp(what, "box") == 0)
            put64(box + 8 * below(24), value);
        else if (strcmp(what, "ring") == 0)
            put64(record + RING_AT, value | 1), put32(record + RING_LEN, (uint32_t)value);
        else if (strcmp(what, "token") == 0)
            put64(record + TOKEN, value);
        else if (strcmp(what, "phase") == 0)
            put32(record + PHASE, (uint32_t)(value << 8 | below(7)));
        else
            put32(record + RMBE_LEN, (uint32_t)value | 1);
    }
}

static void *scribble(void *argument)
{
    static const char *const fields[] = {"box", "ring", "token", "phase", "rmbe"};
    const char *what = argument;
    bool is_owner = strcmp(what, "owner") == 0;
    bool all = is_owner || strcmp(what, "all") == 0, any = strcmp(what, "clc") == 0;
    const char *after = getenv("HOSTILE_AFTER");
    usleep(after != NULL ? (unsigned)atoi(after) * 1000 : 0);
    for (;;) {
        find_mappings();
        if (is_owner)
            find_files();
        if (slab_count == 0) {
            usleep(50);
            continue;
        }
        double look_again = now_s() + 0.05;
        while (now_s() < look_again) {
            for (uint64_t burst = all ? below(200) : 20; burst > 0; burst--) {
                if (all)
                    scribble_anything();
                else
                    garble(any ? fields[below(5)] : what);
            }
            if (all && below(2) == 0)
                usleep((unsigned)below(3000));
        }
    }
    return NULL;
}

__attribute__((constructor)) static void start(void)
{
    const char *what = getenv("HOSTILE_WHAT"), *seed = getenv("HOSTILE_SEED");
    pthread_t thread;
    if (what == NULL)
        return;
    state = seed != NULL ? strtoull(seed, NULL, 10) : 1;
    pthread_create(&thread, NULL, scribble, (void *)what);
}
