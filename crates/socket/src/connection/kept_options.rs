//! Options that a connection in shared memory keeps beside the kernel, which has other values.

use crate::connection::{sleeper, urgent, words};
use crate::table::end::End;
use crate::table::file::File;
use core::sync::atomic::Ordering;
use core::time::Duration;
use sidestep_device::state::{Slot, flag};
use sidestep_device::sys;

/// When a blocking send gives up: `SO_SNDTIMEO` from now on.
pub(crate) fn send_deadline(file: File<'_>) -> Option<u64> {
    time_out(file, libc::SO_SNDTIMEO).map(|ns| sys::now_ns() + ns)
}

/// `SO_SNDTIMEO` or `SO_RCVTIMEO` in nanoseconds, as far as the clock counts them ([`sys::nanoseconds`]): the kernel
/// keeps seconds for a million times longer.
pub(super) fn time_out(file: File<'_>, name: i32) -> Option<u64> {
    let time: libc::timeval = file.option(libc::SOL_SOCKET, name).ok()?;
    let seconds = Duration::from_secs(time.tv_sec.max(0) as u64);
    let ns = sys::nanoseconds(seconds + Duration::from_micros(time.tv_usec.max(0) as u64));
    (ns != 0).then_some(ns)
}

/// Options that would delay bells: the program sees its own setting.
pub(crate) fn delay_flag(name: i32) -> Option<u32> {
    match name {
        libc::TCP_NODELAY => Some(flag::NO_DELAY),
        libc::TCP_CORK => Some(flag::CORK),
        _ => None,
    }
}

pub(crate) fn set_flag(slot: &Slot, bit: u32, on: bool) {
    if on {
        slot.flags.fetch_or(bit, Ordering::Relaxed);
    } else {
        slot.flags.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// `SO_PEEK_OFF` is kept here and not in the kernel, whose peeks are ours.
pub(crate) fn note_peek_offset(end: &End<'_>, offset: i32) {
    end.slot.peek_offset.store(offset, Ordering::Relaxed);
    if offset < 0 {
        end.slot.flags.fetch_and(!flag::PEEK_OFFSET, Ordering::Relaxed);
    } else {
        end.slot.flags.fetch_or(flag::PEEK_OFFSET, Ordering::Relaxed);
        let _ = end.file().set_option(libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1);
    }
}

/// `TCP_NOTSENT_LOWAT` of `linux/tcp.h`.
pub(crate) const TCP_NOTSENT_LOWAT: i32 = 25;

/// Its value on the TCP socket of a connection in shared memory. To the kernel it is as
/// good as none; to a program that finds the socket among its descriptors it says that
/// only bells come from it.
pub(crate) const MARK: i32 = 0x7f53_4d43;

/// Whether a socket is that of a connection which some process has moved to shared
/// memory.
pub(crate) fn is_marked(fd: i32) -> bool {
    sys::socket_option(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) == Ok(MARK)
}

/// Its value on the TCP socket of a connection that was passed on: see [`crate::rendezvous::passed`].
const GIVEN: i32 = 0x7f53_4749;

/// Whether a socket was passed on by a process with this library.
pub(crate) fn is_given(fd: i32) -> bool {
    sys::socket_option(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) == Ok(GIVEN)
}

/// Marks a socket so, or takes that mark off. False: the program uses the option.
pub(crate) fn mark_given(fd: i32, on: bool) -> bool {
    let (from, to) = if on { (0, GIVEN) } else { (GIVEN, 0) };
    let is: i32 = sys::socket_option(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT).unwrap_or(-1);
    is == to
        || (is == from
            && sys::set_socket_option(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, to).is_ok())
}

/// Options that were set before the connection moved.
pub(crate) fn carry_options_over(end: &End<'_>) {
    end.file().call(|fd| words::follow_linger_option(end, fd));
    let peek_offset = end.file().option(libc::SOL_SOCKET, libc::SO_PEEK_OFF).unwrap_or(-1);
    note_peek_offset(end, peek_offset);
    for (name, kernel) in [(libc::TCP_NODELAY, 1), (libc::TCP_CORK, 0)] {
        let was: i32 = end.file().option(libc::IPPROTO_TCP, name).unwrap_or_default();
        if let Some(bit) = delay_flag(name) {
            set_flag(end.slot, bit, was != 0);
        }
        if was != kernel {
            let _ = end.file().set_option(libc::IPPROTO_TCP, name, kernel);
        }
    }
    let was = end.file().option(libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT).unwrap_or(0);
    end.slot.not_sent_low_water.store(was, Ordering::Relaxed);
    let _ = end.file().set_option(libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, MARK);
    let status = end.file().status_flags();
    if status & libc::O_ASYNC != 0 {
        end.slot.flags.fetch_or(flag::ASYNC, Ordering::SeqCst);
        sleeper::withdraw_readers(end);
    }
}

/// Undoes what [`carry_options_over`] and its like have changed in the kernel.
pub(crate) fn give_options_back(end: &End<'_>) {
    let set = |name, value| {
        let _ = end.file().set_option(libc::SOL_SOCKET, name, value);
    };
    urgent::end_in_line(end);
    set(libc::SO_RCVLOWAT, end.slot.low_water.load(Ordering::Relaxed) as i32);
    let not_sent = end.slot.not_sent_low_water.load(Ordering::Relaxed) as i32;
    let _ = end.file().set_option(libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, not_sent);
    if end.slot.flags.load(Ordering::Relaxed) & flag::PEEK_OFFSET != 0 {
        set(libc::SO_PEEK_OFF, end.slot.peek_offset.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_device::map;
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_mark_spares_the_value_of_the_program() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        let is = || sys::socket_option::<i32>(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT).unwrap();
        let before = is();
        assert_eq!(before, 0, "the program has not used it");
        assert!(mark_given(fd, true) && is_given(fd) && !is_marked(fd));
        assert!(mark_given(fd, true) && is_given(fd), "it has the mark already");
        assert!(mark_given(fd, false) && !is_given(fd));
        assert!(mark_given(fd, false), "it has none");
        sys::set_socket_option(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, 4096).unwrap();
        assert!(!mark_given(fd, true) && !mark_given(fd, false));
        assert_eq!(is(), 4096);
        sys::set_socket_option(fd, libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT, MARK).unwrap();
        assert!(is_marked(fd) && !is_given(fd));
        assert!(!mark_given(fd, true) && is_marked(fd), "it is in shared memory");
    }

    #[test]
    fn each_option_that_delays_bells_has_a_bit_of_its_own() {
        let slot = map::zeroed::<Slot>().unwrap();
        let [no_delay, cork] =
            [libc::TCP_NODELAY, libc::TCP_CORK].map(|name| delay_flag(name).unwrap());
        assert_eq!((no_delay & cork, delay_flag(libc::TCP_QUICKACK)), (0, None));
        let flags = || slot.flags.load(Ordering::Relaxed);
        set_flag(slot, no_delay, true);
        set_flag(slot, cork, true);
        set_flag(slot, no_delay, true);
        assert_eq!(flags(), no_delay | cork);
        set_flag(slot, no_delay, false);
        assert_eq!(flags(), cork);
    }
}
