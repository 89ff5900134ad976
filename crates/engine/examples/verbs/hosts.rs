//! Two hosts in one process, each with an RDMA adapter: connections are made, bytes go there
//! and come back, and everything is given back at the end.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use sidestep_engine::{
    CallError, Caller, Event, Host, Proposer, Request, Settings, Sizes, Terms, Wording,
};
use sidestep_proto::link_group::{self, AdapterId};
use sidestep_rdma::verbs::Adapter;
use sidestep_wire::{AlertToken, Mac, Mtu, PeerId, RmbeSize, RoceGid};

pub(crate) const SERVER: usize = 0;
pub(crate) const CLIENT: usize = 1;
pub(crate) const ID: AdapterId = AdapterId(1);
/// Small: each byte's place comes again often.
const SIZES: Sizes = Sizes { rmbe: RmbeSize::MIN, send_buffer: RmbeSize::MIN };
/// What nothing takes longer than.
const PATIENCE: Duration = Duration::from_secs(25);

/// A host's adapter.
pub(crate) struct Place {
    pub(crate) device: Adapter,
    pub(crate) gid: RoceGid,
    pub(crate) mtu: Mtu,
}

/// Lets as many connections as `connections`, one after the other, carry so many bytes there and
/// back. `wait` is called when there may be nothing to do.
pub(crate) fn converse(
    places: [Place; 2],
    connections: usize,
    bytes: usize,
    wait: &mut dyn FnMut(),
) {
    let mut pair = Pair::new(places, wait);
    for nth in 0..connections {
        pair.converse(nth, bytes);
    }
    assert!(pair.hosts.iter().all(|host| host.groups().count() == 1), "one group for all");
    let now = pair.now();
    pair.hosts[CLIENT].end(true, now);
    pair.until("nothing is left", |pair| {
        pair.hosts.iter().all(|host| host.holdings() == Default::default())
    });
}

pub(crate) struct Pair<'a> {
    pub(crate) hosts: [Host<Adapter>; 2],
    /// What a client says of itself.
    proposer: Proposer,
    begin: Instant,
    wait: &'a mut dyn FnMut(),
    /// The connection that the server has accepted last.
    accepted: AlertToken,
    /// What each has told, but what was said by CLC.
    told: [Vec<Event>; 2],
}

const fn peer_id(host: usize) -> PeerId {
    PeerId([host as u8 + 1; 8])
}

/// What a program of one host asks for.
fn request(host: usize) -> Request {
    let [local, remote] = [host, 1 - host].map(|host| Ipv4Addr::new(10, 0, 0, host as u8 + 1));
    let adapters = [ID].into_iter().collect();
    let terms = Terms { own_id: peer_id(host), adapters, vlan: 0, wording: Wording::V1 };
    Request {
        caller: Caller::new(0, local.into(), remote.into()),
        terms,
        sizes: SIZES,
        stays: false,
    }
}

impl<'a> Pair<'a> {
    pub(crate) fn new(places: [Place; 2], wait: &'a mut dyn FnMut()) -> Self {
        let mac = |host: usize| Mac([2, 0, 0, 0, 0, host as u8 + 1]);
        let client_gid = places[CLIENT].gid;
        let mut number = 0;
        let hosts = places.map(|Place { device, gid, mtu }| {
            let host = number;
            number += 1;
            let mut it = Host::new(Settings { keepalive: None }, rand::make_rng());
            let described = link_group::Adapter { id: ID, gid, mac: mac(host), mtu };
            it.add_adapter(described, device, Duration::ZERO);
            it
        });
        let proposer = Proposer { peer_id: peer_id(CLIENT), gid: client_gid, mac: mac(CLIENT) };
        let (begin, accepted) = (Instant::now(), AlertToken(0));
        Self { hosts, proposer, begin, wait, accepted, told: Default::default() }
    }

