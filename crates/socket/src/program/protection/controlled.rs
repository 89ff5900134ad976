//! TLS that the program begins: a rule with `controlled = true`, and a program that knows of it.
//!
//! In protocols with STARTTLS both ends speak plain text, agree on TLS, and begin it in the middle of the connection. The program
//! says when, by an option of its socket ([`protection_status`](sidestep_wire::protection_status)), as AT-TLS's
//! `TTLS_INIT_CONNECTION` does.
//!
//! ```text
//!   program ── N: plain text, nothing of ours ── peer
//!                │ setsockopt: the hand-over of every rule
//!                v
//!   program ── H: plain text ── gateway ── N: records ── peer
//! ```
//!
//! The connection is the kernel's N until then, and stays on TCP. So the place where TLS begins is exact, and nothing is counted:
//! what the program has written lies in N's queue before anything of the gateway's, and what it has not read the gateway reads first.
//! If that is no handshake, the gateway refuses it.
//!
//! Once the program has asked, no byte of its goes by N:
//!
//! | What could send there, or read a record | |
//! |---|---|
//! | a call of another thread that has begun | EBUSY for the one that asks, and nothing has changed |
//! | another number of the descriptor | means H, too |
//! | another process that has it by `fork` | finds [a flag](flag::TLS_BEGUN) in the slot that they share: ECONNRESET |
//! | this one, if there is no gateway | ECONNREFUSED, and ECONNRESET from then on |

use crate::polling::epoll;
use crate::process::loan;
use crate::program::protection::asked;
use crate::program::protection::later::{LATER, begin_in_plain_text, has_begun_elsewhere, rule};
use crate::program::{hand_over, life};
use crate::rendezvous::gateway;
use crate::table::descriptors::{self, Use};
use crate::table::sock::{Phase, Sock};
use core::sync::atomic::Ordering;
use sidestep_device::confinement;
use sidestep_device::state::flag;
use sidestep_device::sys::Errno;
use sidestep_proto::protection::Role;
use sidestep_wire::protection_status::{START, State};

/// Before a plain call: if another process has begun TLS, this one has the connection no more.
#[inline]
pub(crate) fn obey(sock: &Use, fd: i32) {
    if sock.is_for_rule_later() && has_begun_elsewhere(sock) {
        lose(sock.sock(), fd);
    }
}

#[cold]
fn lose(sock: &'static Sock, fd: i32) {
    crate::log!(Warn, "another process has begun TLS on a connection: it is reset here");
    sock.set_rule(None);
    hand_over::give_up(sock, fd);
}

/// The program begins TLS, by this word. `None`: it is no TCP socket, and the kernel says so.
///
/// # Errors
///
/// As [`protection_status`](sidestep_wire::protection_status) has them.
#[must_use]
pub fn start(fd: i32, word: Result<i32, Errno>) -> Option<Result<(), Errno>> {
    match descriptors::sock(fd) {
        Some(sock) => _ = sock.sock().settle_offer(fd),
        // One that another program has given to this one.
        None => _ = life::register_unseen(fd)?,
    }
    // It may be another one now.
    let sock = descriptors::sock(fd)?;
    Some(match word {
        Ok(START) => begin(&sock, fd),
        Ok(_) => Err(Errno(libc::EINVAL)),
        Err(error) => Err(error),
    })
}

fn begin(sock: &Use, fd: i32) -> Result<(), Errno> {
    if sock.session().is_some() || sock.is_offered() {
        let state = asked::of_object(sock, fd)?.state;
        let is_protected = !matches!(state, State::Unprotected | State::NotBegun);
        return Err(Errno(if is_protected { libc::EALREADY } else { libc::EPERM }));
    }
    // Neither may call the gateway: a filter of system calls may end the process, or the memory is the parent's.
    if confinement::is_confined() {
        return Err(Errno(libc::EPERM));
    }
    if loan::is_borrowed_memory() {
        return Err(Errno(libc::EBUSY));
    }
    let (at, role) = rule(Some(sock), fd).inspect_err(|error| {
        if error.0 == libc::ECONNREFUSED {
            hand_over::give_up(sock.sock(), fd);
        }
    })?;
    if !sock.is_for_rule_later() {
        adopt(sock, fd, role)?;
    }
    if !gateway::is_present() {
        crate::log!(
            Error,
            "a program begins TLS, and there is no gateway: its connection ends; sidestep gateway"
        );
        hand_over::give_up(sock.sock(), fd);
        return Err(Errno(libc::ECONNREFUSED));
    }
    shut_others_out(sock, fd, at)?;
    hand_over::settle(sock.sock(), fd);
    let has_gone = descriptors::object(fd).is_some_and(|now| now.session().is_some());
    if has_gone { Ok(()) } else { Err(Errno(libc::ECONNRESET)) }
}

