//! What socket options and `ioctl` do to connections in shared memory.
//!
//! The kernel's socket stays the program's, so it keeps most options, and most of them mean what they meant. Three
//! kinds are different:
//!
//! * *Ours*: what the kernel would act on, though only bells go by TCP (`SO_RCVLOWAT`, `TCP_NODELAY`, `TCP_CORK`,
//!   `TCP_NOTSENT_LOWAT`, `SO_PEEK_OFF`, `SO_OOBINLINE`). The slot has the program's wish, the kernel another value, and the program
//!   sees its own.
//! * *Told*: what the peer has to know, too (`SO_LINGER`).
//! * *TCP's alone*: what only TCP can do (`TCP_ULP` and its kind). A connection whose program sets one stays on TCP.

use crate::Errno;
use crate::connection::kept_options::{self, TCP_NOTSENT_LOWAT};
use crate::connection::{ends, readiness, sleeper, switch, urgent, wait, words};
use crate::process::owner::Held;
use crate::table::descriptors::Use;
use crate::table::end::End;
use crate::table::sock::{Phase, Sock};
use core::sync::atomic::Ordering;
use sidestep_device::state::flag;
use sidestep_device::sys::Unbroken;
use sidestep_proto::cut_over::Source;
use sidestep_proto::ends::State;
use sidestep_proto::fallback::ProgramDid;
use sidestep_proto::readiness::mask;

/// Mirrors what `F_SETFL` has set.
pub fn note_status_flags(sock: &Sock, flags: i32) {
    sock.set_nonblocking(flags & libc::O_NONBLOCK != 0);
    set_async(sock, flags & libc::O_ASYNC != 0);
}

/// Mirrors `O_ASYNC`: the kernel raises SIGIO when a bell arrives, so the peer
/// is asked to ring for every message.
pub fn set_async(sock: &Sock, on: bool) {
    let Some(slot) = sock.slot() else { return };
    let was_on = if on {
        slot.flags.fetch_or(flag::ASYNC, Ordering::SeqCst)
    } else {
        slot.flags.fetch_and(!flag::ASYNC, Ordering::SeqCst)
    };
    if let Some(conn) = sock.conn().filter(|_| on != (was_on & flag::ASYNC != 0)) {
        sleeper::withdraw_readers(conn);
    }
}

/// `FIONREAD`: bytes that a receive would find now.
pub fn readable_bytes(sock: &Use, fd: i32) -> Option<usize> {
    Some(readiness::countable(&End::of(sock, fd)?))
}

/// `TIOCOUTQ`: bytes sent that the peer has not read. `None`: ask the kernel.
pub fn unread_by_peer(sock: &Use) -> Option<usize> {
    let conn = sock.conn()?;
    if conn.slot.flags.load(Ordering::Acquire) & flag::SEND_SWITCHED == 0 {
        return None;
    }
    let producer = conn.mine.sending.producer.position();
    let claim = conn.theirs.receiving.consumer.claim();
    Some((producer.wrapping_sub(claim) as usize).min(conn.outgoing.len()))
}

/// `SIOCATMARK`. `None`: ask the kernel.
pub fn at_mark(sock: &Use, fd: i32) -> Option<bool> {
    let end = End::of(sock, fd)?;
    let _receiving = Held::enter(&end.slot.receive_lock);
    Some(match switch::settle(&end, &Unbroken::begin()) {
        Source::Ring => urgent::is_at_mark(&end),
        Source::Tcp => readiness::is_at_mark_from_tcp(&end),
    })
}

/// What is to happen with a socket option.
pub enum OptionAnswer {
    /// The kernel answers.
    Kernel,
    /// This integer.
    Value(i32),
    /// The kernel, except for the first byte: `tcpi_state`.
    FirstByte(u8),
    /// This error.
    Refused(Errno),
}

/// `TCP_ULP` and its kind: only TCP itself can do it.
const TCP_ONLY: [i32; 9] = [
    14, // TCP_MD5SIG
    19, // TCP_REPAIR
    23, // TCP_FASTOPEN
    30, // TCP_FASTOPEN_CONNECT
    31, // TCP_ULP
    32, // TCP_MD5SIG_EXT
    35, // TCP_ZEROCOPY_RECEIVE
    38, // TCP_AO_ADD_KEY
    40, // TCP_AO_INFO
];

const SOCKET_ONLY: [i32; 6] = [
    26, // SO_ATTACH_FILTER
    37, // SO_TIMESTAMPING
    47, // SO_MAX_PACING_RATE
    50, // SO_ATTACH_BPF
    60, // SO_ZEROCOPY
    61, // SO_TXTIME
];

