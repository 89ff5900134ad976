//! Reading a socket without passing an urgent byte by.
//!
//! Both sockets of a session have urgent bytes in line (`SO_OOBINLINE`), where they keep their place.
//! What is left to find out is which bytes they are, and there a read helps only in part:
//!
//! ```text
//!        mark                    mark
//!   a b c  !              a read stops before it:   a b c | !
//!   ^ next to be read     a read from it does not:  ! d e f
//! ```
//!
//! So the socket is asked whether it stands at the mark. The answer holds for a byte that is there already,
//! because a mark arrives with its byte or before it, in TCP as in shared memory; a byte that comes a moment
//! later may be one that was not asked about. Hence the order: a look, the question, the read.

use std::ffi::c_int;
use std::net::TcpStream;

use rustix::io::Errno;
use rustix::ioctl::{self, Getter, Opcode};
use rustix::net::{RecvFlags, recv};

/// `asm-generic/sockios.h`.
const SIOCATMARK: Opcode = 0x8905;

/// What reading has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intake {
    /// So many bytes. An urgent byte comes by itself.
    Bytes { count: usize, is_urgent: bool },
    /// There will be no more.
    End,
    /// There are none for now.
    Nothing,
}

/// Reads as much as is there and `room` has room for, but an urgent byte by itself. Never waits.
///
/// # Errors
///
/// What `recv` says of the connection.
pub(crate) fn take(socket: &TcpStream, room: &mut [u8]) -> Result<Intake, Errno> {
    loop {
        match recv(socket, &mut room[..1], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok((_, 0)) => return Ok(Intake::End),
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(Intake::Nothing),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
        let is_urgent = is_at_mark(socket);
        let most = if is_urgent { 1 } else { room.len() };
        match recv(socket, &mut room[..most], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Ok(Intake::End),
            Ok((_, count)) => return Ok(Intake::Bytes { count, is_urgent }),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads as much as is there and `room` has room for, where urgent bytes are in line and mean nothing. Never waits.
///
/// # Errors
///
/// What `recv` says of the connection.
pub(crate) fn take_in_line(socket: &TcpStream, room: &mut [u8]) -> Result<Intake, Errno> {
    loop {
        match recv(socket, &mut *room, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Ok(Intake::End),
            Ok((_, count)) => return Ok(Intake::Bytes { count, is_urgent: false }),
            Err(Errno::AGAIN) => return Ok(Intake::Nothing),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The next byte is the urgent one. A socket that cannot be asked has none.
#[expect(unsafe_code, reason = "rustix has no safe name for this request")]
fn is_at_mark(socket: &TcpStream) -> bool {
    // SAFETY: the request stores one int.
    let answer = unsafe { ioctl::ioctl(socket, Getter::<SIOCATMARK, c_int>::new()) };
    answer.is_ok_and(|answer| answer != 0)
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener};
    use std::thread;

    use rustix::io::ioctl_fionread;
    use rustix::net::{SendFlags, send, sockopt};

    use super::*;

    const fn ordinary(count: usize) -> Result<Intake, Errno> {
        Ok(Intake::Bytes { count, is_urgent: false })
    }

    const PLAIN: SendFlags = SendFlags::empty();
    const URGENT: Result<Intake, Errno> = Ok(Intake::Bytes { count: 1, is_urgent: true });

    /// The sender, and the reader, who has urgent bytes in line.
    fn pair() -> [TcpStream; 2] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (reader, _) = listener.accept().unwrap();
        sender.set_nodelay(true).unwrap();
        sockopt::set_socket_oobinline(&reader, true).unwrap();
        [sender, reader]
    }

    /// Sends, and waits until so many bytes are to be read.
    fn say([sender, reader]: &[TcpStream; 2], words: &[(&[u8], SendFlags)]) {
        let mut len = ioctl_fionread(reader).unwrap();
        for (bytes, flags) in words {
            assert_eq!(send(sender, bytes, *flags), Ok(bytes.len()));
            len += bytes.len() as u64;
        }
        while ioctl_fionread(reader).unwrap() < len {
            thread::yield_now();
        }
    }

    #[test]
    fn an_urgent_byte_comes_by_itself_wherever_reading_has_stopped() {
        let pair = pair();
        let reader = &pair[1];
        let mut room = [0; 16];
        for before in [&b""[..], b"a", b"abc"] {
            assert_eq!(take(reader, &mut room), Ok(Intake::Nothing));
            say(&pair, &[(before, PLAIN), (b"!", SendFlags::OOB), (b"de", PLAIN)]);
            if !before.is_empty() {
                assert_eq!(take(reader, &mut room), ordinary(before.len()));
            }
            assert_eq!((take(reader, &mut room), room[0]), (URGENT, b'!'));
            assert_eq!(take(reader, &mut room), ordinary(2));
        }
    }

    #[test]
    fn a_mark_that_comes_behind_what_was_read_is_seen() {
        let pair = pair();
        let reader = &pair[1];
        let mut room = [0; 16];
        say(&pair, &[(b"a", PLAIN)]);
        assert_eq!(take(reader, &mut room), ordinary(1));
        say(&pair, &[(b"!", SendFlags::OOB)]);
        assert_eq!(take(reader, &mut room), URGENT);
        assert_eq!(take(reader, &mut room), Ok(Intake::Nothing));
    }

    #[test]
    fn the_end_comes_behind_the_last_byte() {
        let pair = pair();
        let reader = &pair[1];
        let mut room = [0; 2];
        say(&pair, &[(b"abc", PLAIN)]);
        pair[0].shutdown(Shutdown::Write).unwrap();
        assert_eq!(take(reader, &mut room), ordinary(2));
        assert_eq!(take(reader, &mut room), ordinary(1));
        // The end has come when a call that waits says so.
        assert_eq!(recv(reader, &mut room, RecvFlags::PEEK).map(|(_, len)| len), Ok(0));
        assert_eq!(take(reader, &mut room), Ok(Intake::End));
    }
}
