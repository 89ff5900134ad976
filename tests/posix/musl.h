/* What musl has no function or name for, by number: included before each program that is
 * linked with musl. */
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define CLOSE_RANGE_CLOEXEC 4u
#define RWF_NOWAIT 8

static inline int close_range(unsigned first, unsigned last, int flags)
{
    return (int)syscall(SYS_close_range, first, last, flags);
}

static inline void closefrom(int first)
{
    close_range((unsigned)first, ~0u, 0);
}

static inline int epoll_pwait2(int set, struct epoll_event *events, int most,
                               const struct timespec *time, const sigset_t *mask)
{
    return (int)syscall(SYS_epoll_pwait2, set, events, most, time, mask, 8);
}

static inline ssize_t preadv2(int fd, const struct iovec *list, int count, off_t at, int flags)
{
    return syscall(SYS_preadv2, fd, list, count, at, 0, flags);
}

static inline ssize_t pwritev2(int fd, const struct iovec *list, int count, off_t at, int flags)
{
    return syscall(SYS_pwritev2, fd, list, count, at, 0, flags);
}