/// Before `setsockopt` reaches the kernel.
pub fn before_set_option(sock: &Use, level: i32, name: i32, value: i32) -> OptionAnswer {
    if level == libc::IPPROTO_TCP
        && let (Some(bit), Some(slot), Phase::Smc) =
            (kept_options::delay_flag(name), sock.slot(), sock.phase())
    {
        kept_options::set_flag(slot, bit, value != 0);
        return OptionAnswer::Value(0);
    }
    if (level, name) == (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT)
        && let (Some(slot), Phase::Smc) = (sock.slot(), sock.phase())
    {
        slot.not_sent_low_water.store(value as u32, Ordering::Relaxed);
        return OptionAnswer::Value(0);
    }
    let tcp_only = (level == libc::IPPROTO_TCP && TCP_ONLY.contains(&name))
        || (level == libc::SOL_SOCKET && SOCKET_ONLY.contains(&name));
    if !tcp_only {
        return OptionAnswer::Kernel;
    }
    if sock.phase() == Phase::Smc {
        let errno = if level == libc::IPPROTO_TCP { libc::ENOPROTOOPT } else { libc::EOPNOTSUPP };
        return OptionAnswer::Refused(errno);
    }
    sock.tcp_only.store(true, Ordering::Relaxed);
    if sock.is_undecided() {
        sock.stay_plain(ProgramDid::OptionUnsupported.into());
    }
    OptionAnswer::Kernel
}

/// Whether an option may be one of those that [`before_set_option`] and [`after_set_option`]
/// have to know of before the connection is in shared memory.
#[must_use]
pub fn concerns_us(level: i32, name: i32) -> bool {
    match level {
        libc::IPPROTO_TCP => TCP_ONLY.contains(&name),
        libc::SOL_SOCKET => {
            !matches!(name, libc::SO_REUSEADDR | libc::SO_REUSEPORT | libc::SO_KEEPALIVE)
        }
        _ => false,
    }
}

/// After the kernel has accepted an option: what we mirror. `value` is its first
/// integer, `second` its second (`struct linger`).
pub fn after_set_option(sock: &Use, fd: i32, level: i32, name: i32, value: i32, second: i32) {
    if level != libc::SOL_SOCKET {
        return;
    }
    if name == libc::SO_RCVBUF || name == libc::SO_RCVBUFFORCE {
        sock.receive_buffer.store(value.max(0) as u32, Ordering::Relaxed);
    }
    if name == libc::SO_RCVTIMEO || name == SO_RCVTIMEO_NEW {
        sock.receive_time_out.forget();
    }
    let Some(slot) = sock.slot() else { return };
    let end = End::of(sock, fd);
    match name {
        libc::SO_RCVLOWAT => {
            slot.low_water.store(value.max(1) as u32, Ordering::Relaxed);
            if let Some(end) = end {
                let _ = end.file().set_option(level, name, 1);
                if readiness::mask_of(&end, mask::IN) & mask::IN != 0 {
                    crate::polling::epoll::note_edge(sock);
                }
            }
        }
        libc::SO_PEEK_OFF => {
            if let Some(end) = end {
                kept_options::note_peek_offset(&end, value);
            }
        }
        libc::SO_OOBINLINE => {
            urgent::note_wish(slot, value);
            if let Some(end) = end {
                urgent::keep_in_line(end.file(), true);
            }
        }
        libc::SO_LINGER => {
            if let Some(end) = end {
                words::note_linger(&end, value != 0 && second == 0);
            }
        }
        _ => {}
    }
}

/// `SO_RCVTIMEO` with 64 bits of seconds on every architecture, of `asm-generic/socket.h`.
const SO_RCVTIMEO_NEW: i32 = 66;

/// `getsockopt` of what we know better than the kernel.
pub fn get_option(sock: &Use, fd: i32, level: i32, name: i32) -> OptionAnswer {
    if (level, name) == (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) && kept_options::is_given(fd) {
        return OptionAnswer::Value(0);
    }
    let Some(end) = End::of(sock, fd) else { return OptionAnswer::Kernel };
    let slot = end.slot;
    if let (libc::IPPROTO_TCP, Some(bit)) = (level, kept_options::delay_flag(name)) {
        return OptionAnswer::Value(i32::from(slot.flags.load(Ordering::Relaxed) & bit != 0));
    }
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => OptionAnswer::Value(ends::take_error(&end)),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => {
            OptionAnswer::Value(slot.low_water.load(Ordering::Relaxed) as i32)
        }
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => {
            OptionAnswer::Value(i32::from(urgent::is_in_line(slot)))
        }
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) => {
            OptionAnswer::Value(slot.peek_offset.load(Ordering::Relaxed))
        }
        (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => {
            OptionAnswer::Value(slot.not_sent_low_water.load(Ordering::Relaxed) as i32)
        }
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            wait::ask_kernel(&end);
            match ends::state(&end) {
                State::Open => OptionAnswer::Kernel,
                state => OptionAnswer::FirstByte(state.of_tcp()),
            }
        }
        _ => OptionAnswer::Kernel,
    }
}
