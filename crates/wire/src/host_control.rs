//! What two Sidestep libraries on one host say to each other beside the TCP connection.
//!
//! CLC carries numbers; memory is handed over as file descriptors, and those travel over UNIX
//! sockets. Each process has a *mailbox*, a datagram socket in the abstract namespace under a name
//! made from its [`Instance`]. Every client that is about to connect listens under a name made from
//! the two ends of the connection, every listener under one made from its port.
//!
//! | Datagram | Goes to | Beside it | Says |
//! |---|---|---|---|
//! | [`Hello`] | the client's connection name | – | the server of this very TCP connection is one of us |
//! | [`Introduction`] | a process's mailbox | 2 descriptors | here is the memory of my process, and my bell |
//! | [`Channel`] | a process's mailbox | 1 eventfd | here is another bell |
//! | [`Lookup`] | the agent | – | I hold an end of this connection, whose other end I do not find |
//! | [`Match`] | a process, from the agent | 1 socket | this process holds the other end |
//! | [`Refusal`] | a process, from the agent | – | I hang up |
//!
//! The last three are in a file of their own ([`lookup`]).
//!
//! All integers are big-endian, so that a dump reads the same everywhere. Every datagram starts so:
//!
//! | Off | Len | Field | Value |
//! |---|---|---|---|
//! | 0 | 4 | magic | `SSTP` |
//! | 4 | 2 | version | 1 |
//! | 6 | 2 | kind | 1 Hello, 2 Introduction, 3 Channel, 4 Lookup, 5 Match, 6 Refusal |
//! | 8 | 4 | length | of the whole datagram |
//! | 12 | 16 | instance | the sender |
//!
//! and goes on:
//!
//! | Hello, 72 bytes | Off | Len |
//! |---|---|---|
//! | slot | 28 | 4 |
//! | generation | 32 | 4 |
//! | token | 36 | 16 |
//! | socket cookie | 52 | 8 |
//! | network namespace cookie | 60 | 8 |
//! | RMBE length | 68 | 4 |
//!
//! | Introduction, 48 bytes | Off | Len |
//! |---|---|---|
//! | reply wanted (0 or 1) | 28 | 1 |
//! | reserved | 29 | 3 |
//! | process ID, for display | 32 | 4 |
//! | slab length | 36 | 8 |
//! | link ID | 44 | 4 |
//!
//! | Channel, 32 bytes | Off | Len |
//! |---|---|---|
//! | channel | 28 | 2 |
//! | reserved | 30 | 2 |
//!
//! Any process on the host may send to these sockets. A datagram is a claim: the receiver checks
//! the sender's credentials first.

use core::{
    fmt::{self, Write},
    hash::Hasher,
    net::{IpAddr, SocketAddr},
};

use arrayvec::ArrayVec;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::error::Error;
use crate::field::Field;
use crate::ids::LinkId;
use crate::reader::Reader;
use crate::tcp_option::Identity;

mod header;
pub mod lookup;

use header::{HEADER, Kind, emit_header, field};

pub use header::Instance;
pub use lookup::{Lookup, Match, Refusal, RefusalCause, Side};

/// Longest datagram of this module; a receive buffer of this many bytes holds any of them.
pub const EMITTED_LEN_MAX: usize = Hello::LEN;

mod hello {
    use super::Field;

    pub(super) const SLOT: Field<4> = Field::new("Hello slot", 28);
    pub(super) const GENERATION: Field<4> = Field::new("Hello generation", 32);
    pub(super) const TOKEN: Field<16> = Field::new("Hello token", 36);
    pub(super) const SOCKET_COOKIE: Field<8> = Field::new("Hello socket cookie", 52);
    pub(super) const NETNS_COOKIE: Field<8> = Field::new("Hello network namespace cookie", 60);
    pub(super) const RMBE_LEN: Field<4> = Field::new("Hello RMBE length", 68);
}

mod introduction {
    use super::Field;

    pub(super) const REPLY_WANTED: Field<1> = Field::new("Introduction reply wanted", 28);
    pub(super) const PID: Field<4> = Field::new("Introduction process ID", 32);
    pub(super) const SLAB_LEN: Field<8> = Field::new("Introduction slab length", 36);
    pub(super) const LINK_ID: Field<4> = Field::new("Introduction link ID", 44);
}

mod channel {
    use super::Field;

    pub(super) const CHANNEL: Field<2> = Field::new("Channel channel", 28);
}

