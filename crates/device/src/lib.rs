//! The software ISM device: memory that two processes hold, and its doorbells.
//!
//! IBM's ISM hardware moves bytes into a buffer (DMB) of another system and
//! raises an interrupt there. Here both systems are processes of one host, and
//! the hardware is three kinds of memory, all of them sealed memfds that no file
//! name leads to and that vanish with their last user:
//!
//! ```text
//!   slab   one per link group and side   written by its owner, read-only to the peer
//!          records (cursors, flags, arms) | CLC messages | rings
//!   wake   one per process               written by peers: hints only, never believed
//!          mail flag | channels (sleeping word + ready bitmap) | reply cells
//!   state  one per process               private; `sidestep ss` reads it through /proc
//!          header | history | services | slots (locks, ledger, options, counters) | untracked
//!          connections, which have no slot yet
//! ```
//!
//! *Each side writes only its own memory.* A DMB of ours therefore lies in the
//! slab of the peer that fills it, and what we report about it (our consumer
//! cursor) lies in ours. A hostile peer can garble its own half of the
//! conversation and nothing else.
//!
//! The "interrupt" is rung only when the other side said that it sleeps: a bit in
//! its ready bitmap and one eventfd ([`channel`]) for event loops, one byte on the
//! TCP connection ([`arm`]) for all other calls.
//!
//! `unsafe` stands here for mapping, system calls, memory of the program ([`program`]), and the copy in and out of ring
//! memory ([`ring`]). Which other crates have it, and for what, is said in
//! `docs/threat-model.md`.

#![no_std]

// By this name derived implementations know the crate, in itself as in others.
extern crate self as sidestep_device;
#[cfg(any(test, loom))]
extern crate std;

pub mod apart;
pub mod arm;
#[cfg(not(loom))]
pub mod cgroup;
pub mod channel;
#[cfg(not(loom))]
pub mod confinement;
pub mod copy;
#[cfg(not(loom))]
pub mod counts;
pub mod cursor;
#[cfg(not(loom))]
pub mod history;
#[cfg(not(loom))]
pub mod holders;
#[cfg(not(loom))]
pub mod inet_diag;
#[cfg(not(loom))]
pub mod keyed;
#[cfg(not(loom))]
pub mod late;
#[cfg(not(loom))]
pub mod lent;
pub mod lock;
#[cfg(not(loom))]
pub mod map;
#[cfg(not(loom))]
pub mod mirror;
pub mod names;
#[cfg(not(loom))]
mod netlink;
#[cfg(not(loom))]
pub mod onlooker;
#[cfg(not(loom))]
pub mod overcommit;
#[cfg(not(loom))]
pub mod program;
#[cfg(not(loom))]
pub mod reference;
#[cfg(not(loom))]
pub mod rights;
pub mod ring;
#[cfg(not(loom))]
pub mod route;
#[cfg(not(loom))]
pub mod services;
pub mod sizes;
#[cfg(not(loom))]
pub mod slab;
#[cfg(not(loom))]
pub mod sparse;
#[cfg(not(loom))]
pub mod stamp;
#[cfg(not(loom))]
pub mod state;
mod sync;
#[cfg(not(loom))]
pub mod sys;
#[cfg(not(loom))]
pub mod unix_diag;
pub mod untracked;
#[cfg(not(loom))]
pub mod valid;
#[cfg(not(loom))]
pub mod wake;
pub mod way;

/// Held by a test that forks or polls all descriptors, and by a test that sees what the end of one does.
///
/// A child has all descriptors of its parent until it ends or runs another program, and a poll keeps
/// what it looks at. What the kernel ends with the last of them, a lock, a name or a pipe, does not
/// end meanwhile.
#[cfg(all(test, not(loom)))]
fn alone_with_descriptors() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    // A test that failed is told already.
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
