//! Waking the other side: marks in its channels, its futexes, and the bell, which is a byte by TCP.

use crate::Errno;
use crate::connection::sleeper::{self, Counted};
use crate::connection::{spin, turns, words};
use crate::process::mail;
use crate::table::conn::Conn;
use crate::table::end::End;
use core::sync::atomic::Ordering;
use sidestep_device::counts::count;
use sidestep_device::state::flag;
use sidestep_device::sys;
use sidestep_proto::cut_over::{Answer as Said, Bell};

/// The byte that is a bell. Whatever else comes by TCP, no library has sent.
pub(super) const BELL: [u8; 1] = [b'!'];

/// After publishing something to read (with a sequentially consistent operation):
/// wakes the other side's readers and loops if they sleep. An error of the connection: see [`ring`].
pub(super) fn wake_readers(end: &End<'_>, cpu: u32) -> Option<Errno> {
    let waiting = &end.theirs.waiting;
    let channels = waiting.channels.load(Ordering::Relaxed);
    let mut unreachable = false;
    if channels != 0 {
        unreachable = mark(end, channels, cpu);
    }
    if end.slot.nap_rung.answer(&waiting.nap_arm) {
        end_nap(end);
    }
    if unreachable || end.slot.read_rung.is_asked(&waiting.read_arm) {
        return ring(end, || end.slot.read_rung.answer(&waiting.read_arm) || unreachable);
    }
    None
}

#[cold]
fn end_nap(conn: &Conn) {
    count(&conn.slot.counters.wakeups, 1);
    sys::futex_wake(sleeper::low_half(&conn.mine.sending.producer), 1);
}

/// Marks news in each of up to four channels, and wakes the loops that sleep. True: one is to be woken by TCP.
pub(crate) fn mark(end: &End<'_>, channels: u32, cpu: u32) -> bool {
    let mut by_tcp = false;
    for channel in channels.to_ne_bytes().into_iter().filter(|channel| *channel != 0) {
        let channel = usize::from(channel) - 1;
        if end.group.mark(channel, end.peer_slot, cpu) {
            by_tcp |= !wake_loop(end, channel, cpu);
        }
    }
    by_tcp
}

/// Rings the bell of a loop that sleeps. False: a bell by TCP is to wake it.
///
/// The kernel wakes a thread where it ran last. Beside strangers that is dear on another CPU than ours: an interrupt there, and a
/// thread that loses the CPU, 25 µs each way on a virtual machine. A bell by TCP tells the kernel that the ringer will sleep soon, so the loop
/// comes to this CPU, and the next bells find it here.
#[cold]
fn wake_loop(end: &End<'_>, channel: usize, cpu: u32) -> bool {
    let carries_bells = end.slot.flags.load(Ordering::Relaxed) & flag::SEND_SWITCHED != 0;
    if carries_bells && spin::are_strangers_known() {
        let mut governor = end.sock.send_wait.recall();
        let pulls = governor.pulls(end.peer_cpu() != cpu);
        end.sock.send_wait.keep(governor);
        if pulls {
            return false;
        }
    }
    let is_rung = mail::ring(end.group, channel);
    count(&end.slot.counters.wakeups, u64::from(is_rung));
    is_rung
}

/// Rings the universal bell: one byte on the TCP connection, if that carries bells only.
/// If it does not, the bytes of the program that it carries wake as well. `claims`: whether the
/// bell is this thread's to ring; asked when it can be rung.
///
/// What it was answered with, if that is an error of the connection: the kernel tells it to one call only, and
/// this was it.
#[cold]
pub(super) fn ring(end: &End<'_>, claims: impl Fn() -> bool) -> Option<Errno> {
    let (mut ringing, mut error) = (None, None);
    let _ = turns::carry_out(Bell::begin(), |bell| match bell {
        Bell::Begins => turns::done(|| ringing = Some(Counted::new(&end.slot.bells))),
        Bell::Looks | Bell::LooksAgain => {
            Some(Said::Is(end.slot.flags.load(Ordering::SeqCst) & flag::SEND_SWITCHED != 0))
        }
        Bell::Owes => turns::done(|| end.slot.flags.fetch_or(flag::BELL_OWED, Ordering::SeqCst)),
        Bell::Claims => Some(Said::Is(claims())),
        Bell::Sends => turns::done(|| {
            count(&end.slot.counters.wakeups, 1);
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            error = error_of(end.file().send(&BELL, flags));
        }),
        Bell::Ends => turns::done(|| ringing.take()),
        Bell::Over => None,
    });
    error
}

/// What a bell was answered with, if that is an error of the connection.
pub(super) fn error_of(rung: sys::Result) -> Option<Errno> {
    match rung {
        Ok(_) => None,
        // No room for one more: the peer will find those before it.
        Err(sys::Errno(libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS)) => None,
        Err(sys::Errno(errno)) => Some(errno),
    }
}

/// Bytes have come by TCP that are no part of the program's stream. If they are no bells
/// either, the peer's program has sent them past its library (by a system call of its
/// own), and they have no place in the stream any more: the connection is reset, and its
/// TCP end closed, for a thread that waits for an answer past the library, too.
pub(super) fn check_bells(end: &End<'_>, bytes: &[u8]) {
    if bytes.iter().any(|byte| *byte != BELL[0]) {
        words::reset_untold(end, &"bytes were sent past the library");
        let _ = end.file().call(|fd| sys::shutdown(fd, libc::SHUT_RDWR));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_that_finds_no_room_is_no_error_of_the_connection() {
        assert_eq!(error_of(Ok(1)), None);
        for errno in [libc::EAGAIN, libc::EINTR, libc::ENOMEM, libc::ENOBUFS] {
            assert_eq!(error_of(Err(sys::Errno(errno))), None);
        }
        for errno in [libc::EPIPE, libc::ECONNRESET, libc::ETIMEDOUT, libc::EHOSTUNREACH] {
            assert_eq!(error_of(Err(sys::Errno(errno))), Some(errno));
        }
    }
}
