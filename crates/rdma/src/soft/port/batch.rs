//! Many datagrams for one system call.
//!
//! A message of the kernel's is a *run*: datagrams of one length one behind the other, of which the
//! last may be shorter. It goes through the kernel like a single one. One that is sent is parted
//! by the network interface or right before it (UDP GSO); one that comes in is what the sender's
//! kernel has never parted, or what ours has joined (UDP GRO).
//!
//! ```text
//!   Outbox   run ─ 1044 1044 1044 516   run ─ 60 20   run ─ 1060 1044 …     sendmmsg
//!   Inbox    run ─ 1044 1044 1044 516   single ─ 60                         recvmmsg
//! ```
//!
//! All memory is there from the beginning and is used again.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr;

use sidestep_wire::relayed::Relayed;
use sidestep_wire::roce::PORT;

use crate::soft::adapter::{DATAGRAM_MAX, Datagram, Run};
use crate::soft::sys::{self, SocketName};

/// Messages that are taken or sent by one call.
const MESSAGES_MAX: usize = 16;
/// Room for any message that comes in: UDP has no longer ones.
const MESSAGE_ROOM: usize = 1 << 16;
/// Room for what is sent by one call: four of the longest runs.
const OUTBOX_ROOM: usize = 1 << 18;
/// The longest run in bytes: with its IP and UDP headers it must be an IP packet.
pub(super) const RUN_LEN_MAX: usize = 65_535 - 48;
/// The most datagrams in a run. Kernels since 6.9 take 128, and all since 4.18 take 64.
pub const SEGMENTS_MAX: usize = 64;

/// Room for one control message whose value is a number, as long words for its alignment.
type Control = [u64; 3];
const CONTROL_ROOM: usize = size_of::<Control>();

const NO_BYTES: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
const NO_MESSAGE: libc::mmsghdr = libc::mmsghdr {
    msg_hdr: libc::msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: ptr::null_mut(),
        msg_iovlen: 0,
        msg_control: ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    },
    msg_len: 0,
};

/// What is to be sent.
#[derive(Debug)]
pub struct Outbox {
    bytes: Box<[u8]>,
    /// Bytes that are taken.
    used: usize,
    entries: Vec<Entry>,
    /// Entries at the front that were sent.
    sent: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    run: Run,
    at: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            bytes: vec![0; OUTBOX_ROOM].into_boxed_slice(),
            used: 0,
            entries: Vec::with_capacity(MESSAGES_MAX),
            sent: 0,
        }
    }
}

impl Outbox {
    /// Whether everything was sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent == self.entries.len()
    }

    /// Where the next run may be written; `None`: first what is there must be sent.
    pub fn room(&mut self) -> Option<&mut [u8]> {
        let rest = &mut self.bytes[self.used..];
        let has_room = self.entries.len() < MESSAGES_MAX && rest.len() >= DATAGRAM_MAX;
        let len = rest.len().min(RUN_LEN_MAX);
        has_room.then(|| &mut rest[..len])
    }

    /// A run was written to the front of the [room](Self::room).
    ///
    /// # Panics
    ///
    /// It is longer than the room was.
    pub fn push(&mut self, run: Run) {
        assert!(self.used + run.len <= self.bytes.len(), "written outside");
        self.entries.push(Entry { run, at: self.used });
        self.used += run.len;
    }

    /// The oldest run that was not sent, and its bytes.
    pub(super) fn front(&mut self) -> Option<(Run, &mut [u8])> {
        let Entry { run, at } = *self.entries.get(self.sent)?;
        Some((run, &mut self.bytes[at..at + run.len]))
    }

    /// So many runs at the front are done.
    pub(super) fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.is_empty() {
            self.entries.clear();
            (self.used, self.sent) = (0, 0);
        }
    }

    /// Parts the oldest run into its datagrams.
    pub(super) fn part_front(&mut self) {
        let Some(Entry { run, at }) = self.entries.get(self.sent).copied() else { return };
        let datagrams = (0..run.len).step_by(run.segment_len).map(|offset| {
            let len = run.segment_len.min(run.len - offset);
            Entry { run: Run { to: run.to, len, segment_len: len }, at: at + offset }
        });
        self.entries.splice(self.sent..=self.sent, datagrams);
    }

    /// Sends from the front, and returns how many runs were; an error is that of the first one.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut names = [SocketName::EMPTY; MESSAGES_MAX];
        let mut iovecs = [NO_BYTES; MESSAGES_MAX];
        let mut controls = [Control::default(); MESSAGES_MAX];
        let mut messages = [NO_MESSAGE; MESSAGES_MAX];
        let entries = self.entries[self.sent..].iter().take(MESSAGES_MAX);
        let count = entries.len();
        for (index, Entry { run, at }) in entries.enumerate() {
            names[index] = SocketName::new(SocketAddr::new(run.to, PORT));
            let bytes = &mut self.bytes[*at..at + run.len];
            iovecs[index] = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: run.len };
            let header = &mut messages[index].msg_hdr;
            header.msg_name = names[index].as_mut_ptr();
            header.msg_namelen = names[index].len();
            header.msg_iov = &raw mut iovecs[index];
            header.msg_iovlen = 1;
            if run.len > run.segment_len {
                header.msg_control = controls[index].as_mut_ptr().cast();
                header.msg_controllen = put_segment_len(&mut controls[index], run.segment_len);
            }
        }
        // SAFETY: names, bytes and control messages live until the end of this function, and the
        // headers have their lengths.
        unsafe { sys::send_many(socket, &mut messages[..count]) }
    }
}

