//! `memcpy`, as libc has it for programs of today.
//!
//! The library asks for names without a version (`build.rs`), and for those glibc gives the oldest function. On
//! x86-64 that of `memcpy` is of 2011: it stands for what is now `memmove`, and is the plain one, whatever the
//! processor can do. A stream in shared memory is a seventh slower with it. `memmove` has never had another version,
//! is the best for the processor, and does all that `memcpy` must.

core::arch::global_asm!(
    ".pushsection .text.memcpy, \"ax\", @progbits",
    ".globl memcpy",
    // The linker binds our own calls to it; programs do not see it.
    ".hidden memcpy",
    ".type memcpy, @function",
    "memcpy:",
    "jmp *memmove@GOTPCREL(%rip)",
    ".size memcpy, . - memcpy",
    ".popsection",
    options(att_syntax),
);
