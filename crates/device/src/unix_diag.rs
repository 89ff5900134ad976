//! Whose an abstract name is: the user whose socket is bound to it, as the kernel says.
//!
//! That a name is bound says that some socket has it, not whose. The kernel tells the user who made a
//! socket (`sock_diag(7)`, `UDIAG_SHOW_UID`, Linux 5.3), but finds it by its inode only, unless it
//! lists all there are. So a socket of ours connects to the name, and two questions are asked: which
//! inode is our socket's peer, and whose is that?

use crate::netlink::{self, HEADER_LEN, Line};
use crate::sys::{self, Errno, Result, UnixName};

/// With `unix_diag_req` in a question, with `unix_diag_msg` in an answer.
const QUESTION_LEN: usize = HEADER_LEN + 24;
const ANSWER_LEN: usize = HEADER_LEN + 16;
/// Bytes of an attribute before its value: length and kind.
const ATTRIBUTE_LEN: usize = 4;

/// In the place of a cookie: any.
const NO_COOKIE: u32 = u32::MAX;

/// What is asked of a socket: a bit of `udiag_show`, and the attribute that answers.
#[derive(Clone, Copy)]
struct Asked {
    show: u32,
    attribute: u16,
}

/// The inode of its peer: `UDIAG_SHOW_PEER`, `UNIX_DIAG_PEER`.
const PEER: Asked = Asked { show: 0x4, attribute: 2 };
/// The user who made it: `UDIAG_SHOW_UID`, `UNIX_DIAG_UID`.
const UID: Asked = Asked { show: 0x40, attribute: 7 };

/// The user whose datagram socket is bound to a name, as a number of our user namespace.
///
/// # Errors
/// `ECONNREFUSED`: the name is free. Any other: the kernel does not say, because it was built without
/// `UNIX_DIAG` or is older than 5.3, or a filter forbids the question.
pub fn owner_of(name: &UnixName) -> Result<u32> {
    let ours = Open(sys::unix_datagram()?);
    sys::connect_unix(ours.0, name)?;
    let line = Line::open()?;
    let peer = ask(&line, sys::inode(ours.0)? as u32, PEER)?;
    ask(&line, peer, UID)
}

/// A descriptor, until this is dropped.
struct Open(i32);

impl Drop for Open {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

fn ask(line: &Line, inode: u32, asked: Asked) -> Result<u32> {
    let mut answer = [0; 256];
    let len = line.ask(&question(inode, asked), &mut answer)?;
    read(&answer[..len], asked)
}

fn question(inode: u32, asked: Asked) -> [u8; QUESTION_LEN] {
    let family = u32::from_ne_bytes([libc::AF_UNIX as u8, 0, 0, 0]);
    // Family, states, inode, show, cookie.
    let words = [family, 0, inode, asked.show, NO_COOKIE, NO_COOKIE];
    let mut bytes = [0; QUESTION_LEN];
    bytes[..HEADER_LEN].copy_from_slice(&netlink::header(QUESTION_LEN));
    for (to, word) in bytes[HEADER_LEN..].chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// The value of the attribute that was asked for.
fn read(answer: &[u8], asked: Asked) -> Result<u32> {
    let short = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    netlink::check(answer)?;
    let mut at = ANSWER_LEN;
    while let (Some(len), Some(kind)) = (short(at), short(at + 2)) {
        if kind == asked.attribute {
            return word(at + ATTRIBUTE_LEN).ok_or(Errno(libc::EPROTO));
        }
        // The next begins where a multiple of four bytes ends.
        at += usize::from(len).max(ATTRIBUTE_LEN).next_multiple_of(4);
    }
    Err(Errno(libc::ENODATA))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    fn bound(name: &str) -> (UnixDatagram, UnixName) {
        let address = SocketAddr::from_abstract_name(name).unwrap();
        (UnixDatagram::bind_addr(&address).unwrap(), UnixName::new(name.as_bytes()))
    }

    #[test]
    fn a_name_is_the_users_who_has_bound_it() {
        let _alone = crate::alone_with_descriptors();
        let (socket, name) = bound("unix_diag/ours");
        assert_eq!(owner_of(&name), Ok(sys::uid()));
        drop(socket);
        assert_eq!(owner_of(&name), Err(Errno(libc::ECONNREFUSED)));
    }

    #[test]
    fn another_users_name_is_told() {
        if sys::uid() != 0 {
            std::eprintln!("skipped: only root becomes another user");
            return;
        }
        const STRANGER: u32 = 65_534;
        // The user of a thread alone: raw, where libc would change all.
        let bind = || {
            // SAFETY: no memory operands.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, STRANGER, -1) }, 0);
            bound("unix_diag/stranger")
        };
        let (_socket, name) = std::thread::spawn(bind).join().unwrap();
        assert_eq!(owner_of(&name), Ok(STRANGER));
    }

    #[test]
    fn what_is_no_answer_is_none() {
        let error = [20, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff];
        assert_eq!(read(&error, UID), Err(Errno(libc::ENOENT)));
        assert_eq!(read(&[], UID), Err(Errno(libc::EPROTO)));
        let mut answer = [0; ANSWER_LEN + 8];
        answer[4..6].copy_from_slice(&netlink::BY_FAMILY.to_ne_bytes());
        assert_eq!(read(&answer, UID), Err(Errno(libc::ENODATA)));
        answer[ANSWER_LEN..].copy_from_slice(&[8, 0, 7, 0, 1, 2, 0, 0]);
        assert_eq!(read(&answer, UID), Ok(u32::from_ne_bytes([1, 2, 0, 0])));
        assert_eq!(read(&answer[..ANSWER_LEN + 5], UID), Err(Errno(libc::EPROTO)));
    }
}