/// A host-control datagram of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlMessage {
    /// The server of a TCP connection is one of us.
    Hello(Hello),
    /// A process hands over its memory and its bell.
    Introduction(Introduction),
    /// A process hands over another bell.
    Channel(Channel),
    /// A process looks for the other end of a connection.
    Lookup(Lookup),
    /// The agent has found it.
    Match(Match),
    /// The agent hangs up.
    Refusal(Refusal),
}

impl ControlMessage {
    /// Reads one whole datagram.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] when a field is cut off; [`Error::Mismatch`] when the datagram, its
    /// length field and its kind do not agree; [`Error::Invalid`] for a wrong magic, an unknown kind
    /// or a truth value that is neither 0 nor 1; [`Error::Unsupported`] for another version.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let reader = Reader::new(bytes);
        Ok(match HEADER.parse(&reader)? {
            Kind::Hello => Self::Hello(Hello::parse(&reader)?),
            Kind::Introduction => Self::Introduction(Introduction::parse(&reader)?),
            Kind::Channel => Self::Channel(Channel::parse(&reader)?),
            Kind::Lookup => Self::Lookup(Lookup::parse(&reader)?),
            Kind::Match => Self::Match(Match::parse(&reader)?),
            Kind::Refusal => Self::Refusal(Refusal::parse(&reader)?),
        })
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than the message, so never from
    /// [`EMITTED_LEN_MAX`] bytes on.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        match self {
            Self::Hello(message) => message.emit(out),
            Self::Introduction(message) => message.emit(out),
            Self::Channel(message) => message.emit(out),
            Self::Lookup(message) => message.emit(out),
            Self::Match(message) => message.emit(out),
            Self::Refusal(message) => message.emit(out),
        }
    }

    /// The process it is from, or in a [`Match`] the one it is about; 0 in a [`Refusal`].
    #[must_use]
    pub const fn instance(&self) -> Instance {
        match self {
            Self::Hello(message) => message.instance,
            Self::Introduction(message) => message.instance,
            Self::Channel(message) => message.instance,
            Self::Lookup(message) => message.instance,
            Self::Match(message) => message.instance,
            Self::Refusal(_) => Instance([0; 16]),
        }
    }
}

/// From server to client: "the process that accepted your TCP connection speaks Sidestep".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The server's process.
    pub instance: Instance,
    /// The server's slot for this connection.
    pub slot: u32,
    /// Which use of that slot this is.
    pub generation: u32,
    /// What the client shows to prove that it read this message.
    pub token: [u8; 16],
    /// Kernel's cookie of the server's TCP socket.
    pub socket_cookie: u64,
    /// Kernel's cookie of the network namespace that socket lives in.
    pub netns_cookie: u64,
    /// Bytes of the server's receive buffer.
    pub rmbe_len: u32,
}

impl Hello {
    /// Bytes on the wire.
    pub const LEN: usize = Kind::Hello.datagram_len();

    fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            instance: Instance(reader.bytes(field::INSTANCE)?),
            slot: reader.u32(hello::SLOT)?,
            generation: reader.u32(hello::GENERATION)?,
            token: reader.bytes(hello::TOKEN)?,
            socket_cookie: reader.u64(hello::SOCKET_COOKIE)?,
            netns_cookie: reader.u64(hello::NETNS_COOKIE)?,
            rmbe_len: reader.u32(hello::RMBE_LEN)?,
        })
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`LEN`](Self::LEN).
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = emit_header(Kind::Hello, self.instance, out)?;
        writer.put(hello::SLOT, self.slot.to_be_bytes())?;
        writer.put(hello::GENERATION, self.generation.to_be_bytes())?;
        writer.put(hello::TOKEN, self.token)?;
        writer.put(hello::SOCKET_COOKIE, self.socket_cookie.to_be_bytes())?;
        writer.put(hello::NETNS_COOKIE, self.netns_cookie.to_be_bytes())?;
        writer.put(hello::RMBE_LEN, self.rmbe_len.to_be_bytes())?;
        Ok(Self::LEN)
    }
}

/// From process to process: "here is my memory". Two file descriptors travel beside it.
/// With a length of 0 and none: "I have no room for yours"; of 2⁶⁴ − 1: "yours is of another
/// version"; of 2⁶⁴ − 2: "you have told me that you have no room for mine".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Introduction {
    /// The sending process.
    pub instance: Instance,
    /// Whether the sender waits for an Introduction in return.
    pub reply_wanted: bool,
    /// The sender's process ID. For display only: it may mean another process in another namespace.
    pub pid: u32,
    /// Bytes of the memory handed over. A claim, to be checked against the descriptor.
    pub slab_len: u64,
    /// The sender's name for the link group between the two processes.
    pub link_id: LinkId,
}

