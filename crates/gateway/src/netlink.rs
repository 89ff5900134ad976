//! Questions to the kernel by netlink.

use std::fmt::Debug;
use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable,
};
use netlink_sys::Socket;

/// Asks for all that there is of a kind, and tells each answer.
///
/// # Errors
///
/// What the kernel says, or an answer that makes no sense.
pub(crate) fn ask_all<M>(
    protocol: isize,
    question: impl Into<NetlinkMessage<M>>,
    each: impl FnMut(M),
) -> io::Result<()>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug,
{
    exchange(protocol, question.into(), NLM_F_REQUEST | NLM_F_DUMP, each)
}

/// Asks for one thing, and tells the answer.
///
/// # Errors
///
/// As of [`ask_all`]; `ENOENT`: there is no such thing.
pub(crate) fn ask<M>(
    protocol: isize,
    question: impl Into<NetlinkMessage<M>>,
    each: impl FnMut(M),
) -> io::Result<()>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug,
{
    exchange(protocol, question.into(), NLM_F_REQUEST, each)
}

/// Sends one message with these flags, and tells each answer.
///
/// # Errors
///
/// What the kernel says, or an answer that makes no sense.
pub fn exchange<M>(
    protocol: isize,
    mut question: NetlinkMessage<M>,
    flags: u16,
    mut each: impl FnMut(M),
) -> io::Result<()>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug,
{
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    question.header.flags = flags;
    question.finalize();
    let mut bytes = vec![0; question.buffer_len()];
    question.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let is_dump = flags & NLM_F_DUMP == NLM_F_DUMP;
    while read_piece(&socket.recv_from_full()?.0, &mut each)? && is_dump {}
    Ok(())
}

/// Takes all that a socket has been told, and says whether that was anything. What exactly it was, a question
/// tells better: messages may be lost.
pub(crate) fn drain(socket: &Socket) -> bool {
    let mut bytes = [0; 1];
    let mut take = || match socket.recv(&mut &mut bytes[..], 0) {
        Ok(_) => true,
        // The kernel had more to tell than there was room for.
        Err(error) => error.raw_os_error() == Some(libc::ENOBUFS),
    };
    let was_told = take();
    while take() {}
    was_told
}

/// Tells what one datagram of the kernel says. False: it was the last one.
fn read_piece<M>(mut bytes: &[u8], each: &mut impl FnMut(M)) -> io::Result<bool>
where
    M: NetlinkDeserializable + Debug,
{
    while !bytes.is_empty() {
        let message = NetlinkMessage::deserialize(bytes).map_err(io::Error::other)?;
        match message.payload {
            NetlinkPayload::InnerMessage(answer) => each(answer),
            NetlinkPayload::Done(_) => return Ok(false),
            // An error of number 0 says that it is done.
            NetlinkPayload::Error(error) if error.code.is_none() => return Ok(false),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            _ => {}
        }
        // A message begins where a multiple of four bytes ends.
        let len = message.header.length.next_multiple_of(4) as usize;
        bytes = bytes.get(len.max(4)..).unwrap_or_default();
    }
    Ok(true)
}
