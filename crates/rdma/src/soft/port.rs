//! The port: where an adapter meets the network.
//!
//! ```text
//!   receiver   bound to (address, 4791)        <── every packet for us, whatever port it is from
//!   sender     bound to (address, 0xC000…)     ──> everything of ours
//! ```
//!
//! Two sockets, because they want opposite things. The receiver's port is the standard's. The
//! sender has a port of its own, by which interfaces and routers keep our packets on one way and in
//! order, and options that make the kernel write the headers that the ICRC counts on ([`options`]).
//!
//! **Runs.** Packets of equal length leave as one message of the kernel's ([`batch`]). The *k*-th of
//! them has IP identification *k*; that is measured (`tests/rnic/cable.rs`), and their ICRCs say so.
//! Hardware that parts runs is expected to count alike, as with TCP. Where that is wrong, or
//! where a box on the way numbers packets anew, a peer that checks the identification hears only
//! the first of each run. An adapter [notices](super::Adapter::loses_runs), and then it is
//! [singles](Port::stop_runs) without a UDP checksum, which no such box touches. (A peer of our own
//! kind takes any identification: it cannot see it, and reckons it from the ICRC.)
//!
//! **Nothing is lost here that the network did not lose.** What the kernel does with a datagram:
//!
//! | Answer | Meaning | So |
//! |---|---|---|
//! | `EAGAIN` | the socket is full | wait until it is writable |
//! | `ENOBUFS`, `ENOMEM` | the kernel is out of memory | again a little later |
//! | `ECONNREFUSED` and others of ICMP | told of an earlier datagram | again at once |
//! | `EIO`, `EINVAL` for a run | this way takes no runs | its datagrams one by one, and no more runs |
//! | `EMSGSIZE` | longer than the interface takes | lost, and counted: the MTU was chosen badly |
//! | `EPERM`, `ENETUNREACH`, … | a firewall, no route | lost on the way, and counted |

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use sidestep_wire::roce::icrc::{Addresses, Envelope};
use sidestep_wire::roce::{ICRC_LEN, PORT};

use super::adapter::Run;
use super::sys::{self, SocketName};

pub mod batch;
pub mod mtu;
mod options;

use batch::{Inbox, Outbox};
use mtu::MtuError;
pub use options::RECEIVE_BUFFER;

/// Where ports of senders begin. Linux's `rdma_rxe` has its own there, too.
const SOURCE_PORT_MIN: u16 = 0xC000;
/// So many are tried before it is believed that all are taken.
const SOURCE_PORT_TRIES: u32 = 64;

/// What a port may be like.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Packets come and go by this network interface only.
    pub device: Option<String>,
    /// Packets leave in runs.
    pub runs: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { device: None, runs: true }
    }
}

/// Why there is no port.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is taken: by the kernel's `rdma_rxe`, or by another process.
    #[error("UDP port {PORT} of {0} is in use")]
    InUse(IpAddr),
    /// It is not an address of this host.
    #[error("{0} is not an address of this host")]
    NoSuchAddress(IpAddr),
    /// The kernel refuses something that it should not.
    #[error("no sockets for {address}: {error}")]
    Kernel {
        /// Of the port.
        address: IpAddr,
        /// What it says.
        error: io::Error,
    },
}

impl OpenError {
    pub(super) fn new(address: IpAddr, error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EADDRINUSE) => Self::InUse(address),
            Some(libc::EADDRNOTAVAIL) => Self::NoSuchAddress(address),
            _ => Self::Kernel { address, error },
        }
    }
}

/// What became of datagrams, and of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that were given to the kernel; a run is one.
    pub sent: u64,
    /// Datagrams that no interface takes: longer than its MTU.
    pub too_long: u64,
    /// Datagrams that a firewall or the lack of a route has stopped.
    pub stopped: u64,
    /// Times that the sender was full.
    pub full: u64,
    /// Times that the kernel had no memory.
    pub no_memory: u64,
    /// Errors that told of something earlier, and went by themselves.
    pub passed: u64,
}

/// How far sending has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Everything is on its way.
    All,
    /// The sender is full: go on when it is writable.
    Full,
    /// The kernel has no memory: go on a little later.
    NoMemory,
}

/// The sockets of an address.
#[derive(Debug)]
pub struct Port {
    address: IpAddr,
    source_port: u16,
    device: Option<String>,
    receiver: OwnedFd,
    sender: OwnedFd,
    receive_buffer: usize,
    sends_runs: bool,
    counters: Counters,
}