impl Introduction {
    /// Bytes on the wire.
    pub const LEN: usize = Kind::Introduction.datagram_len();

    fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            instance: Instance(reader.bytes(field::INSTANCE)?),
            reply_wanted: reader.truth(introduction::REPLY_WANTED)?,
            pid: reader.u32(introduction::PID)?,
            slab_len: reader.u64(introduction::SLAB_LEN)?,
            link_id: LinkId(reader.u32(introduction::LINK_ID)?),
        })
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`LEN`](Self::LEN).
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = emit_header(Kind::Introduction, self.instance, out)?;
        writer.put(introduction::REPLY_WANTED, [self.reply_wanted.into()])?;
        writer.put(introduction::PID, self.pid.to_be_bytes())?;
        writer.put(introduction::SLAB_LEN, self.slab_len.to_be_bytes())?;
        writer.put(introduction::LINK_ID, self.link_id.0.to_be_bytes())?;
        Ok(Self::LEN)
    }
}

/// From process to process: "ring this bell for that channel". One eventfd travels beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel {
    /// The sending process.
    pub instance: Instance,
    /// The number of the channel the bell belongs to.
    pub channel: u16,
}

impl Channel {
    /// Bytes on the wire.
    pub const LEN: usize = Kind::Channel.datagram_len();

    fn parse(reader: &Reader<'_>) -> Result<Self, Error> {
        Ok(Self {
            instance: Instance(reader.bytes(field::INSTANCE)?),
            channel: reader.u16(channel::CHANNEL)?,
        })
    }

    /// Writes it to the front of `out` and returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] when `out` is shorter than [`LEN`](Self::LEN).
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Error> {
        let mut writer = emit_header(Kind::Channel, self.instance, out)?;
        writer.put(channel::CHANNEL, self.channel.to_be_bytes())?;
        Ok(Self::LEN)
    }
}

/// Bytes of `sun_path`, of which an abstract name spends the first on a NUL.
const SUN_PATH_LEN: usize = 108;

/// An abstract socket name: the bytes after the leading NUL of `sun_path`.
pub type AddressName = ArrayVec<u8, SUN_PATH_LEN>;

/// Where a listener can be reached: `sidestep/1/listen/<port>/<index>`.
///
/// Several listeners may share a port (`SO_REUSEPORT`, or different addresses); `index` tells them
/// apart, counting from 0.
#[must_use]
pub fn listener_name(port: u16, index: u8) -> AddressName {
    address_name(format_args!("sidestep/1/listen/{port}/{index}"))
}

const PROCESS: &[u8] = b"sidestep/1/process/";
const HEX: &[u8; 16] = b"0123456789abcdef";

/// Where a process can be reached: `sidestep/1/process/<32 hexadecimal digits>`.
#[must_use]
pub fn mailbox_name(instance: &Instance) -> AddressName {
    // Each close of a connection asks for it: digits by a table cost a quarter of what formatting does.
    let mut digits = [0; 2 * 16];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(instance.0) {
        pair.copy_from_slice(&[byte >> 4, byte & 0xf].map(|digit| HEX[usize::from(digit)]));
    }
    let mut name = AddressName::new();
    let fits = [PROCESS, &digits].map(|part| name.try_extend_from_slice(part).is_ok());
    debug_assert_eq!(fits, [true; 2], "NAME_LEN_MAX bounds every name");
    name
}

/// Bound by the process that holds a share of the memory that the rings of a user may take, `unit` times 2 MiB
/// each: `sidestep/1/memory/<user>/<unit>/<index>`.
#[must_use]
pub fn memory_name(uid: u32, unit: u32, index: u32) -> AddressName {
    address_name(format_args!("sidestep/1/memory/{uid}/{unit}/{index}"))
}

/// Bound by a process that has passed an undecided connection on and still has it open, where
/// `cookie` is the kernel's of the TCP socket: `sidestep/1/given/<16 hexadecimal digits>/<index>`.
#[must_use]
pub fn given_name(cookie: u64, index: u8) -> AddressName {
    address_name(format_args!("sidestep/1/given/{cookie:016x}/{index}"))
}

/// Where the client of a TCP connection can be reached: `sidestep/1/connection/<client>-<server>`.
///
/// Both sides must arrive at the same name from what `getsockname` and `getpeername` tell them, so
/// an IPv4-mapped IPv6 address counts as IPv4, and scope and flow are left out. An end is written
/// `10.0.0.2:40000`, or for IPv6 as 32 hexadecimal digits, `:` and the port: the usual notation with
/// colons would not fit `sun_path` twice.
#[must_use]
pub fn connection_name(client: SocketAddr, server: SocketAddr) -> AddressName {
    address_name(format_args!("sidestep/1/connection/{}-{}", Endpoint(client), Endpoint(server)))
}

