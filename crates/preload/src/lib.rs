//! libsidestep.so: libc's socket names, answered by Sidestep's streams.
//!
//! `exports` is the table of names and has no logic: "ours or theirs?", one
//! look-up, and on to [`sidestep_socket`] or to libc. `real` finds the libc
//! behind us, `start` runs before the program's first constructor, `fork` is called around
//! all that copies a process, `vfork` is the one that does not, `exit` before it ends by itself. `stdio` gives `fdopen` a
//! stream that goes through the names above (a `cookie` stream), `duplicate` gives sockets other numbers, and
//! `standard_streams` those of a program to a connection that is put under them. `spawn` sees to programs that libc begins by
//! itself, `syscall` to calls by number, `seccomp` to filters of system calls, and `uring` to what liburing gives to the kernel.
//! `resolver` notes which name has which address, for rules of TLS.
//! `lending` is no name of libc's: it shows the gateway where bytes lie.
//!
//! No function here allocates, or changes `errno` on success. What unwinds through
//! them is the cancellation of a thread (`cancel` has how musl's threads end); panics abort.
//!
//! The one file is for programs of glibc and of musl: `build.rs` has how it is linked for that, `real` knows which it is.

mod cancel;
mod cookie;
mod duplicate;
mod errno;
mod exit;
mod exports;
mod fork;
mod lending;
#[cfg(target_arch = "x86_64")]
mod memcpy;
mod real;
mod resolver;
mod seccomp;
mod spawn;
mod standard_streams;
mod start;
mod stdio;
mod syscall;
mod uring;
mod vfork;