impl Port {
    /// Opens the port of an address of this host. Link-local ones of IPv6 have none.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(address: IpAddr, settings: &Settings) -> Result<Self, OpenError> {
        let make = || Self::make(address, settings, make_receiver(address, settings)?);
        make().map_err(|error| OpenError::new(address, error))
    }

    /// The same with the receiver that another process has had for this address.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn take_over(
        address: IpAddr,
        settings: &Settings,
        receiver: OwnedFd,
    ) -> Result<Self, OpenError> {
        Self::make(address, settings, receiver).map_err(|error| OpenError::new(address, error))
    }

    fn make(address: IpAddr, settings: &Settings, receiver: OwnedFd) -> io::Result<Self> {
        let sender = make_socket(address, settings)?;
        options::set_sender(sender.as_fd(), address)?;
        let source_port = bind_somewhere(sender.as_fd(), address)?;
        let mut port = Self {
            address,
            source_port,
            device: settings.device.clone(),
            receive_buffer: options::receive_buffer(receiver.as_fd())?,
            receiver,
            sender,
            sends_runs: true,
            counters: Counters::default(),
        };
        if !settings.runs {
            port.stop_runs()?;
        }
        Ok(port)
    }

    /// The address.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// The UDP port from which it sends.
    #[must_use]
    pub const fn source_port(&self) -> u16 {
        self.source_port
    }

    /// Bytes of kernel memory for what has come. Less than [`RECEIVE_BUFFER`] without privilege
    /// where `net.core.rmem_max` is low: then bursts of several peers may be lost.
    #[must_use]
    pub const fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// The longest payload that both this host and the way to a peer take: what to offer it.
    ///
    /// # Errors
    ///
    /// [`MtuError`]: there is no way, or a narrow one.
    pub fn mtu_to(&self, peer: IpAddr) -> Result<u16, MtuError> {
        mtu::on_the_way(self.address, peer, self.device.as_deref())
    }

    /// What became of datagrams so far.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// The most datagrams of a run.
    #[must_use]
    pub const fn segments_max(&self) -> usize {
        if self.sends_runs { batch::SEGMENTS_MAX } else { 1 }
    }

    /// From now on datagrams leave one by one, and without a checksum that a box on the way could
    /// take as a permission to join them.
    ///
    /// # Errors
    ///
    /// That of the kernel; they leave one by one all the same.
    pub fn stop_runs(&mut self) -> io::Result<()> {
        self.sends_runs = false;
        options::leave_checksum_out(self.sender.as_fd(), self.address)
    }

    /// Readable when something has come.
    #[must_use]
    pub fn receiver(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }

    /// Writable when there is room to send.
    #[must_use]
    pub fn sender(&self) -> BorrowedFd<'_> {
        self.sender.as_fd()
    }

    /// Takes what has come. True: there may be more.
    pub fn receive(&mut self, inbox: &mut Inbox) -> bool {
        loop {
            match inbox.receive(self.receiver.as_fd()) {
                Ok(is_full) => return is_full,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return false,
                    // An error that waited at the socket is gone when it was told.
                    _ => self.counters.passed += 1,
                },
            }
        }
    }

    /// Sends what is in the outbox, as far as the kernel takes it.
    pub fn send(&mut self, outbox: &mut Outbox) -> Sent {
        let mut told = 0;
        while !outbox.is_empty() {
            let error = match outbox.send(self.sender.as_fd()) {
                Ok(count) => {
                    self.counters.sent += count as u64;
                    outbox.advance(count);
                    told = 0;
                    continue;
                }
                Err(error) => error.raw_os_error().unwrap_or(0),
            };
            match error {
                libc::EAGAIN => {
                    self.counters.full += 1;
                    return Sent::Full;
                }
                libc::ENOBUFS | libc::ENOMEM => {
                    self.counters.no_memory += 1;
                    return Sent::NoMemory;
                }
                libc::EIO | libc::EINVAL if self.part_front(outbox) => {}
                libc::EMSGSIZE => self.counters.too_long += lose_front(outbox),
                libc::EINTR | libc::ECONNREFUSED | libc::EHOSTUNREACH if told < TOLD_MAX => {
                    told += 1;
                    self.counters.passed += 1;
                }
                _ => self.counters.stopped += lose_front(outbox),
            }
        }
        Sent::All
    }

    /// The kernel takes no runs on some way. False: what it refuses is none.
    fn part_front(&mut self, outbox: &mut Outbox) -> bool {
        let Some((run, bytes)) = outbox.front() else { return false };
        if run.len == run.segment_len {
            return false;
        }
        self.seal_singles(run, bytes);
        outbox.part_front();
        // If it fails, datagrams still leave one by one.
        let _ = self.stop_runs();
        true
    }

    /// Seals the datagrams of a run as those that leave one by one.
    pub fn seal_singles(&self, run: Run, bytes: &mut [u8]) {
        let Some(addresses) = Addresses::new(self.address, run.to) else { return };
        let source_port = self.source_port;
        let envelope = Envelope { addresses, source_port, destination_port: PORT };
        bytes.chunks_mut(run.segment_len).for_each(|datagram| seal(datagram, &envelope));
    }
}