/// What is left in shared memory in the place of [`connection_name`], between processes that
/// share some already: the same, and the network namespace it is true in, as 128 bits.
///
/// That two connections of one namespace have the same token is as likely as guessing it.
#[must_use]
pub fn connection_token(client: SocketAddr, server: SocketAddr, netns_cookie: u64) -> [u8; 16] {
    // Each write to the hasher has its price.
    let mut bytes = ArrayVec::<u8, TOKENED_LEN_MAX>::new();
    let mut put = |part: &[u8]| {
        let is_put = bytes.try_extend_from_slice(part).is_ok();
        debug_assert!(is_put, "TOKENED_LEN_MAX bounds what makes a token");
    };
    for end in [client, server] {
        match end.ip() {
            IpAddr::V4(ip) => put(&ip.octets()),
            IpAddr::V6(ip) => put(&ip.octets()),
        }
        put(&end.port().to_be_bytes());
    }
    put(&netns_cookie.to_be_bytes());
    let mut hasher = SipHasher24::new();
    hasher.write(&bytes);
    hasher.finish128().as_bytes()
}

/// The longest that makes a token: two ends of IPv6, and a namespace.
const TOKENED_LEN_MAX: usize = 2 * (16 + 2) + 8;

/// The same for a connection whose ends do not find each other by name: its identity alone. Addresses say nothing
/// there: two networks of one host may use the same ones, and behind a translation each end sees others.
#[must_use]
pub fn distant_token(identity: Identity) -> [u8; 16] {
    let mut hasher = SipHasher24::new();
    hasher.write(b"identity");
    hasher.write(&identity.client.to_be_bytes());
    hasher.write(&identity.server.to_be_bytes());
    hasher.finish128().as_bytes()
}

/// What the name of a bundle says.
///
/// A bundle is a socket that stands in for a connection while it goes to another program, and
/// carries the connection's memory. No byte is in it, so all there is to say stands in its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bundle {
    /// The slot of the connection in the state beside it.
    pub slot: u32,
    /// The process at the other end of the connection.
    pub peer: Instance,
    /// Makes the name unique; never 0.
    pub number: u64,
}

impl Bundle {
    const PREFIX: &[u8] = b"sidestep/1/bundle/";

    /// What a socket is bound to: `sidestep/1/bundle/<slot>/<peer>/<number>`, in hexadecimal.
    #[must_use]
    pub fn name(&self) -> AddressName {
        let Self { slot, peer, number } = self;
        address_name(format_args!("sidestep/1/bundle/{slot:08x}/{peer}/{number:016x}"))
    }

    /// Whether a name is that of a bundle, or was meant to be.
    #[must_use]
    pub fn is_name(name: &[u8]) -> bool {
        name.starts_with(Self::PREFIX)
    }

    /// Reads a name.
    #[must_use]
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let rest = core::str::from_utf8(name.strip_prefix(Self::PREFIX)?).ok()?;
        let mut words = rest.split('/');
        let mut word = |len| words.next().filter(|word: &&str| word.len() == len);
        let bundle = Self {
            slot: u32::from_str_radix(word(8)?, 16).ok()?,
            peer: Instance(u128::from_str_radix(word(32)?, 16).ok()?.to_be_bytes()),
            number: u64::from_str_radix(word(16)?, 16).ok()?,
        };
        (bundle.name().as_slice() == name).then_some(bundle)
    }
}

/// One end of a TCP connection, as it stands in a connection name.
struct Endpoint(SocketAddr);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.ip().to_canonical() {
            IpAddr::V4(address) => write!(f, "{address}")?,
            IpAddr::V6(address) => write!(f, "{:032x}", address.to_bits())?,
        }
        write!(f, ":{}", self.0.port())
    }
}

pub(crate) fn address_name(text: fmt::Arguments<'_>) -> AddressName {
    let mut name = NameWriter(AddressName::new());
    let written = name.write_fmt(text);
    debug_assert!(written.is_ok(), "NAME_LEN_MAX bounds every name");
    name.0
}

/// Lets text be written into a name without allocating.
struct NameWriter(AddressName);

impl Write for NameWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.try_extend_from_slice(text.as_bytes()).map_err(|_| fmt::Error)
    }
}

/// The longest name there is: a connection between two IPv6 addresses with five-digit ports.
const NAME_LEN_MAX: usize = "sidestep/1/connection/".len() + 2 * (32 + ":65535".len()) + "-".len();
const _: () = assert!(NAME_LEN_MAX < SUN_PATH_LEN, "one byte of sun_path is the leading NUL");

