//! Two hosts with nothing between them: what one sends the other has at once.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use sidestep_engine::{Caller, Event, Host, Proposer, Request, Settings, Sizes, Terms, Wording};
use sidestep_proto::link_group::{Adapter, AdapterId};
use sidestep_rdma::soft;
use sidestep_rdma::soft::adapter::{DATAGRAM_MAX, Datagram};
use sidestep_wire::{AlertToken, Mac, Mtu, PeerId, RoceGid};

pub(crate) const SERVER: usize = 0;
pub(crate) const CLIENT: usize = 1;
/// All adapters send from it.
const PORT: u16 = 50_000;
const ID: AdapterId = AdapterId(1);
const SEGMENTS_MAX: usize = 16;

pub(crate) struct Pair {
    hosts: [Host<soft::Adapter>; 2],
    now: Duration,
    /// What each side calls its connections.
    names: Vec<[AlertToken; 2]>,
    out: Vec<u8>,
    buffer: Vec<u8>,
}

fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host as u8 + 1)
}

fn adapter(host: usize) -> Adapter {
    Adapter {
        id: ID,
        gid: RoceGid(address(host).to_ipv6_mapped().octets()),
        mac: Mac([2, 0, 0, 0, 0, host as u8]),
        mtu: Mtu::from_low_bits(3),
    }
}

const fn peer_id(host: usize) -> PeerId {
    PeerId([host as u8 + 1; 8])
}

/// What a program of one host asks for.
fn request(host: usize) -> Request {
    let [local, remote] = [host, 1 - host].map(|host| address(host).into());
    let adapters = [ID].into_iter().collect();
    let terms = Terms { own_id: peer_id(host), adapters, vlan: 0, wording: Wording::V1 };
    Request { caller: Caller::new(0, local, remote), terms, sizes: Sizes::default(), stays: false }
}

impl Pair {
    pub(crate) fn with_connections(count: usize) -> Self {
        let now = Duration::from_secs(1);
        let hosts = [SERVER, CLIENT].map(|number| {
            let secrets = StdRng::seed_from_u64(number as u64);
            let mut host = Host::new(Settings { keepalive: None }, secrets);
            let device = soft::Adapter::seeded(number as u64, address(number).into(), PORT);
            host.add_adapter(adapter(number), device, now);
            host
        });
        let out = vec![0; SEGMENTS_MAX * DATAGRAM_MAX];
        let mut pair = Self { hosts, now, names: Vec::new(), out, buffer: vec![0; 1 << 16] };
        (0..count).for_each(|_| pair.connect());
        pair
    }

    fn connect(&mut self) {
        let Adapter { gid, mac, .. } = adapter(CLIENT);
        let proposer = Proposer { peer_id: peer_id(CLIENT), gid, mac };
        let now = self.now;
        let server = self.hosts[SERVER].accept(proposer, request(SERVER), now).unwrap();
        let mut established = [false; 2];
        let mut client = None;
        while established != [true; 2] {
            self.settle();
            // The server waits for another link at first.
            let next = self.hosts.iter().filter_map(Host::poll_timeout).min();
            for at in [SERVER, CLIENT] {
                while let Some(event) = self.hosts[at].poll_event() {
                    match (at, event) {
                        (SERVER, Event::Introduce(_, accept)) => {
                            let host = &mut self.hosts[CLIENT];
                            client = Some(host.connect(&accept, request(CLIENT), now).unwrap());
                        }
                        (_, Event::Introduce(_, confirm)) => {
                            self.hosts[SERVER].handle_confirm(server, &confirm, self.now);
                        }
                        (_, Event::Established(_)) => established[at] = true,
                        (_, event) => panic!("{event:?}"),
                    }
                }
            }
            if client.is_some() && established == [false; 2] {
                self.now = self.now.max(next.unwrap_or_default());
                self.hosts.iter_mut().for_each(|host| host.handle_timeout(self.now));
            }
        }
        self.names.push([server, client.unwrap()]);
    }

    /// One side of a connection sends this, and the other receives it.
    pub(crate) fn pass(&mut self, talk: usize, from: usize, message: &[u8]) {
        self.now += Duration::from_micros(20);
        let (names, to) = (self.names[talk], 1 - from);
        let sent = self.hosts[from].send(names[from], message, self.now);
        assert_eq!(sent, Ok(message.len()));
        self.settle();
        let received = self.hosts[to].receive(names[to], &mut self.buffer, self.now);
        assert_eq!(received, Ok(message.len()));
        assert_eq!(self.buffer[..message.len()], *message);
        self.settle();
        while self.hosts.iter_mut().any(|host| host.poll_event().is_some()) {}
    }

    /// Carries datagrams until there are none.
    fn settle(&mut self) {
        while [SERVER, CLIENT].map(|from| self.carry(from)).contains(&true) {}
    }

    fn carry(&mut self, from: usize) -> bool {
        let [sender, receiver] = match &mut self.hosts {
            [server, client] if from == SERVER => [server, client],
            [server, client] => [client, server],
        };
        let source = IpAddr::from(address(from));
        sender.transmit(self.now);
        let (device, peer) = (sender.device(ID).unwrap(), receiver.device(ID).unwrap());
        let mut is_some = false;
        while let Some(run) = device.poll_transmit(&mut self.out, SEGMENTS_MAX, self.now) {
            is_some = true;
            for (index, bytes) in self.out[..run.len].chunks(run.segment_len).enumerate() {
                let datagram = Datagram { from: source, port: PORT, index: index as u16, bytes };
                peer.handle_datagram(&datagram, self.now);
            }
        }
        receiver.handle_device(ID, self.now);
        is_some
    }
}
