//! Two exchanges on a table, between them a stream that comes in pieces.

use std::boxed::Box;
use std::collections::VecDeque;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;
use std::{format, vec};

use arrayvec::ArrayVec;
use core::time::Duration;
use sidestep_wire::clc::proposal::IpPrefixes;
use sidestep_wire::clc::{
    AcceptConfirm, AcceptConfirmR, Decline, EMITTED_LEN_MAX, FirstContactR, FormR, Header,
    Hostname, Message, Proposal, Release, Role, Version,
};
use sidestep_wire::{
    AlertToken, Diagnosis, Eid, Mac, Mtu, PeerId, Psn, QpNumber, Rkey, RmbAddress, RmbeSize,
    RoceGid,
};

use super::eligibility::FEATURES;
use super::*;
use crate::link_group::{ADAPTERS_MAX, AdapterId};

mod appendix_c;
mod choice;
mod linux;
mod random;

const UEID: &str = "SMCV2-EID-1";
const V2_ONLY: Versions = Versions { v1: false, v2: true };
const V1_ONLY: Versions = Versions { v1: true, v2: false };

/// The `n`th host: one adapter for each version, on 10.0.0.`n`/24.
fn host(n: u8) -> LocalHost {
    LocalHost {
        peer_id: PeerId([n, 1, 0x52, 0x54, 0, 0, 0, n]),
        hostname: Hostname::new(b"(none)"),
        ueids: [Eid::ueid(UEID).unwrap()].into_iter().collect(),
        adapters: [adapter(1, Roce::V2, n), adapter(2, Roce::V1, n)].into_iter().collect(),
        versions: Versions { v1: true, v2: true },
        max_conns: 255,
        max_links: 2,
    }
}

/// An adapter of the host 10.0.0.`n`.
fn adapter(id: u8, roce: Roce, n: u8) -> Adapter {
    let gid = match roce {
        Roce::V1 => format!("fe80::5054:ff:fe00:{n}"),
        Roce::V2 => format!("::ffff:10.0.0.{n}"),
    };
    Adapter {
        id: AdapterId(id),
        roce,
        gid: self::gid(&gid),
        mac: Mac([0x52, 0x54, 0, 0, 0, n]),
        mtu: Mtu::from_low_bits(3),
        interface: 2,
        networks: networks(&format!("10.0.0.{n}/24")),
        vlan: 0,
        pnet_id: None,
        is_up: true,
    }
}

fn gid(address: &str) -> RoceGid {
    RoceGid(address.parse::<core::net::Ipv6Addr>().unwrap().octets())
}

fn networks(list: &str) -> ArrayVec<ipnet::IpNet, NETWORKS_MAX> {
    list.split_whitespace().map(|network| network.parse().unwrap()).collect()
}

/// From an address with its prefix length to another address.
fn route(local: &str, remote: &str) -> Route {
    let networks = networks(local);
    Route {
        local: networks[0].addr(),
        remote: remote.parse().unwrap(),
        interface: 2,
        networks,
        vlan: 0,
        pnet_id: None,
    }
}

/// What an engine does that has no trouble, and what it is told to do.
#[derive(Clone, Debug)]
struct Engine {
    /// Server: it has no link group with the client.
    first_contact: bool,
    /// It cannot prepare a connection.
    refuses: Option<Diagnosis>,
    /// It cannot get it ready.
    fails: Option<Diagnosis>,
    /// It is slow, and has to be asked for its answers.
    is_slow: bool,
}

impl Engine {
    const SOUND: Self = Self { first_contact: true, refuses: None, fails: None, is_slow: false };
}

/// One end of the connection.
struct End {
    local: Arc<LocalHost>,
    exchange: Exchange,
    engine: Engine,
    role: Role,
    /// What an engine that is slow has not answered yet.
    pending: Option<AcceptConfirmR>,
    is_linking: bool,
    /// What is on the way to it.
    incoming: VecDeque<u8>,
    /// What it was asked to do.
    asked: Vec<Event>,
    outcome: Option<Outcome>,
    /// The messages that it has sent.
    sent: Vec<Message>,
    /// The connection stays TCP, and its program has sent the first bytes.
    has_spoken: bool,
}