    pub(crate) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Both hosts do what there is to do.
    pub(crate) fn turn(&mut self) {
        for at in [SERVER, CLIENT] {
            let now = self.now();
            let host = &mut self.hosts[at];
            if let Some(device) = host.device(ID) {
                device.receive(now);
            }
            host.handle_device(ID, now);
            if host.poll_timeout().is_some_and(|due| due <= now) {
                host.handle_timeout(now);
            }
            while let Some(event) = self.hosts[at].poll_event() {
                self.hear(at, event, now);
            }
            self.hosts[at].transmit(now);
            if let Some(device) = self.hosts[at].device(ID) {
                device.transmit(now);
            }
        }
        (self.wait)();
    }

    fn hear(&mut self, at: usize, event: Event, now: Duration) {
        match event {
            Event::Introduce(_, message) if at == SERVER => {
                self.hosts[CLIENT].connect(&message, request(CLIENT), now).expect("an Accept");
            }
            Event::Introduce(_, message) => {
                self.hosts[SERVER].handle_confirm(self.accepted, &message, now);
            }
            Event::Declined(..) | Event::Reset(..) => panic!("host {at}: {event:?}"),
            other => self.told[at].push(other),
        }
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = self.now() + PATIENCE;
        while !is_so(self) {
            assert!(self.now() < deadline, "in vain: {what}");
            self.turn();
        }
    }

    /// A connection: what the server calls it, and the client.
    pub(crate) fn connect(&mut self) -> [AlertToken; 2] {
        self.told.iter_mut().for_each(Vec::clear);
        let now = self.now();
        let server = self.hosts[SERVER].accept(self.proposer, request(SERVER), now);
        self.accepted = server.expect("a Proposal");
        let established = |pair: &Self, at: usize| {
            pair.told[at].iter().find_map(|event| match event {
                Event::Established(token) => Some(*token),
                _ => None,
            })
        };
        self.until("both are connected", |pair| {
            [SERVER, CLIENT].iter().all(|at| established(pair, *at).is_some())
        });
        let client = established(self, CLIENT).expect("just now");
        [self.accepted, client]
    }

    fn converse(&mut self, nth: usize, bytes: usize) {
        let [server, client] = self.connect();
        let said: Vec<u8> = (0..bytes).map(|at| (at * 31 + at / 251 + nth) as u8).collect();
        let (mut sent, mut heard, mut echo) = (0, Vec::new(), VecDeque::new());
        let mut is_over = [false; 2];
        let deadline = self.now() + PATIENCE;
        while !is_over[CLIENT] {
            assert!(self.now() < deadline, "{sent} bytes sent, {} came back", heard.len());
            let now = self.now();
            if sent < bytes {
                sent += done(self.hosts[CLIENT].send(client, &said[sent..], now));
                if sent == bytes {
                    self.hosts[CLIENT].shut(client, now).expect("open");
                }
            }
            is_over[SERVER] |= self.take(SERVER, server, |part| echo.extend(part));
            let part = echo.make_contiguous();
            if !part.is_empty() {
                let sent = done(self.hosts[SERVER].send(server, &part, now));
                echo.drain(..sent);
            } else if is_over[SERVER] {
                // Once is enough, and more do no harm.
                let _ = self.hosts[SERVER].shut(server, now);
            }
            is_over[CLIENT] |= self.take(CLIENT, client, |part| heard.extend_from_slice(part));
            self.turn();
        }
        assert!(heard == said, "what came back is what was said");
        let now = self.now();
        self.hosts[SERVER].close(server, now);
        self.hosts[CLIENT].close(client, now);
        self.until("both are gone", |pair| {
            pair.told[SERVER].contains(&Event::Gone(server))
                && pair.told[CLIENT].contains(&Event::Gone(client))
        });
    }

    /// Receives what there is. True: that was all, and no more will come.
    fn take(&mut self, at: usize, token: AlertToken, mut put: impl FnMut(&[u8])) -> bool {
        let mut buffer = [0; 5000];
        loop {
            match self.hosts[at].receive(token, &mut buffer, self.begin.elapsed()) {
                Ok(0) => return true,
                Ok(len) => put(&buffer[..len]),
                Err(error) => {
                    assert_eq!(error, CallError::WouldBlock);
                    return false;
                }
            }
        }
    }
}

fn done(answer: Result<usize, CallError>) -> usize {
    match answer {
        Ok(len) => len,
        Err(error) => {
            assert_eq!(error, CallError::WouldBlock);
            0
        }
    }
}
