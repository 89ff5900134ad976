//! Programs under a filter of system calls (seccomp).
//!
//! A filter that does not know a call of ours may kill the program for it. So under one nothing
//! moves, and the library makes ordinary calls alone ([`confinement`]):
//!
//! ```text
//!   there from the beginning   nothing is registered, nothing is shared: plain TCP
//!   installed by the program   what is undecided stays on TCP; what has moved goes on with
//!                              ordinary calls; what begins later is TCP
//! ```
//!
//! A filter from the beginning is one that the parent has left: a container's or a service's, which
//! mostly lets all pass. The operator can say so (`policy.trust_filters`). Of the program's own the library hears
//! before it is there, because it comes by `prctl` or by `syscall` of libc. Only what the program installs
//! by a system call instruction of its own is not seen.
//!
//! A program with libseccomp will install one, most likely, so its connections stay on TCP from the
//! beginning: nothing has moved then that a filter could be in the way of.

use crate::connection::{spin, words};
use crate::polling::epoll;
use crate::process::filter::{COMING, IS_LENT};
use crate::process::owner::Held;
use crate::process::pool::SharedLock;
use crate::process::{loan, owner};
use crate::program::hand_over;
use crate::rendezvous::tcp_option;
use crate::table::descriptors;
use crate::table::sock::{self, Phase};
use core::sync::atomic::Ordering;
use sidestep_device::confinement::{self, Confinement};
use sidestep_device::state::flag;
use sidestep_device::sys;
use sidestep_proto::fallback::{ProgramDid, Reason};

/// Makes the program's call by which it confines itself. If that fails, as it does for a program that only asks
/// what the kernel can, connections that are made afterwards may move.
pub fn confine(to: Confinement, call: impl FnOnce() -> i64) -> i64 {
    // One at a time: who fails must not take back what another has got.
    let _confining = Held::enter(CONFINING.get());
    let (before, is_lent) = (confinement::now(), loan::is_borrowed_memory());
    COMING.fetch_add(1, Ordering::SeqCst);
    if before == Confinement::None && !is_lent {
        prepare(to);
    }
    confinement::set(before.max(to));
    let result = call();
    if result < 0 {
        confinement::set(before);
        COMING.fetch_sub(1, Ordering::SeqCst);
    } else if is_lent {
        IS_LENT.store(true, Ordering::SeqCst);
    }
    result
}

static CONFINING: SharedLock = SharedLock::new();

/// While all calls can still be made: what is undecided stays on TCP, and what will be asked later is
/// asked now.
fn prepare(to: Confinement) {
    owner::me();
    spin::count_cpus();
    crate::log!(Info, "a filter of system calls comes: connections stay on TCP from now on");
    descriptors::for_each_sock(|fd, sock| {
        hand_over::conclude(fd);
        if sock.phase() == Phase::Listener {
            tcp_option::withdraw(sock, fd);
        }
        sock.keep_plain(Reason::Program(ProgramDid::Filtered));
    });
    if sock::has_begun() {
        epoll::make_room();
    }
    if to == Confinement::Strict {
        descriptors::for_each_sock(|fd, sock| {
            let Some(conn) = sock.conn() else { return };
            // Without a look at TCP its bytes and bells cannot be told apart.
            const BOTH: u32 = flag::SEND_SWITCHED | flag::RECEIVE_SWITCHED;
            if conn.slot.flags.load(Ordering::Acquire) & BOTH != BOTH {
                words::reset_untold(
                    conn,
                    &"it is half moved, and the program confines itself to read and write",
                );
                let _ = sys::shutdown(fd, libc::SHUT_RDWR);
            }
        });
    }
}