/// What the program of this side says first, at once, if the connection stays TCP. It looks as much
/// like a message as a program's bytes may.
fn speech(role: Role) -> &'static [u8] {
    match role {
        Role::Accept => b"\xE2\xD4\xC3\xD9\x04\0\x1c\x10 220 ready\r\n",
        Role::Confirm => b"\xE2\xD4\xC3\xD9\x01 GET / HTTP/1.1\r\n\r\n",
    }
}

impl End {
    fn new(role: Role, local: LocalHost, route: Route, engine: Engine) -> Self {
        let local = Arc::new(local);
        let make = match role {
            Role::Accept => Exchange::server,
            Role::Confirm => Exchange::client,
        };
        Self {
            exchange: make(Arc::clone(&local), route, Duration::ZERO),
            local,
            engine,
            role,
            pending: None,
            is_linking: false,
            incoming: VecDeque::new(),
            asked: Vec::new(),
            outcome: None,
            sent: Vec::new(),
            has_spoken: false,
        }
    }

    /// Reads what is wanted, in pieces of at most `piece` bytes. Whether there was anything.
    fn read(&mut self, piece: usize) -> bool {
        let len = self.exchange.wanted().min(self.incoming.len()).min(piece);
        let bytes: Vec<u8> = self.incoming.drain(..len).collect();
        assert_eq!(self.exchange.handle_bytes(&bytes), len, "what was wanted is taken");
        len > 0
    }

    /// Carries out what there is to do. Returns the messages to send.
    fn act(&mut self, now: Duration) -> Vec<u8> {
        loop {
            while let Some(event) = self.exchange.poll_event() {
                self.heed(event);
            }
            if self.engine.is_slow || !self.answer(now) {
                break;
            }
        }
        let mut bytes = Vec::new();
        while let Some(message) = self.exchange.poll_transmit() {
            self.sent.push(Message::parse(&message).expect("a message"));
            bytes.extend(message);
        }
        if matches!(self.outcome, Some(Outcome::Tcp(_))) && !self.has_spoken {
            self.has_spoken = true;
            bytes.extend(speech(self.role));
        }
        bytes
    }

    fn heed(&mut self, event: Event) {
        assert_eq!(self.outcome, None, "nothing comes behind the end");
        match &event {
            Event::Accept(_, terms) | Event::Connect(_, terms) => self.prepare(terms, &event),
            Event::Confirmed(_) => self.is_linking = true,
            Event::Ended(outcome) => self.outcome = Some(outcome.clone()),
        }
        self.asked.push(event);
    }

    fn prepare(&mut self, terms: &Terms, event: &Event) {
        let is_first = match event {
            Event::Connect(accept, _) => accept.is_first_contact(),
            _ => self.engine.first_contact,
        };
        self.pending = Some(introduction(self.role, &self.local, terms, is_first));
    }

    /// The engine's next answer. Whether it has one.
    fn answer(&mut self, now: Duration) -> bool {
        if let Some(message) = self.pending.take() {
            match self.engine.refuses {
                Some(diagnosis) => self.exchange.decline(diagnosis, now),
                None => {
                    self.exchange.introduce(&message, now);
                    self.is_linking = self.role == Role::Confirm;
                }
            }
            return true;
        }
        let was_linking = std::mem::take(&mut self.is_linking);
        match self.engine.fails {
            _ if !was_linking => {}
            Some(diagnosis) => self.exchange.decline(diagnosis, now),
            None => self.exchange.established(),
        }
        was_linking
    }
}

/// The Accept or Confirm that an engine makes by these terms.
fn introduction(role: Role, local: &LocalHost, terms: &Terms, is_first: bool) -> AcceptConfirmR {
    let adapter = local.adapters.iter().find(|it| it.id == terms.adapters[0]).unwrap();
    AcceptConfirmR {
        role,
        peer_id: local.peer_id,
        gid: adapter.gid,
        mac: adapter.mac,
        qp_number: QpNumber([0, 0, 0x11]),
        rkey: Rkey(7),
        rmbe_index: 1,
        alert_token: AlertToken(9),
        size: RmbeSize::DEFAULT,
        mtu: adapter.mtu,
        rmb_address: RmbAddress(0x1000),
        psn: Psn([0, 0, 1]),
        form: match &terms.wording {
            Wording::V1 => FormR::V1 { first_contact: is_first },
            Wording::V2 { eid, hello } => {
                FormR::V2 { eid: *eid, first_contact: is_first.then(|| hello.clone()) }
            }
        },
    }
}