const _: () = assert!(hello::RMBE_LEN.at + 4 == Hello::LEN);
const _: () = assert!(introduction::LINK_ID.at + 4 == Introduction::LEN);
const _: () = assert!(channel::CHANNEL.at + 4 == Channel::LEN);

const _: () = assert!(Match::LEN <= EMITTED_LEN_MAX);

#[cfg(test)]
mod tests {
    use std::string::String;

    use super::*;
    use crate::ids::ExtendedGid;

    fn text(name: AddressName) -> String {
        String::from_utf8(name.to_vec()).unwrap()
    }

    fn connection(client: &str, server: &str) -> String {
        text(connection_name(client.parse().unwrap(), server.parse().unwrap()))
    }

    #[test]
    fn listeners_and_processes_have_names() {
        assert_eq!(text(listener_name(5000, 0)), "sidestep/1/listen/5000/0");
        assert_eq!(text(listener_name(65_535, 255)), "sidestep/1/listen/65535/255");
        assert_eq!(
            text(mailbox_name(&Instance(core::array::from_fn(|index| index as u8)))),
            "sidestep/1/process/000102030405060708090a0b0c0d0e0f"
        );
        assert_eq!(text(given_name(0x5000, 3)), "sidestep/1/given/0000000000005000/3");
    }

    #[test]
    fn a_connection_is_named_after_its_ends() {
        assert_eq!(
            connection("10.0.0.2:40000", "10.0.0.1:5000"),
            "sidestep/1/connection/10.0.0.2:40000-10.0.0.1:5000"
        );
        assert_eq!(
            connection("[2001:db8::2]:40000", "[::1]:5000"),
            "sidestep/1/connection/20010db8000000000000000000000002:40000\
             -00000000000000000000000000000001:5000"
        );
    }

    /// A client that connects through an IPv6 socket sees mapped addresses, the server may not.
    #[test]
    fn both_ends_arrive_at_the_same_name() {
        assert_eq!(
            connection("[::ffff:10.0.0.2]:40000", "[::ffff:10.0.0.1]:5000"),
            connection("10.0.0.2:40000", "10.0.0.1:5000"),
        );
        assert_eq!(
            connection("[fe80::2%3]:40000", "[fe80::1%3]:5000"),
            connection("[fe80::2]:40000", "[fe80::1%7]:5000"),
        );
    }

    #[test]
    fn the_name_of_a_bundle_says_what_is_in_it() {
        let peer = Instance(core::array::from_fn(|index| index as u8 + 200));
        let bundle = Bundle { slot: 16_383, peer, number: 0xfedc_0000_0000_0001 };
        let name = bundle.name();
        assert!(Bundle::is_name(&name));
        assert_eq!(Bundle::from_name(&name), Some(bundle));
        for broken in [&name[..name.len() - 1], b"sidestep/1/bundle/", b"sidestep/1/bundle/0/1/2"] {
            assert!(Bundle::is_name(broken));
            assert_eq!(Bundle::from_name(broken), None);
        }
        assert_eq!(Bundle::from_name(&mailbox_name(&peer)), None);
        let sign = text(name).replace("00003fff", "+0003fff");
        assert_eq!(Bundle::from_name(sign.as_bytes()), None);
    }

    #[test]
    fn the_longest_name_fits() {
        let far = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
        assert_eq!(connection(far, far).len(), NAME_LEN_MAX);
        let far = "255.255.255.255:65535";
        assert!(connection(far, far).len() < NAME_LEN_MAX);
    }

    #[test]
    fn an_instance_is_a_gid() {
        let instance = Instance(core::array::from_fn(|index| index as u8));
        assert_eq!(Instance::from(ExtendedGid::from(instance)), instance);
    }

    #[test]
    fn a_token_says_which_connection_it_is() {
        let [client, server] = ["10.0.0.2:40000", "10.0.0.1:5000"].map(|end| end.parse().unwrap());
        let identity = Identity { client: 1, server: 2 };
        let tokens = [
            connection_token(client, server, 7),
            connection_token(server, client, 7),
            connection_token(client, server, 8),
            distant_token(identity),
            distant_token(Identity { client: 2, server: 1 }),
            connection_token(client, server, 0x0000_0001_0000_0002),
        ];
        for (at, token) in tokens.iter().enumerate() {
            assert!(!tokens[..at].contains(token), "{at}");
        }
        assert_eq!(tokens[3], distant_token(identity));
    }
}
