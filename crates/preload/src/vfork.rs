//! `vfork`, whose child runs in our memory, on our stack, until it calls `exec`.
//!
//! The function returns twice to the same place of the same stack. What the child does after
//! the first return overwrites what lay there, so between the two nothing may be kept in
//! memory below the caller's frame: the address to return to waits in a register, which the
//! kernel gives back to both processes.

use crate::errno::set_errno;
use sidestep_socket::process::loan;
use sidestep_socket::program;

/// `vfork(2)`.
///
/// # Safety
/// As libc's: the child calls only what may be called there.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> libc::pid_t {
    core::arch::naked_asm!(
        // The stack is aligned for a call when the address to return to was pushed once more.
        "sub rsp, 8",
        "call {lend}",
        "add rsp, 8",
        "pop rdx",
        "mov eax, {vfork}",
        "syscall",
        "push rdx",
        "test eax, eax",
        "jz 2f",
        "mov rdi, rax",
        "jmp {parent}",
        "2: ret",
        lend = sym lend,
        parent = sym in_parent,
        vfork = const libc::SYS_vfork,
    );
}

/// `vfork(2)`.
///
/// # Safety
/// As libc's: the child calls only what may be called there.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> libc::pid_t {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, -16]!",
        "bl {lend}",
        "ldp x29, x30, [sp], 16",
        "mov x0, {flags}",
        "mov x1, 0",
        "mov x8, {clone}",
        "svc 0",
        "cbz x0, 2f",
        "b {parent}",
        "2: ret",
        lend = sym lend,
        parent = sym in_parent,
        flags = const libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
        clone = const libc::SYS_clone,
    );
}

extern "C" fn lend() {
    program::fork::lend_memory();
}

/// The kernel's answer, a child or an error, as libc gives it.
extern "C" fn in_parent(answer: i64) -> libc::pid_t {
    loan::end_loan();
    if answer < 0 {
        set_errno(-answer as i32);
        return -1;
    }
    answer as libc::pid_t
}