struct Table {
    client: End,
    server: End,
    now: Duration,
    /// Bytes that arrive at once.
    piece: usize,
}

impl Table {
    fn new(client: (LocalHost, Route), server: (LocalHost, Route)) -> Self {
        Self::with(client, server, Engine::SOUND, Engine::SOUND)
    }

    fn with(
        client: (LocalHost, Route),
        server: (LocalHost, Route),
        clients: Engine,
        servers: Engine,
    ) -> Self {
        Self {
            client: End::new(Role::Confirm, client.0, client.1, clients),
            server: End::new(Role::Accept, server.0, server.1, servers),
            now: Duration::ZERO,
            piece: usize::MAX,
        }
    }

    /// Two hosts in one subnet.
    fn neighbours(clients: Engine, servers: Engine) -> Self {
        let client = (host(2), route("10.0.0.2/24", "10.0.0.1"));
        Self::with(client, (host(1), route("10.0.0.1/24", "10.0.0.2")), clients, servers)
    }

    /// What is sent arrives, and is answered, as long as anything is.
    fn run(&mut self) {
        loop {
            let (to_server, to_client) = (self.client.act(self.now), self.server.act(self.now));
            let is_quiet = to_server.is_empty() && to_client.is_empty();
            self.server.incoming.extend(to_server);
            self.client.incoming.extend(to_client);
            let has_read = self.client.read(self.piece) | self.server.read(self.piece);
            if is_quiet && !has_read {
                return;
            }
        }
    }

    /// Lets time go on to the next timer of either side. Whether there was one.
    fn wait(&mut self) -> bool {
        let timers = [self.client.exchange.poll_timeout(), self.server.exchange.poll_timeout()];
        let Some(next) = timers.into_iter().flatten().min() else { return false };
        self.now = self.now.max(next);
        self.client.exchange.handle_timeout(self.now);
        self.server.exchange.handle_timeout(self.now);
        self.run();
        true
    }

    fn outcomes(&mut self) -> (Outcome, Outcome) {
        self.run();
        while self.wait() {}
        (self.client.outcome.clone().unwrap(), self.server.outcome.clone().unwrap())
    }

    /// Both have agreed on this version, and nothing is left in the stream.
    fn assert_agreed(&mut self, version: Version) {
        let first_contact = self.server.engine.first_contact;
        let agreed = Outcome::Agreed { version, first_contact };
        assert_eq!(self.outcomes(), (agreed.clone(), agreed));
        self.assert_at_the_programs_bytes();
    }

    /// One side has declined, and both are at the first byte of the program.
    fn assert_declined(&mut self, by: Role, cause: Cause) {
        let (client, server) = self.outcomes();
        let (ours, peers) = match by {
            Role::Accept => (server, client),
            Role::Confirm => (client, server),
        };
        assert_eq!(ours, Outcome::Tcp(Fallback::Ours(cause)));
        let Outcome::Tcp(Fallback::Peers(decline)) = peers else { panic!("{peers:?}") };
        assert_eq!(decline.diagnosis, cause.diagnosis());
        self.assert_at_the_programs_bytes();
    }

    /// What is left in the stream is the program's, and all of that.
    fn assert_at_the_programs_bytes(&self) {
        for (end, peer) in [(&self.client, &self.server), (&self.server, &self.client)] {
            let spoken = if peer.has_spoken { speech(peer.role) } else { &[] };
            assert_eq!(end.incoming, spoken);
            assert_eq!((end.exchange.wanted(), end.exchange.poll_timeout()), (0, None));
        }
    }
}

/// The bytes of a message.
fn bytes(message: impl Into<Message>) -> Vec<u8> {
    let mut room = [0; EMITTED_LEN_MAX];
    let len = message.into().emit(&mut room).unwrap();
    room[..len].to_vec()
}

#[test]
fn two_neighbours_agree_on_version_2() {
    let mut table = Table::neighbours(Engine::SOUND, Engine::SOUND);
    table.assert_agreed(Version::V2);
    assert!(matches!(table.client.sent[..], [Message::Proposal(_), Message::Confirm(_)]));
    assert!(matches!(table.server.sent[..], [Message::Accept(_)]));
    let [Event::Accept(proposer, terms), ..] = &table.server.asked[..] else { panic!() };
    assert_eq!((proposer.peer_id, proposer.gid), (host(2).peer_id, gid("::ffff:10.0.0.2")));
    assert_eq!(terms.adapters[..], [AdapterId(1)]);
}

