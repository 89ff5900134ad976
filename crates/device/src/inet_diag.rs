//! Who holds a TCP socket of this network namespace, by its two addresses, as the kernel says (`sock_diag(7)`).
//!
//! With the addresses of a connection turned round it tells of the other end: whose that is, or that it is not in
//! this namespace, however much its address is. A translation lies between the two ends then, or a border.
//!
//! A kernel that cannot be asked, built without `INET_TCP_DIAG`, says the same as of a socket that is not there
//! (`ENOENT`). So who has to be certain that one is not there asks for one that is as well.

use core::net::{IpAddr, SocketAddr};

use crate::netlink::{self, Line};
use crate::sys::{Errno, Result};

/// `inet_diag_req_v2` behind its header, and `inet_diag_msg` in an answer.
const REQUEST_LEN: usize = netlink::HEADER_LEN + 56;
const ANSWER_LEN: usize = netlink::HEADER_LEN + 72;
/// Places in the answer.
const STATE_AT: usize = netlink::HEADER_LEN + 1;
const UID_AT: usize = netlink::HEADER_LEN + 64;
const INODE_AT: usize = netlink::HEADER_LEN + 68;

/// `TCP_LISTEN` of `net/tcp_states.h`.
const LISTENS: u8 = 10;
/// In the place of a cookie: any.
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// All states.
const STATES: u32 = u32::MAX;

/// Whose a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// This user's, as a number of our user namespace: the user who has made or accepted it.
    User(u32),
    /// No program has it, or none has it yet: it was not accepted.
    NoProgram,
}

/// Who holds the socket of the connection between these two, the socket's own address first.
///
/// # Errors
/// `ENOENT`: there is none in this network namespace, or the kernel cannot be asked. Others: the
/// kernel does not say.
pub fn holder_of(local: SocketAddr, remote: SocketAddr) -> Result<Holder> {
    let line = Line::open()?;
    let mut answer = [0; ANSWER_LEN];
    let len = line.ask(&request(local, remote), &mut answer)?;
    read(&answer[..len])
}

fn request(local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST_LEN] {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = [0; REQUEST_LEN];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&netlink::header(REQUEST_LEN));
    put(&[family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    put(&STATES.to_ne_bytes());
    put(&local.port().to_be_bytes());
    put(&remote.port().to_be_bytes());
    put(&octets(local.ip()));
    put(&octets(remote.ip()));
    // Of any interface.
    put(&[0; 4]);
    put(&NO_COOKIE);
    bytes
}

/// An address in the first of sixteen bytes.
fn octets(ip: IpAddr) -> [u8; 16] {
    let mut all = [0; 16];
    match ip {
        IpAddr::V4(v4) => all[..4].copy_from_slice(&v4.octets()),
        IpAddr::V6(v6) => all = v6.octets(),
    }
    all
}

/// A listener is found where there is no connection.
fn read(answer: &[u8]) -> Result<Holder> {
    netlink::check(answer)?;
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4).ok_or(Errno(libc::EPROTO))?;
        bytes.try_into().map(u32::from_ne_bytes).map_err(|_| Errno(libc::EPROTO))
    };
    match (answer.get(STATE_AT), word(UID_AT)?, word(INODE_AT)?) {
        (Some(&LISTENS), ..) => Err(Errno(libc::ENOENT)),
        (_, _, 0) => Ok(Holder::NoProgram),
        (_, uid, _) => Ok(Holder::User(uid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn both_ends_of_a_connection_are_told_with_their_user() {
        let _alone = crate::alone_with_descriptors();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                std::eprintln!("skipped: no {address}");
                continue;
            };
            let at = listener.local_addr().unwrap();
            let client = TcpStream::connect(at).unwrap();
            let from = client.local_addr().unwrap();
            if holder_of(from, at) == Err(Errno(libc::ENOENT)) {
                return std::eprintln!("skipped: the kernel has no INET_TCP_DIAG");
            }
            assert_eq!(holder_of(from, at), Ok(Holder::User(sys::effective_uid())));
            assert_eq!(holder_of(at, from), Ok(Holder::NoProgram), "it is not accepted");
            let server = listener.accept().unwrap();
            assert_eq!(holder_of(at, from), Ok(Holder::User(sys::effective_uid())));
            drop((server, client));
        }
    }

    #[test]
    fn a_listener_is_no_end_of_a_connection() {
        let _alone = crate::alone_with_descriptors();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let at = listener.local_addr().unwrap();
        assert_eq!(holder_of(at, nowhere), Err(Errno(libc::ENOENT)));
    }

    #[test]
    fn what_is_no_answer_is_none() {
        let mut answer = [0; ANSWER_LEN];
        answer[..netlink::HEADER_LEN].copy_from_slice(&netlink::header(ANSWER_LEN));
        assert_eq!(read(&answer), Ok(Holder::NoProgram));
        answer[INODE_AT] = 1;
        answer[UID_AT] = 7;
        assert_eq!(read(&answer), Ok(Holder::User(u32::from_ne_bytes([7, 0, 0, 0]))));
        for len in 0..answer.len() {
            assert_eq!(read(&answer[..len]), Err(Errno(libc::EPROTO)), "{len}");
        }
        answer[STATE_AT] = LISTENS;
        assert_eq!(read(&answer), Err(Errno(libc::ENOENT)));
    }
}
