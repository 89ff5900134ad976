/* execl and its kin pass their arguments one by one; the hooks take them as an array.
 * They are variadic, which stable Rust cannot define: exports.rs jumps here with the
 * caller's registers and stack untouched. The array lies on the stack, as libc's own
 * does: the child of a vfork must not allocate in its parent's memory. */

#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

/* Arguments from `first` up to and with the null pointer. */
static size_t count(const char *first, va_list *arguments)
{
    size_t n = 1;
    for (const char *at = first; at; n++)
        at = va_arg(*arguments, const char *);
    return n;
}

static void collect(char **list, size_t n, const char *first, va_list *arguments)
{
    list[0] = (char *)first;
    for (size_t i = 1; i < n; i++)
        list[i] = va_arg(*arguments, char *);
}

int sidestep_execl(const char *path, const char *first, ...)
{
    va_list arguments;
    va_start(arguments, first);
    size_t n = count(first, &arguments);
    va_end(arguments);
    char *list[n];
    va_start(arguments, first);
    collect(list, n, first, &arguments);
    va_end(arguments);
    return execv(path, list);
}

int sidestep_execlp(const char *file, const char *first, ...)
{
    va_list arguments;
    va_start(arguments, first);
    size_t n = count(first, &arguments);
    va_end(arguments);
    char *list[n];
    va_start(arguments, first);
    collect(list, n, first, &arguments);
    va_end(arguments);
    return execvp(file, list);
}

/* The environment follows the null pointer. */
int sidestep_execle(const char *path, const char *first, ...)
{
    va_list arguments;
    va_start(arguments, first);
    size_t n = count(first, &arguments);
    va_end(arguments);
    char *list[n];
    va_start(arguments, first);
    collect(list, n, first, &arguments);
    char **environment = va_arg(arguments, char **);
    va_end(arguments);
    return execve(path, list, environment);
}
