//! Whether a target's server speaks SMC, which the distributor asks `sidestep distributor target` of that host, in datagrams
//! of UDP.
//!
//! ```text
//!   4 "SDQ1"   1 kind   1 zero   2 port   8 number
//! ```
//!
//! Programs under Sidestep leave a marker for each port at which they listen, and markers are seen in their own network
//! namespace alone, so the host has to be asked. The answer has the number of the question, which was drawn for it: who does not
//! see the question cannot answer it.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use super::greeting::{self, Acquaintances};
use super::presence;

/// At which port distributors, and hosts of targets, listen: that of RFC 7609, as it were.
pub(super) const PORT: u16 = 7609;

const LEN: usize = 16;
const MAGIC: [u8; 4] = *b"SDQ1";
const KIND: usize = 4;
const WHICH_PORT: usize = 6;
const NUMBER: usize = 8;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Question,
    /// A program under Sidestep listens on this port.
    Speaks,
    /// None does.
    IsSilent,
}

/// A datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inquiry {
    kind: Kind,
    port: u16,
    number: u64,
}

impl Inquiry {
    fn written(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..KIND].copy_from_slice(&MAGIC);
        bytes[KIND] = match self.kind {
            Kind::Question => 1,
            Kind::Speaks => 2,
            Kind::IsSilent => 3,
        };
        bytes[WHICH_PORT..NUMBER].copy_from_slice(&self.port.to_be_bytes());
        bytes[NUMBER..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// `None`: it is something else.
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let kind = match bytes[KIND] {
            1 => Kind::Question,
            2 => Kind::Speaks,
            3 => Kind::IsSilent,
            _ => return None,
        };
        let port = u16::from_be_bytes(bytes[WHICH_PORT..NUMBER].try_into().ok()?);
        let number = u64::from_be_bytes(bytes[NUMBER..].try_into().ok()?);
        let inquiry = Self { kind, port, number };
        (inquiry.written() == *bytes).then_some(inquiry)
    }
}

/// Answers distributors, those that greet as well, by a thread, for as long as the process lives.
///
/// # Errors
/// The port is taken, or there is no thread.
pub(super) fn answer_all(with_ipv6: bool, mut known: Acquaintances) -> io::Result<()> {
    // A socket of IPv6 hears both.
    let any: IpAddr =
        if with_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, PORT))?;
    let answering = thread::Builder::new().name("inquiries".to_owned());
    answering.spawn(move || answer(&socket, &mut known)).map(drop)
}

fn answer(socket: &UdpSocket, known: &mut Acquaintances) {
    // One more than a question has, or a greeting: a longer one is not taken for its beginning.
    let mut bytes = [0; greeting::LEN + 1];
    loop {
        // An error is that of a distributor which is not there any more.
        let Ok((len, from)) = socket.recv_from(&mut bytes) else { continue };
        let bytes = &bytes[..len];
        let greeted = || known.answer(bytes, from.ip()).map(Vec::from);
        // One that is lost is asked for again.
        if let Some(answer) = answer_to(bytes).map(Vec::from).or_else(greeted) {
            _ = socket.send_to(&answer, from);
        }
    }
}

fn answer_to(bytes: &[u8]) -> Option<[u8; LEN]> {
    let question = Inquiry::read(bytes).filter(|it| it.kind == Kind::Question)?;
    let speaks = presence::has_marker(question.port);
    let kind = if speaks { Kind::Speaks } else { Kind::IsSilent };
    Some(Inquiry { kind, ..question }.written())
}

/// Whether a program under Sidestep listens on a target's port, as its host says; `None`: it does not answer in time.
pub(super) async fn speaks_smc(target: SocketAddr, patience: Duration) -> Option<bool> {
    let asked = async { ask(SocketAddr::new(target.ip(), PORT), target.port()).await.ok() };
    tokio::time::timeout(patience, asked).await.ok().flatten()
}

async fn ask(host: SocketAddr, port: u16) -> io::Result<bool> {
    let mut number = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut number)?;
    let question = Inquiry { kind: Kind::Question, port, number: u64::from_ne_bytes(number) };
    let any: IpAddr =
        if host.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    // The answer may come from another address of the host, so the number alone tells it.
    let socket = tokio::net::UdpSocket::bind((any, 0)).await?;
    socket.send_to(&question.written(), host).await?;
    let mut bytes = [0; LEN + 1];
    loop {
        let (len, _) = socket.recv_from(&mut bytes).await?;
        match Inquiry::read(&bytes[..len]) {
            Some(it) if it == (Inquiry { kind: Kind::Speaks, ..question }) => return Ok(true),
            Some(it) if it == (Inquiry { kind: Kind::IsSilent, ..question }) => return Ok(false),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::vip::presence::Presence;
    use std::net::TcpListener;

    #[test]
    fn only_what_was_written_is_read() {
        for kind in [Kind::Question, Kind::Speaks, Kind::IsSilent] {
            let inquiry = Inquiry { kind, port: 6379, number: 0x0102_0304_0506_0708 };
            let bytes = inquiry.written();
            assert_eq!(Inquiry::read(&bytes), Some(inquiry));
            assert_eq!(Inquiry::read(&bytes[..LEN - 1]), None, "cut off");
            assert_eq!(Inquiry::read(&[&bytes[..], &[0]].concat()), None, "too long");
            for at in [0, 5] {
                let mut changed = bytes;
                changed[at] ^= 1;
                assert_eq!(Inquiry::read(&changed), None, "byte {at}");
            }
        }
    }

    #[test]
    fn a_host_says_whether_a_port_has_a_marker() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let host = socket.local_addr().unwrap();
        thread::spawn(move || answer(&socket, &mut Acquaintances::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut presence = Presence::new(free);
        for is_there in [false, true, false] {
            presence.follow(is_there);
            let answered = runtime.block_on(ask(host, free.port())).unwrap();
            assert_eq!(answered, is_there);
        }
    }
}
