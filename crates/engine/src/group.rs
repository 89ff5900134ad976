//! A link group with what it has of the host: its commands carried out, its events passed on.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use sidestep_proto::link_group::{
    AdapterId, Command, Event as GroupEvent, Link, LinkEnd, LinkGroup, RmbId, RmbState, Rtoken,
    Ticket,
};
use sidestep_rdma::memory::Shared;
use sidestep_rdma::soft::queue_pair::Peer;
use sidestep_wire::clc::{AcceptConfirmR, Version};
use sidestep_wire::{AlertToken, Diagnosis, LinkUserId, RmbeSize, RoceGid};

use crate::carrier::{Carrier, Work};
use crate::event::Reset;
use crate::host::Host;

/// A receive buffer (RMB), of one element.
#[derive(Debug)]
pub(crate) struct Rmb {
    pub(crate) memory: Arc<Shared>,
    pub(crate) size: RmbeSize,
    /// The connection that has it.
    pub(crate) user: Option<AlertToken>,
}

/// A link group of the host.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) engine: LinkGroup,
    pub(crate) carriers: BTreeMap<LinkUserId, Carrier>,
    pub(crate) rmbs: BTreeMap<RmbId, Rmb>,
    /// The connection that it is made for, until it is established.
    pub(crate) first: Option<AlertToken>,
}

impl Group {
    pub(crate) const fn new(engine: LinkGroup) -> Self {
        Self { engine, carriers: BTreeMap::new(), rmbs: BTreeMap::new(), first: None }
    }

    /// A buffer of this size that no connection has, and that the peer knows.
    pub(crate) fn free_rmb(&self, size: RmbeSize) -> Option<RmbId> {
        let is_free = |rmb: &Rmb| rmb.user.is_none() && rmb.size == size;
        let known = self.engine.rmbs().filter(|(_, state)| *state == RmbState::Announced);
        known.map(|(id, _)| id).find(|id| self.rmbs.get(id).is_some_and(is_free))
    }

    /// The link whose other end a message of the peer names.
    pub(crate) fn link_to(&self, message: &AcceptConfirmR) -> Option<LinkUserId> {
        let is_named = |end: LinkEnd| {
            end.qp == message.qp_number
                && end.gid == message.gid
                && (message.version() == Version::V2 || end.mac == message.mac)
        };
        let links = self.engine.links().iter();
        links.filter(|link| link.peer().is_some_and(is_named)).map(Link::user_id).next()
    }
}

/// The IP address that a GID of RoCE stands for.
pub(crate) fn address_of(gid: RoceGid) -> IpAddr {
    Ipv6Addr::from(gid.0).to_canonical()
}

// ---- everything comes to rest -------------------------------------------------------------------

impl Host {
    /// Carries out and passes on until there is nothing more to do now. The end of every call.
    pub(crate) fn settle(&mut self, now: Duration) {
        let ids: Vec<u32> = self.groups.keys().copied().collect();
        loop {
            let mut is_quiet = true;
            for id in &ids {
                while let Some(command) = self.next_command(*id) {
                    self.carry_out(*id, command, now);
                    is_quiet = false;
                }
                while let Some(event) = self.next_event(*id) {
                    self.pass_on(*id, event, now);
                    is_quiet = false;
                }
                self.send_ready(*id, now);
            }
            if self.take_device_events(now) {
                is_quiet = false;
            }
            if is_quiet {
                break;
            }
        }
    }

    fn next_command(&mut self, group: u32) -> Option<Command> {
        self.groups.get_mut(&group)?.engine.poll_command()
    }

    fn next_event(&mut self, group: u32) -> Option<GroupEvent> {
        self.groups.get_mut(&group)?.engine.poll_event()
    }
}

// ---- commands -----------------------------------------------------------------------------------

impl Host {
    fn carry_out(&mut self, id: u32, command: Command, now: Duration) {
        match command {
            Command::CreateQueuePair { link, adapter } => {
                self.create_queue_pair(id, link, adapter, now);
            }
            Command::ReadyToReceive { link, peer } => self.ready_to_receive(id, link, &peer, now),
            Command::ReadyToSend { link } => self.ready_to_send(id, link),
            Command::Register { link, rmb } => self.register(id, link, rmb, now),
            Command::Deregister { link, rmb } => self.deregister(id, link, rmb),
            Command::Send { link, ticket, bytes } => self.send_llc(id, link, ticket, bytes),
            Command::Destroy { link } => self.destroy(id, link, now),
        }
    }

