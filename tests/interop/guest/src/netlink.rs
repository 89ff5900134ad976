//! Netlink: requests to the kernel and its answers, as messages with attributes.
//!
//! ```text
//!   header  kind, flags, sequence      by `netlink-packet-core`
//!   body    a structure of the kernel's, or nothing
//!           attribute, attribute, …    kind, length, value; padded to four bytes
//! ```
//!
//! Of the families that a guest uses, SMC's and that of RDMA devices have no crate, so bodies are
//! bytes here, in the machine's own byte order, and who knows a family writes and reads them.

use std::convert::Infallible;

use anyhow::{Context, Result, bail};
use netlink_packet_core::{
    DefaultNla, Emitable, NLA_HEADER_SIZE, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
    NlasIterator,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;

/// A conversation with one family of the kernel.
pub(crate) struct Netlink(Socket);

impl Netlink {
    /// Begins one.
    ///
    /// **Errors**: the kernel does not have the family.
    pub(crate) fn open(protocol: isize) -> Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        Ok(Self(socket))
    }

    /// Has something done, and waits until it is.
    ///
    /// **Errors**: the kernel's, for which `flags` may be a reason (`NLM_F_CREATE`…).
    pub(crate) fn order(&self, kind: u16, flags: u16, body: Vec<u8>) -> Result<()> {
        self.send(kind, flags | NLM_F_REQUEST | NLM_F_ACK, body)?;
        self.bodies().map(drop)
    }

    /// Asks for one thing.
    ///
    /// **Errors**: the kernel's.
    pub(crate) fn ask(&self, kind: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        self.send(kind, NLM_F_REQUEST | NLM_F_ACK, body)?;
        self.bodies()?.pop().context("the kernel said nothing")
    }

    /// Asks for all there is.
    ///
    /// **Errors**: the kernel's.
    pub(crate) fn dump(&self, kind: u16, body: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        self.send(kind, NLM_F_REQUEST | NLM_F_DUMP, body)?;
        self.bodies()
    }

    fn send(&self, kind: u16, flags: u16, body: Vec<u8>) -> Result<()> {
        let body = Body { kind, bytes: body };
        let mut message =
            NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::InnerMessage(body));
        message.header.flags = flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        Ok(())
    }

    /// The bodies of an answer, up to the acknowledgement or the end of the list.
    fn bodies(&self) -> Result<Vec<Vec<u8>>> {
        let mut bodies = Vec::new();
        loop {
            let datagram = self.0.recv_from_full()?.0;
            let mut rest = &datagram[..];
            while !rest.is_empty() {
                let message = NetlinkMessage::<Body>::deserialize(rest)?;
                let len = message.header.length.next_multiple_of(4) as usize;
                match message.payload {
                    NetlinkPayload::InnerMessage(body) => bodies.push(body.bytes),
                    NetlinkPayload::Done(_) => return Ok(bodies),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(bodies),
                    NetlinkPayload::Error(error) => bail!(error.to_io()),
                    _ => {}
                }
                // A message is never shorter than its header.
                rest = rest.get(len.max(4)..).unwrap_or_default();
            }
        }
    }
}

/// What stands behind a message's header.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Body {
    kind: u16,
    bytes: Vec<u8>,
}

impl NetlinkSerializable for Body {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for Body {
    type Error = Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Infallible> {
        Ok(Self { kind: header.message_type, bytes: payload.to_vec() })
    }
}

/// Puts an attribute behind a body.
pub(crate) fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let attribute = DefaultNla::new(kind, value.to_vec());
    let start = body.len();
    body.resize(start + attribute.buffer_len(), 0);
    attribute.emit(&mut body[start..]);
}

/// The same for a text, which the kernel wants with a zero at its end.
pub(crate) fn text_attribute(body: &mut Vec<u8>, kind: u16, text: &str) {
    attribute(body, kind, &[text.as_bytes(), &[0]].concat());
}

