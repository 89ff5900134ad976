/* Rust's library calls these by name. glibc has them since 2.33, and before in an archive that
 * programs are linked with; musl's loader since 1.2.4 under their other names only. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("hidden"))) int fstat64(int fd, struct stat64 *into)
{
    return (int)syscall(SYS_fstat, fd, into);
}

__attribute__((visibility("hidden"))) int stat64(const char *path, struct stat64 *into)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, into, 0);
}