    fn create_queue_pair(&mut self, id: u32, link: LinkUserId, adapter: AdapterId, now: Duration) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let port = self.ports.get_mut(&adapter).filter(|port| port.is_up);
        let made = port.map(|port| {
            let (qp, first_psn) = port.device.create();
            port.links.insert(qp, (id, link));
            group.carriers.insert(link, Carrier::new(adapter, qp));
            (qp, first_psn)
        });
        group.engine.handle_queue_pair(link, made, now);
    }

    fn ready_to_receive(&mut self, id: u32, link: LinkUserId, peer: &LinkEnd, now: Duration) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(carrier) = group.carriers.get(&link) else { return };
        let Some(port) = self.ports.get_mut(&carrier.adapter) else { return };
        let is_ready = peer.mtu.bytes().is_some_and(|mtu| {
            let other = Peer { qp: peer.qp, first_psn: peer.psn, mtu };
            port.device.ready_to_receive(carrier.qp, address_of(peer.gid), other)
        });
        match is_ready {
            true => group.engine.handle_ready_to_receive(link, now),
            false => group.engine.handle_link_failed(link, now),
        }
    }

    fn ready_to_send(&mut self, id: u32, link: LinkUserId) {
        let Some(carrier) = self.groups.get(&id).and_then(|it| it.carriers.get(&link)) else {
            return;
        };
        let port = self.ports.get_mut(&carrier.adapter);
        if let Some(qp) = port.and_then(|port| port.device.queue_pair(carrier.qp)) {
            qp.ready_to_send();
        }
    }

    fn register(&mut self, id: u32, link: LinkUserId, rmb: RmbId, now: Duration) {
        let Some(Group { engine, carriers, rmbs, .. }) = self.groups.get_mut(&id) else { return };
        let registered = carriers.get_mut(&link).and_then(|carrier| {
            let memory = Arc::clone(&rmbs.get(&rmb)?.memory);
            let regions = self.ports.get_mut(&carrier.adapter)?.device.regions();
            let made = regions.register(memory, carrier.qp);
            carrier.keys.insert(rmb, made.rkey);
            Some(Rtoken { rkey: made.rkey, address: made.address })
        });
        engine.handle_registered(link, rmb, registered, now);
    }

    /// The peer reaches a buffer no more over a link.
    pub(crate) fn deregister(&mut self, id: u32, link: LinkUserId, rmb: RmbId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(carrier) = group.carriers.get_mut(&link) else { return };
        let port = self.ports.get_mut(&carrier.adapter);
        if let (Some(rkey), Some(port)) = (carrier.keys.remove(&rmb), port) {
            port.device.regions().deregister(rkey);
        }
    }

    fn send_llc(&mut self, id: u32, link: LinkUserId, ticket: Ticket, bytes: Vec<u8>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if let Some(carrier) = group.carriers.get_mut(&link) {
            carrier.take(Work::Llc { ticket, bytes });
        }
        self.post(id, link);
    }

    fn destroy(&mut self, id: u32, link: LinkUserId, now: Duration) {
        self.fail_carrier(id, link, now);
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(carrier) = group.carriers.remove(&link) else { return };
        let Some(port) = self.ports.get_mut(&carrier.adapter) else { return };
        port.links.remove(&carrier.qp);
        port.device.destroy(carrier.qp, now);
        for rkey in carrier.keys.values() {
            port.device.regions().deregister(*rkey);
        }
    }
}

// ---- events -------------------------------------------------------------------------------------

impl Host {
    fn pass_on(&mut self, id: u32, event: GroupEvent, now: Duration) {
        match event {
            GroupEvent::Introduce(link) => {
                if let Some(token) = self.first_of(id) {
                    self.introduce(token, link, now);
                }
            }
            GroupEvent::Declined(diagnosis) => self.first_contact_failed(id, diagnosis, now),
            GroupEvent::Established => {
                let first = self.groups.get_mut(&id).and_then(|group| group.first.take());
                if let Some(token) = first {
                    self.begin_first(token, now);
                }
            }
            GroupEvent::RmbReady(rmb) => {
                if let Some(token) = self.user_of(id, rmb) {
                    self.introduce_joining(token, now);
                }
            }
            GroupEvent::RmbFailed(rmb) => {
                if let Some(token) = self.user_of(id, rmb) {
                    self.decline(token, Diagnosis::ERR_REGBUF, now);
                }
            }
            GroupEvent::RmbRemoved(rmb) => {
                if let Some(group) = self.groups.get_mut(&id) {
                    group.rmbs.remove(&rmb);
                }
            }
            GroupEvent::LinkUp(_) | GroupEvent::LinkDown(_) => {}
            GroupEvent::Moved { connection, .. } => self.move_stream(connection, now),
            GroupEvent::Lost(token) => self.cut_off(token, now),
            GroupEvent::Ending(_) => self.cut_off_all(id, now),
            GroupEvent::Ended => {
                self.cut_off_all(id, now);
                self.groups.remove(&id);
            }
        }
    }

    fn first_of(&self, group: u32) -> Option<AlertToken> {
        self.groups.get(&group)?.first
    }

    fn user_of(&self, group: u32, rmb: RmbId) -> Option<AlertToken> {
        self.groups.get(&group)?.rmbs.get(&rmb)?.user
    }

    fn first_contact_failed(&mut self, id: u32, diagnosis: Diagnosis, now: Duration) {
        let first = self.groups.get_mut(&id).and_then(|group| group.first.take());
        if let Some(token) = first {
            self.decline(token, diagnosis, now);
        }
    }

    /// All connections of a group.
    fn cut_off_all(&mut self, id: u32, now: Duration) {
        let of_group = self.streams.iter().filter(|(_, stream)| stream.group == id);
        let tokens: Vec<AlertToken> = of_group.map(|(token, _)| *token).collect();
        for token in tokens {
            self.cut_off(token, now);
        }
    }

    /// No link leads to the peer of a connection any more.
    fn cut_off(&mut self, token: AlertToken, now: Duration) {
        self.reset(token, Reset::Unreachable, now);
    }
}
