//! Questions to the kernel about sockets (`sock_diag(7)`), each with one answer.

use crate::sys::{self, Errno, Result};

/// Bytes of `nlmsghdr`, with which questions and answers begin.
pub(crate) const HEADER_LEN: usize = 16;
/// `SOCK_DIAG_BY_FAMILY`, in questions and answers.
pub(crate) const BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;

/// A netlink socket for such questions, closed on drop.
pub(crate) struct Line(i32);

impl Line {
    pub(crate) fn open() -> Result<Self> {
        sys::sock_diag().map(Self)
    }

    /// Asks, and returns how long the answer is.
    pub(crate) fn ask(&self, question: &[u8], answer: &mut [u8]) -> Result<usize> {
        sys::send(self.0, question, 0)?;
        // The answer is there when `send` returns.
        let len = sys::recv_into(self.0, answer, libc::MSG_DONTWAIT)?;
        Ok(len.min(answer.len()))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// The header of a question of so many bytes: length, kind and flags, sequence, sender.
pub(crate) fn header(len: usize) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    bytes
}

/// Whether an answer is one.
///
/// # Errors
/// What the kernel says in its place; `EPROTO`: nothing.
pub(crate) fn check(answer: &[u8]) -> Result<()> {
    if answer.get(4..6) == Some(&BY_FAMILY.to_ne_bytes()) {
        return Ok(());
    }
    // `NLMSG_ERROR`: the number is negative.
    let errno = answer.get(HEADER_LEN..HEADER_LEN + 4).and_then(|word| word.try_into().ok());
    Err(Errno(errno.map_or(libc::EPROTO, |word| -i32::from_ne_bytes(word))))
}
