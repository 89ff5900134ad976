//! Calls in both directions over one socket: ttrpc, in two connections that share it.
//!
//! ```text
//!   frame     connection (4)  length (4)   bytes of this connection's stream
//!   message   length (4)  stream (4)  kind (1)  flags (1)   a Request or a Response
//! ```
//!
//! Numbers are big-endian. A message may come in several frames, and a frame may have several messages. On [`PLUGIN`]
//! the runtime calls, on [`RUNTIME`] the plugin does, and each call is a stream with a number of its own.
//!
//! *Source*: `PROTOCOL.md` of ttrpc 1.2; `pkg/net/multiplex` of NRI 0.13.

use std::io::{self, ErrorKind, Read, Write};

/// The connection on which the runtime calls the plugin.
pub(super) const PLUGIN: u32 = 1;
/// The connection on which the plugin calls the runtime.
pub(super) const RUNTIME: u32 = 2;
const CONNECTIONS: [u32; 2] = [PLUGIN, RUNTIME];

const FRAME_HEADER: usize = 8;
/// What a frame has at most that we send: the runtime reads each into a buffer of so many bytes.
const FRAME_SENT_MAX: usize = 4096;
const MESSAGE_HEADER: usize = 10;
/// Beyond it ttrpc takes no message.
const MESSAGE_MAX: usize = 4 << 20;
const FRAME_MAX: usize = MESSAGE_HEADER + MESSAGE_MAX;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request = 1,
    Response = 2,
}

/// One whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) connection: u32,
    pub(super) stream: u32,
    pub(super) kind: Kind,
    pub(super) data: Vec<u8>,
}

/// The socket, and what has come of messages that are not whole.
#[derive(Debug)]
pub(super) struct Trunk<S> {
    socket: S,
    partial: [Vec<u8>; CONNECTIONS.len()],
}

impl<S: Read + Write> Trunk<S> {
    pub(super) fn new(socket: S) -> Self {
        Self { socket, partial: Default::default() }
    }

    pub(super) fn socket(&self) -> &S {
        &self.socket
    }

    /// Reads one frame. False: the runtime has hung up.
    ///
    /// # Errors
    ///
    /// The socket has none; the frame is longer than any can be, or ends early.
    pub(super) fn read_frame(&mut self) -> io::Result<bool> {
        let mut header = [0; FRAME_HEADER];
        if self.socket.read(&mut header[..1])? == 0 {
            return Ok(false);
        }
        self.socket.read_exact(&mut header[1..])?;
        let [connection, len] = [number(&header, 0), number(&header, 4)];
        let len = len as usize;
        if len > FRAME_MAX {
            return Err(invalid("a frame is too long"));
        }
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes)?;
        // Connections that are not known are those of a later version, and nothing here reads them.
        if let Some(at) = CONNECTIONS.iter().position(|it| *it == connection) {
            self.partial[at].extend(bytes);
        }
        Ok(true)
    }

    /// Takes a message of those that have come whole.
    ///
    /// # Errors
    ///
    /// It is longer than any can be, or of no kind that is known here.
    pub(super) fn take(&mut self) -> io::Result<Option<Message>> {
        for (connection, partial) in CONNECTIONS.into_iter().zip(&mut self.partial) {
            if partial.len() < MESSAGE_HEADER {
                continue;
            }
            let len = number(partial, 0) as usize;
            if len > MESSAGE_MAX {
                return Err(invalid("a message is too long"));
            }
            if partial.len() < MESSAGE_HEADER + len {
                continue;
            }
            let rest = partial.split_off(MESSAGE_HEADER + len);
            let mut message = std::mem::replace(partial, rest);
            let stream = number(&message, 4);
            let kind = match message[8] {
                1 => Kind::Request,
                2 => Kind::Response,
                _ => return Err(invalid("a message is neither a request nor a response")),
            };
            let data = message.split_off(MESSAGE_HEADER);
            return Ok(Some(Message { connection, stream, kind, data }));
        }
        Ok(None)
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// The socket has one.
    pub(super) fn send(&mut self, message: &Message) -> io::Result<()> {
        let len = u32::try_from(message.data.len()).map_err(io::Error::other)?;
        let mut bytes = Vec::with_capacity(MESSAGE_HEADER + message.data.len());
        bytes.extend(len.to_be_bytes());
        bytes.extend(message.stream.to_be_bytes());
        bytes.extend([message.kind as u8, 0]);
        bytes.extend(&message.data);
        for part in bytes.chunks(FRAME_SENT_MAX) {
            let mut frame = Vec::with_capacity(FRAME_HEADER + part.len());
            frame.extend(message.connection.to_be_bytes());
            frame.extend((part.len() as u32).to_be_bytes());
            frame.extend(part);
            self.socket.write_all(&frame)?;
        }
        Ok(())
    }
}