/// How often in a row an error is believed to tell of something earlier.
const TOLD_MAX: u32 = 4;

/// As one that leaves alone: with identification 0.
fn seal(datagram: &mut [u8], envelope: &Envelope) {
    if let Some((packet, icrc)) = datagram.split_last_chunk_mut::<ICRC_LEN>() {
        *icrc = envelope.icrc(packet, 0);
    }
}

/// The oldest run will never leave; returns its datagrams.
fn lose_front(outbox: &mut Outbox) -> u64 {
    let count = outbox.front().map_or(0, |(run, _)| run.len.div_ceil(run.segment_len));
    outbox.advance(1);
    count as u64
}

fn make_socket(address: IpAddr, settings: &Settings) -> io::Result<OwnedFd> {
    let socket = sys::socket(options::family(address), libc::SOCK_DGRAM)?;
    let device = settings.device.as_deref();
    device.map_or(Ok(()), |device| options::bind_to_device(socket.as_fd(), device))?;
    Ok(socket)
}

fn make_receiver(address: IpAddr, settings: &Settings) -> io::Result<OwnedFd> {
    let receiver = make_socket(address, settings)?;
    options::set_receiver(receiver.as_fd(), address)?;
    sys::bind(receiver.as_fd(), &SocketName::new(SocketAddr::new(address, PORT)))?;
    Ok(receiver)
}

/// Binds a sender to a free port.
fn bind_somewhere(socket: BorrowedFd<'_>, address: IpAddr) -> io::Result<u16> {
    let mut tries = 0;
    loop {
        let port = SOURCE_PORT_MIN | rand::random::<u16>();
        tries += 1;
        match sys::bind(socket, &SocketName::new(SocketAddr::new(address, port))) {
            Ok(()) => return Ok(port),
            Err(error)
                if error.raw_os_error() == Some(libc::EADDRINUSE) && tries < SOURCE_PORT_TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use sidestep_wire::roce::icrc::{Uncached, Verdict};

    use super::super::adapter::{Datagram, Run};
    use super::*;

    const PACKET_LEN: usize = 100;
    const SEGMENT_LEN: usize = PACKET_LEN + ICRC_LEN;

    fn ports(third: u8) -> [Port; 2] {
        [1, 2].map(|last| {
            let address = IpAddr::from([127, 0, third, last]);
            Port::open(address, &Settings::default()).unwrap()
        })
    }

    fn envelope(from: &Port, to: &Port) -> Envelope {
        let addresses = Addresses::new(from.address(), to.address()).unwrap();
        Envelope { addresses, source_port: from.source_port(), destination_port: PORT }
    }

    /// Sends a run of three, and returns what the receiver can tell of their identifications.
    fn send_run([sender, receiver]: &mut [Port; 2]) -> Vec<Verdict> {
        let envelope = envelope(sender, receiver);
        let mut outbox = Outbox::default();
        let room = outbox.room().unwrap();
        for (index, datagram) in room.chunks_mut(SEGMENT_LEN).take(3).enumerate() {
            let (packet, icrc) = datagram.split_last_chunk_mut().unwrap();
            packet.fill(index as u8);
            *icrc = envelope.icrc(packet, index as u16);
        }
        let len = 3 * SEGMENT_LEN;
        outbox.push(Run { to: receiver.address(), len, segment_len: SEGMENT_LEN });
        assert_eq!(sender.send(&mut outbox), Sent::All);
        assert!(outbox.is_empty() && outbox.front().is_none());
        let mut inbox = Inbox::default();
        assert!(!receiver.receive(&mut inbox));
        let check = |(index, datagram): (usize, Datagram<'_>)| {
            assert_eq!((datagram.from, datagram.port), (sender.address(), sender.source_port()));
            assert!(datagram.bytes[..PACKET_LEN] == [index as u8; PACKET_LEN]);
            envelope.check(datagram.bytes, 0, &mut Uncached)
        };
        inbox.datagrams().enumerate().map(check).collect()
    }

    #[test]
    fn a_run_arrives_as_its_datagrams() {
        let expected = [0, 1, 2].map(|identification| Verdict::Intact { identification });
        assert_eq!(send_run(&mut ports(10)), expected);
    }

    #[test]
    fn a_run_that_the_kernel_refuses_leaves_one_by_one() {
        let mut ports = ports(11);
        // Runs must have a checksum.
        options::leave_checksum_out(ports[0].sender(), ports[0].address()).unwrap();
        let expected = [Verdict::Intact { identification: 0 }; 3];
        assert_eq!(send_run(&mut ports), expected);
        assert_eq!(ports[0].segments_max(), 1, "and no more are tried");
        assert_eq!(ports[0].counters(), Counters { sent: 3, ..Counters::default() });
    }
}
