/* dprintf and its kin write to a descriptor inside libc, where no hook sees it.
 * They are variadic, which stable Rust cannot define: exports.rs jumps here with
 * the caller's registers and stack untouched. */

#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Writes everything, as dprintf does; returns the length or -1. */
static int print(int fd, const char *format, va_list arguments)
{
    char *text = NULL;
    int length = vasprintf(&text, format, arguments);
    int written = 0;
    while (written < length) {
        ssize_t n = write(fd, text + written, (size_t)(length - written));
        if (n < 0) {
            length = -1;
            break;
        }
        written += (int)n;
    }
    free(text);
    return length;
}

int sidestep_vdprintf(int fd, const char *format, va_list arguments)
{
    return print(fd, format, arguments);
}

int sidestep_vdprintf_chk(int fd, int flag, const char *format, va_list arguments)
{
    (void)flag;
    return print(fd, format, arguments);
}

int sidestep_dprintf(int fd, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = print(fd, format, arguments);
    va_end(arguments);
    return length;
}

int sidestep_dprintf_chk(int fd, int flag, const char *format, ...)
{
    va_list arguments;
    (void)flag;
    va_start(arguments, format);
    int length = print(fd, format, arguments);
    va_end(arguments);
    return length;
}