/// Four bytes, big-endian. The caller knows that they are there.
fn number(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(number)
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn message(connection: u32, stream: u32, len: usize) -> Message {
        let data = (0..len).map(|at| at as u8).collect();
        Message { connection, stream, kind: Kind::Request, data }
    }

    /// The bytes that a runtime sends, in frames of so many bytes each.
    fn framed(connection: u32, bytes: &[u8], len: usize) -> Vec<u8> {
        let frame = |part: &[u8]| {
            let len = part.len() as u32;
            [&connection.to_be_bytes()[..], &len.to_be_bytes()[..], part].concat()
        };
        bytes.chunks(len).flat_map(frame).collect()
    }

    fn sent(messages: &[Message]) -> Vec<u8> {
        let mut trunk = Trunk::new(Cursor::new(Vec::new()));
        messages.iter().for_each(|it| trunk.send(it).unwrap());
        trunk.socket.into_inner()
    }

    fn received(bytes: Vec<u8>) -> io::Result<Vec<Message>> {
        let mut trunk = Trunk::new(Cursor::new(bytes));
        let mut messages = Vec::new();
        while trunk.read_frame()? {
            while let Some(message) = trunk.take()? {
                messages.push(message);
            }
        }
        Ok(messages)
    }

    #[test]
    fn messages_of_both_connections_come_as_they_were_sent() {
        let messages = [message(PLUGIN, 1, 10), message(RUNTIME, 2, 0), message(PLUGIN, 3, 20_000)];
        assert_eq!(received(sent(&messages)).unwrap(), messages);
    }

    #[test]
    fn a_message_is_whole_however_its_frames_are_cut() {
        let wanted = [message(PLUGIN, 1, 100), message(PLUGIN, 3, 5)];
        let bytes: Vec<u8> = wanted
            .iter()
            .flat_map(|it| {
                let header = (it.data.len() as u64) << 32 | u64::from(it.stream);
                [&header.to_be_bytes()[..], &[1, 0][..], &it.data[..]].concat()
            })
            .collect();
        for len in 1..=bytes.len() {
            assert_eq!(received(framed(PLUGIN, &bytes, len)).unwrap(), wanted, "{len}");
        }
    }

    #[test]
    fn frames_fit_into_the_buffer_of_the_runtime() {
        let mut rest = &sent(&[message(PLUGIN, 1, 10_000)])[..];
        while !rest.is_empty() {
            let len = number(rest, 4) as usize;
            assert!(len <= FRAME_SENT_MAX);
            rest = &rest[FRAME_HEADER + len..];
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused_before_there_is_memory_for_them() {
        let is_invalid = |bytes| received(bytes).unwrap_err().kind() == ErrorKind::InvalidData;
        assert!(is_invalid([PLUGIN.to_be_bytes(), u32::MAX.to_be_bytes()].concat()));
        assert!(is_invalid(framed(PLUGIN, &[0xff; MESSAGE_HEADER], MESSAGE_HEADER)));
        // Of a third kind.
        assert!(is_invalid(framed(PLUGIN, &[0, 0, 0, 0, 0, 0, 0, 1, 3, 0], MESSAGE_HEADER)));
    }

    #[test]
    fn a_frame_that_ends_early_is_an_error_and_an_end_between_frames_is_none() {
        let bytes = sent(&[message(PLUGIN, 1, 10)]);
        let error = received(bytes[..bytes.len() - 1].to_vec()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(received(Vec::new()).unwrap(), []);
    }
}
