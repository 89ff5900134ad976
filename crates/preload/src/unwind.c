/* The unwinder, which the library needs where glibc cancels a thread: that unwinds the stack
 * by libgcc_s.so.1, and Rust's frames answer by calls of the same library. A program of musl
 * has no such file, and nothing there unwinds. So the library does not ask its loader for it,
 * and these functions, in the place of those that Rust is linked with, look for it when they
 * are called: whoever unwinds has loaded it.
 *
 * Each jumps on with its caller's arguments. The types are those of the Itanium C++ ABI for
 * exception handling, with a pointer in the place of what only passes. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

/* _URC_END_OF_STACK: where there is no unwinder, there is nothing to unwind. */
#define END_OF_STACK 5

static void *find(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen("libgcc_s.so.1", RTLD_LAZY);
    return library ? dlsym(library, name) : NULL;
}

/* Hidden: they are for this library, and the program keeps its own. */
#define NEXT(result, name, parameters, arguments, otherwise)                        \
    __attribute__((visibility("hidden"))) result name parameters;                   \
    result name parameters                                                          \
    {                                                                               \
        result(*next) parameters = (result(*) parameters)(uintptr_t)find(#name);    \
        return next ? next arguments : (otherwise);                                 \
    }

NEXT(int, _Unwind_RaiseException, (void *exception), (exception), END_OF_STACK)
NEXT(int, _Unwind_Backtrace, (void *visit, void *data), (visit, data), END_OF_STACK)
NEXT(uintptr_t, _Unwind_GetDataRelBase, (void *frame), (frame), 0)
NEXT(uintptr_t, _Unwind_GetTextRelBase, (void *frame), (frame), 0)
NEXT(uintptr_t, _Unwind_GetRegionStart, (void *frame), (frame), 0)
NEXT(uintptr_t, _Unwind_GetIP, (void *frame), (frame), 0)
NEXT(uintptr_t, _Unwind_GetIPInfo, (void *frame, int *before), (frame, before), 0)
NEXT(void *, _Unwind_GetLanguageSpecificData, (void *frame), (frame), NULL)
NEXT(int, _Unwind_SetGR, (void *frame, int number, uintptr_t value), (frame, number, value), 0)
NEXT(int, _Unwind_SetIP, (void *frame, uintptr_t value), (frame, value), 0)
NEXT(int, _Unwind_Resume, (void *exception), (exception), (abort(), 0))