/// A connection that was begun elsewhere, or before there was the rule: from now on it is one that the rule has.
fn adopt(sock: &Use, fd: i32, role: Role) -> Result<(), Errno> {
    sock.is_server.store(role == Role::Inbound, Ordering::Relaxed);
    match sock.phase() {
        Phase::Fresh => begin_in_plain_text(sock.sock(), fd),
        _ => sock.keep_plain(LATER),
    }
    if sock.phase() != Phase::Plain {
        return Err(Errno(libc::EPERM));
    }
    sock.set_for_rule_later();
    Ok(())
}

/// From here on no byte of the program's goes by N, from whichever thread or process. What is to become of the connection is
/// decided next, and until then calls wait for that.
///
/// # Errors
///
/// ENOBUFS, EBUSY: nothing has changed. ECONNRESET: another process was first.
fn shut_others_out(sock: &Use, fd: i32, at: usize) -> Result<(), Errno> {
    let slot = sock.slot().ok_or(Errno(libc::ENOBUFS))?;
    // Who settles it meanwhile waits.
    let _agreeing = sock.agreeing();
    sock.offer(fd, hand_over::settle);
    // SeqCst: a call says that it is under way before it looks at the phase, which was changed before this.
    if sock.calls_under_way() > 0 {
        sock.set_phase(Phase::Plain);
        return Err(Errno(libc::EBUSY));
    }
    sock.set_rule(Some(at));
    if slot.flags.fetch_or(flag::TLS_BEGUN, Ordering::SeqCst) & flag::TLS_BEGUN != 0 {
        lose(sock.sock(), fd);
        return Err(Errno(libc::ECONNRESET));
    }
    epoll::watch_connecting(sock.sock());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::home::tests::alone;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    /// A connection that a rule has, as far as its object knows, and its peer.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let sock = life::register(stream.as_raw_fd(), false, false).unwrap();
        sock.set_for_rule_later();
        begin_in_plain_text(sock, stream.as_raw_fd());
        (stream, peer)
    }

    fn close(stream: TcpStream) {
        drop(life::before_close(stream.as_raw_fd()));
        drop(stream);
    }

    fn flags(sock: &Sock) -> u32 {
        sock.slot().unwrap().flags.load(Ordering::Relaxed)
    }

    /// It goes on as it was.
    fn still_talks(stream: &mut TcpStream, peer: &mut TcpStream) {
        stream.write_all(b"abc").unwrap();
        let mut heard = [0; 3];
        peer.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"abc");
    }

    #[test]
    fn what_no_rule_leaves_to_the_program_goes_on_as_it_was() {
        let _alone = alone();
        let (mut stream, mut peer) = connection();
        let fd = stream.as_raw_fd();
        for (word, errno) in [
            // Of this process there are no rules any more.
            (Ok(START), libc::EPERM),
            (Ok(2), libc::EINVAL),
            (Err(Errno(libc::EFAULT)), libc::EFAULT),
        ] {
            assert_eq!(start(fd, word), Some(Err(Errno(errno))));
            still_talks(&mut stream, &mut peer);
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(start(listener.as_raw_fd(), Ok(START)), Some(Err(Errno(libc::ENOTCONN))));
        drop(life::before_close(listener.as_raw_fd()));
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(start(datagrams.as_raw_fd(), Ok(START)), None);
        close(stream);
    }

    #[test]
    fn a_call_under_way_comes_first_and_nothing_has_changed() {
        let _alone = alone();
        let (mut stream, mut peer) = connection();
        let fd = stream.as_raw_fd();
        let sock = descriptors::object(fd).unwrap();
        let call = descriptors::object(fd).unwrap();
        assert_eq!(shut_others_out(&sock, fd, 0), Err(Errno(libc::EBUSY)));
        assert!(sock.phase() == Phase::Plain && sock.is_for_rule_later());
        assert_eq!(flags(&sock) & flag::TLS_BEGUN, 0);
        still_talks(&mut stream, &mut peer);
        drop(call);
        assert_eq!(shut_others_out(&sock, fd, 0), Ok(()));
        assert!(sock.is_offered() && sock.rule() == Some(0));
        drop(sock);
        close(stream);
    }

    #[test]
    fn where_another_process_has_begun_no_byte_goes_out_any_more() {
        let _alone = alone();
        for asks in [false, true] {
            let (mut stream, mut peer) = connection();
            let fd = stream.as_raw_fd();
            let sock = descriptors::object(fd).unwrap();
            obey(&sock, fd);
            still_talks(&mut stream, &mut peer);
            sock.slot().unwrap().flags.fetch_or(flag::TLS_BEGUN, Ordering::SeqCst);
            match asks {
                true => assert_eq!(shut_others_out(&sock, fd, 0), Err(Errno(libc::ECONNRESET))),
                false => obey(&sock, fd),
            }
            let ended = stream.read(&mut [0; 16]).unwrap_err();
            assert_eq!(ended.raw_os_error(), Some(libc::ECONNRESET));
            assert!(stream.write_all(b"abc").is_err());
            let mut heard = Vec::new();
            assert!(matches!(peer.read_to_end(&mut heard), Ok(0)), "{heard:?}");
            drop(sock);
            close(stream);
        }
    }
}