#[test]
fn a_message_may_come_byte_by_byte_or_with_the_programs_bytes_behind_it() {
    for piece in [1, 7, 8, 9, 100] {
        let mut table = Table::neighbours(Engine::SOUND, Engine::SOUND);
        table.piece = piece;
        table.assert_agreed(Version::V2);
    }
    let mut client = Exchange::client(
        Arc::new(LocalHost { adapters: ArrayVec::new(), ..host(2) }),
        route("10.0.0.2/24", "10.0.0.1"),
        Duration::ZERO,
    );
    let mut stream = client.poll_transmit().unwrap();
    let decline_len = stream.len();
    stream.extend(b"GET / HTTP/1.1\r\n");
    let route = route("10.0.0.1/24", "10.0.0.2");
    let mut server = Exchange::server(Arc::new(host(1)), route, Duration::ZERO);
    assert_eq!(server.handle_bytes(&stream), decline_len, "the rest is the program's");
    assert!(matches!(server.poll_event(), Some(Event::Ended(Outcome::Tcp(Fallback::Peers(_))))));
}

#[test]
fn no_more_is_wanted_than_the_message_has() {
    let route = route("10.0.0.1/24", "10.0.0.2");
    let mut server = Exchange::server(Arc::new(host(1)), route, Duration::ZERO);
    let decline = bytes(Decline::v1(PeerId::default(), Diagnosis::CNFERR));
    assert_eq!(server.wanted(), Header::LEN);
    assert_eq!(server.handle_bytes(&decline[..3]), 3);
    assert_eq!(server.wanted(), Header::LEN - 3);
    assert_eq!(server.handle_bytes(&decline[3..8]), 5);
    assert_eq!(server.wanted(), decline.len() - Header::LEN);
    assert_eq!(server.handle_bytes(&decline[8..]), decline.len() - 8);
    assert_eq!((server.wanted(), server.poll_timeout()), (0, None));
}

#[test]
fn nothing_is_read_while_the_engine_prepares() {
    let slow = Engine { is_slow: true, ..Engine::SOUND };
    let mut table = Table::neighbours(slow.clone(), slow);
    table.run();
    assert_eq!((table.server.exchange.wanted(), table.server.exchange.poll_timeout()), (0, None));
    table.server.answer(table.now);
    table.run();
    assert_eq!((table.client.exchange.wanted(), table.client.exchange.poll_timeout()), (0, None));
    table.client.answer(table.now);
    table.run();
    // Both may hear a Decline until CONFIRM LINK is done, for which the engines have timers.
    for end in [&mut table.client, &mut table.server] {
        assert_eq!((end.exchange.wanted(), end.exchange.poll_timeout()), (Header::LEN, None));
        end.answer(Duration::ZERO);
    }
    table.assert_agreed(Version::V2);
}

#[test]
fn behind_a_subsequent_contact_nothing_is_read() {
    let known = Engine { first_contact: false, is_slow: true, ..Engine::SOUND };
    let mut table = Table::neighbours(Engine::SOUND, known);
    table.run();
    table.server.answer(table.now);
    table.run();
    assert_eq!(table.server.exchange.wanted(), 0, "its engine has not begun yet");
    table.server.answer(table.now);
    table.assert_agreed(Version::V2);
}

#[test]
fn the_outcome_says_why_in_plain_words() {
    let ours = Fallback::Ours(Cause::NoCommonEid);
    assert_eq!(String::from("declined here: no UEID in common"), format!("{ours}"));
    assert_eq!(ours.diagnosis(), Diagnosis::NOSMCDEV);
    let peers = Fallback::Peers(Decline::v2(PeerId::default(), Diagnosis::MEM));
    let words = "declined by the peer: 0x01010000 MEM (out of memory for a buffer or a link group)";
    assert_eq!(format!("{peers}"), words);
    let ours = Fallback::Ours(Cause::Driver(Diagnosis::MEM));
    assert_eq!(format!("{ours}"), "declined here: out of memory for a buffer or a link group");
}