/// The control message that parts a run; returns its length.
fn put_segment_len(control: &mut Control, segment_len: usize) -> usize {
    let value_len = size_of::<u16>() as u32;
    let header = control.as_mut_ptr().cast::<libc::cmsghdr>();
    // SAFETY: `Control` has the alignment and the room of a header with a number behind it.
    unsafe {
        (*header).cmsg_level = libc::SOL_UDP;
        (*header).cmsg_type = libc::UDP_SEGMENT;
        (*header).cmsg_len = libc::CMSG_LEN(value_len) as usize;
        libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment_len as u16);
        libc::CMSG_SPACE(value_len) as usize
    }
}

/// What has come in.
pub struct Inbox {
    bytes: Box<[u8]>,
    messages: Vec<Message>,
}

/// A message in the piece of the inbox that has its number.
struct Message {
    from: IpAddr,
    port: u16,
    /// Where in the piece it begins.
    at: usize,
    len: usize,
    segment_len: usize,
}

/// Datagrams that have come in together, of one sender, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Joined<'a> {
    /// Their sender's address.
    pub from: IpAddr,
    /// And UDP port.
    pub port: u16,
    /// Bytes of each but the last, which may have less; not 0.
    pub segment_len: usize,
    /// All of them.
    pub bytes: &'a [u8],
}

impl<'a> Joined<'a> {
    /// One by one, in order.
    pub fn datagrams(self) -> impl Iterator<Item = Datagram<'a>> {
        let Self { from, port, segment_len, bytes } = self;
        let datagrams = (0..).zip(bytes.chunks(segment_len));
        datagrams.map(move |(index, bytes)| Datagram { from, port, index, bytes })
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("messages", &self.messages.len()).finish()
    }
}

impl Default for Inbox {
    fn default() -> Self {
        let bytes = vec![0; MESSAGES_MAX * MESSAGE_ROOM].into_boxed_slice();
        Self { bytes, messages: Vec::with_capacity(MESSAGES_MAX) }
    }
}

impl Inbox {
    /// Takes what has come instead of what was here. True: the inbox is full, and there may be
    /// more.
    pub(in crate::soft) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        self.messages.clear();
        let mut names = [SocketName::EMPTY; MESSAGES_MAX];
        let mut iovecs = [NO_BYTES; MESSAGES_MAX];
        let mut controls = [Control::default(); MESSAGES_MAX];
        let mut messages = [NO_MESSAGE; MESSAGES_MAX];
        for (index, piece) in self.bytes.chunks_exact_mut(MESSAGE_ROOM).enumerate() {
            iovecs[index] =
                libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: MESSAGE_ROOM };
            let header = &mut messages[index].msg_hdr;
            header.msg_name = names[index].as_mut_ptr();
            header.msg_namelen = names[index].len();
            header.msg_iov = &raw mut iovecs[index];
            header.msg_iovlen = 1;
            header.msg_control = controls[index].as_mut_ptr().cast();
            header.msg_controllen = CONTROL_ROOM;
        }
        // SAFETY: names, pieces and control messages are there until the end of this function, are
        // used here alone, and the headers have their lengths.
        let count = unsafe { sys::receive_many(socket, &mut messages) }?;
        for (index, message) in messages[..count].iter().enumerate() {
            let (from, port) = names[index].read().unwrap_or((NOBODY, 0));
            let len = message.msg_len as usize;
            let is_whole = message.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
            let joined = segment_len(&message.msg_hdr, &controls[index]);
            let segment_len = joined.unwrap_or(len).max(1);
            let len = if is_whole { len } else { 0 };
            self.messages.push(Message { from, port, at: 0, len, segment_len });
        }
        Ok(count == MESSAGES_MAX)
    }

    /// Takes what another process passes on ([`Relayed`]) instead of what was here. True: there may be more;
    /// `None`: there will be no more.
    pub(in crate::soft) fn receive_relayed(
        &mut self,
        relay: BorrowedFd<'_>,
    ) -> io::Result<Option<bool>> {
        let is_full = self.receive(relay)?;
        let pieces = self.bytes.chunks_exact(MESSAGE_ROOM);
        for (message, piece) in self.messages.iter_mut().zip(pieces) {
            if message.len == 0 {
                return Ok(None);
            }
            if let Ok(Relayed { from, port, segment_len }) = Relayed::parse(&piece[..message.len]) {
                let (at, len) = (Relayed::LEN, message.len - Relayed::LEN);
                *message = Message { from, port, at, len, segment_len: segment_len.into() };
            }
        }
        Ok(Some(is_full))
    }

    /// What has come, in its order.
    pub fn messages(&self) -> impl Iterator<Item = Joined<'_>> {
        let pieces = self.bytes.chunks_exact(MESSAGE_ROOM);
        self.messages.iter().zip(pieces).map(|(message, piece)| {
            let Message { from, port, at, len, segment_len } = *message;
            Joined { from, port, segment_len, bytes: &piece[at..at + len] }
        })
    }

    /// The datagrams, in the order in which they have come.
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.messages().flat_map(Joined::datagrams)
    }
}

/// Where a message comes from whose sender the kernel does not tell.
const NOBODY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);

/// The length of the datagrams that the kernel has joined, if it has.
fn segment_len(header: &libc::msghdr, control: &Control) -> Option<usize> {
    let has_control = header.msg_controllen >= size_of::<libc::cmsghdr>() + size_of::<c_int>();
    if !has_control {
        return None;
    }
    let at: *const c_void = control.as_ptr().cast();
    // SAFETY: the kernel has written a header with at least a number behind it.
    let (level, kind, value) = unsafe {
        let header = at.cast::<libc::cmsghdr>();
        let value = libc::CMSG_DATA(header).cast::<c_int>().read_unaligned();
        ((*header).cmsg_level, (*header).cmsg_type, value)
    };
    let is_it = level == libc::SOL_UDP && kind == libc::UDP_GRO;
    is_it.then(|| usize::try_from(value).ok()).flatten()
}