/// Attributes that came from the kernel.
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Those behind the first `offset` bytes of a body.
    pub(crate) fn behind(offset: usize, body: &'a [u8]) -> Self {
        Self(body.get(offset..).unwrap_or_default())
    }

    /// The value of the first of a kind.
    pub(crate) fn value(&self, kind: u16) -> Option<&'a [u8]> {
        let mut all = NlasIterator::new(self.0).flatten();
        let found = all.find(|it| it.kind() == kind)?;
        // `value()` would borrow from the iterator's copy, and its buffer goes on behind it.
        found.into_inner().get(NLA_HEADER_SIZE..usize::from(found.length()))
    }

    /// The attributes within an attribute.
    pub(crate) fn nest(&self, kind: u16) -> Self {
        Self(self.value(kind).unwrap_or_default())
    }

    pub(crate) fn byte(&self, kind: u16) -> Option<u8> {
        self.value(kind)?.first().copied()
    }

    pub(crate) fn word(&self, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(self.value(kind)?.get(..4)?.try_into().ok()?))
    }

    /// A text without what fills it up to its length.
    pub(crate) fn text(&self, kind: u16) -> Option<String> {
        self.value(kind).map(text_of)
    }
}

/// A text that ends with a zero, or with blanks and a zero.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim_end().to_owned()
}

/// A generic netlink family: those whose numbers the kernel gives out at run time, by name.
pub(crate) struct Generic {
    netlink: Netlink,
    family: u16,
}

/// Bytes of a generic message's own header: command, version, two of nothing.
const GENERIC_HEADER_LEN: usize = 4;

impl Generic {
    /// **Errors**: the kernel has no family of this name.
    pub(crate) fn open(name: &str) -> Result<Self> {
        // The controller, which is a family itself (uapi/linux/genetlink.h).
        const CONTROLLER: u16 = 0x10;
        const GET_FAMILY: u8 = 3;
        const FAMILY_ID: u16 = 1;
        const FAMILY_NAME: u16 = 2;
        let controller = Self { netlink: Netlink::open(NETLINK_GENERIC)?, family: CONTROLLER };
        let mut request = generic_header(GET_FAMILY);
        text_attribute(&mut request, FAMILY_NAME, name);
        let answer = controller.netlink.ask(CONTROLLER, request);
        let answer = answer.with_context(|| format!("netlink family {name}"))?;
        let id = Attributes::behind(GENERIC_HEADER_LEN, &answer).value(FAMILY_ID);
        let id = id.and_then(|it| it.try_into().ok()).context("a family without a number")?;
        Ok(Self { family: u16::from_ne_bytes(id), ..controller })
    }

    /// Has a command carried out, with texts and single bytes as its attributes.
    pub(crate) fn order(
        &self,
        command: u8,
        texts: &[(u16, &str)],
        bytes: &[(u16, u8)],
    ) -> Result<()> {
        let mut body = generic_header(command);
        texts.iter().for_each(|(kind, text)| text_attribute(&mut body, *kind, text));
        bytes.iter().for_each(|(kind, byte)| attribute(&mut body, *kind, &[*byte]));
        self.netlink.order(self.family, 0, body)
    }

    /// Asks for all there is, and reads each.
    pub(crate) fn dump<T>(
        &self,
        command: u8,
        read: impl Fn(Attributes<'_>) -> Option<T>,
    ) -> Result<Vec<T>> {
        let bodies = self.netlink.dump(self.family, generic_header(command))?;
        let read = |body: &Vec<u8>| read(Attributes::behind(GENERIC_HEADER_LEN, body));
        Ok(bodies.iter().filter_map(read).collect())
    }
}

fn generic_header(command: u8) -> Vec<u8> {
    const VERSION: u8 = 1;
    vec![command, VERSION, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_where_they_were_put() {
        let mut body = vec![9, 9, 9, 9];
        text_attribute(&mut body, 1, "rxe0");
        attribute(&mut body, 2, &[7]);
        let mut inner = Vec::new();
        attribute(&mut inner, 4, &0x0303_0000_u32.to_ne_bytes());
        attribute(&mut body, 3, &inner);
        assert_eq!(body.len() % 4, 0);
        let attributes = Attributes::behind(4, &body);
        assert_eq!(attributes.text(1).as_deref(), Some("rxe0"));
        assert_eq!(attributes.byte(2), Some(7));
        assert_eq!(attributes.nest(3).word(4), Some(0x0303_0000));
        assert_eq!(attributes.value(5), None);
    }

    #[test]
    fn texts_end_before_what_fills_them_up() {
        assert_eq!(text_of(b"PNET1\0\0\0"), "PNET1");
        assert_eq!(text_of(b"SMCV2-EID-1     \0"), "SMCV2-EID-1");
        assert_eq!(text_of(b""), "");
    }
}
