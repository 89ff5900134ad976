//! Everything comes to rest: what link groups want is carried out, what they tell is passed on.
//!
//! ```text
//!   a call ──> LinkGroup ── Command ──> adapters ──> LinkGroup …
//!                 └──────── Event ────> connections
//! ```

use std::time::Duration;

use sidestep_proto::link_group::{
    AdapterId, Command, Event as GroupEvent, LinkEnd, RmbId, Rtoken, Ticket,
};
use sidestep_rdma::device::{Device, Kind, Peer, Readiness};
use sidestep_wire::clc::Version;
use sidestep_wire::{AlertToken, Diagnosis, LinkUserId, QpNumber};

use crate::carrier::{Carrier, Posted, Work};
use crate::event::Reset;
use crate::group::{Group, address_of};
use crate::host::Host;
use crate::stream::SendBuffer;

impl<D: Device> Host<D> {
    /// Carries out and passes on what the call has led to, until there is nothing more to do now:
    /// in groups in which something has happened, and no others. The end of every call. What
    /// connections have to send waits for [`transmit`](Self::transmit).
    pub(crate) fn settle(&mut self, now: Duration) {
        self.settle_groups(now);
        while std::mem::take(&mut self.contact_is_over) {
            self.serve_waiting(now);
            self.settle_groups(now);
        }
    }

    fn settle_groups(&mut self, now: Duration) {
        while let Some(id) = self.restless.pop_front() {
            if let Some(group) = self.groups.get_mut(&id) {
                group.attend();
            }
            while let Some(command) = self.next_command(id) {
                self.carry_out(id, command, now);
            }
            while let Some(event) = self.next_event(id) {
                self.pass_on(id, event, now);
            }
            if let Some(group) = self.groups.get_mut(&id) {
                group.load(id, &mut self.loaded);
                if std::mem::take(&mut group.has_changed) {
                    group.deadline = group.engine.poll_timeout();
                }
            }
        }
    }

    /// Posts what connections have to send, as far as there is room. To be called before the devices
    /// send: what programs have sent and received since the last time is told in one message of each
    /// connection, and what many connections write leaves together.
    pub fn transmit(&mut self, now: Duration) {
        while let Some(id) = self.loaded.pop_front() {
            if let Some(group) = self.groups.get_mut(&id) {
                group.unload();
            }
            self.send_ready(id, now);
            self.settle(now);
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

impl<D: Device> Host<D> {
    fn carry_out(&mut self, id: u32, command: Command, now: Duration) {
        match command {
            Command::CreateQueuePair { link, adapter } => {
                self.create_queue_pair(id, link, adapter, now);
            }
            Command::ReadyToReceive { link, peer } => self.ready_to_receive(id, link, &peer, now),
            Command::ReadyToSend { link } => self.ready_to_send(id, link, now),
            Command::Register { link, rmb } => self.register(id, link, rmb, now),
            Command::Deregister { link, rmb } => self.deregister(id, link, rmb),
            Command::Send { link, ticket, bytes } => {
                self.send_llc(id, link, (ticket, bytes), now);
            }
            Command::Destroy { link } => self.destroy(id, link, now),
        }
    }

    fn create_queue_pair(&mut self, id: u32, link: LinkUserId, adapter: AdapterId, now: Duration) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let kind = match group.engine.version() {
            Version::V1 => Kind::RoceV1,
            Version::V2 => Kind::RoceV2,
        };
        let made = self.ports.get_mut(&adapter).filter(|port| port.is_up).and_then(|port| {
            let (qp, first_psn) = port.device.create()?;
            port.device.agree_on(qp, kind);
            port.links.insert(qp, (id, link));
            group.carriers.insert(link, Carrier::new(adapter, qp));
            Some((qp, first_psn))
        });
        if let Some(engine) = self.engine(id) {
            engine.handle_queue_pair(link, made, now);
        }
    }

    fn ready_to_receive(&mut self, id: u32, link: LinkUserId, peer: &LinkEnd, now: Duration) {
        let Some((qp, device)) = self.queue_pair(id, link) else { return };
        let readiness = peer.mtu.bytes().map_or(Readiness::Refused, |mtu| {
            let other = Peer { qp: peer.qp, first_psn: peer.psn, mtu };
            device.ready_to_receive(qp, address_of(peer.gid), other)
        });
        let Some(engine) = self.engine(id) else { return };
        match readiness {
            Readiness::Ready => engine.handle_ready_to_receive(link, now),
            Readiness::Pending => {}
            Readiness::Refused => engine.handle_link_failed(link, now),
        }
    }

    fn ready_to_send(&mut self, id: u32, link: LinkUserId, now: Duration) {
        let is_refused = self.queue_pair(id, link).is_some_and(|(qp, it)| !it.ready_to_send(qp));
        if let Some(engine) = self.engine(id).filter(|_| is_refused) {
            engine.handle_link_failed(link, now);
        }
    }

    /// The queue pair of a link, and its device.
    fn queue_pair(&mut self, id: u32, link: LinkUserId) -> Option<(QpNumber, &mut D)> {
        let carrier = self.groups.get(&id)?.carriers.get(&link)?;
        Some((carrier.qp, &mut self.ports.get_mut(&carrier.adapter)?.device))
    }

    fn register(&mut self, id: u32, link: LinkUserId, rmb: RmbId, now: Duration) {
        let Some(Group { carriers, rmbs, .. }) = self.groups.get_mut(&id) else { return };
        let registered = carriers.get_mut(&link).and_then(|carrier| {
            let device = &mut self.ports.get_mut(&carrier.adapter)?.device;
            let made = device.register(&rmbs.get(&rmb)?.memory, carrier.qp)?;
            carrier.keys.insert(rmb, made.rkey);
            Some(Rtoken { rkey: made.rkey, address: made.address })
        });
        if let Some(engine) = self.engine(id) {
            engine.handle_registered(link, rmb, registered, now);
        }
    }

    /// The peer reaches a buffer no more over a link.
    pub(crate) fn deregister(&mut self, id: u32, link: LinkUserId, rmb: RmbId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(carrier) = group.carriers.get_mut(&link) else { return };
        let port = self.ports.get_mut(&carrier.adapter);
        if let (Some(rkey), Some(port)) = (carrier.keys.remove(&rmb), port) {
            port.device.deregister(rkey);
        }
    }

    fn send_llc(
        &mut self,
        id: u32,
        link: LinkUserId,
        (ticket, bytes): (Ticket, Vec<u8>),
        now: Duration,
    ) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(carrier) = group.carriers.get_mut(&link) else { return };
        if !carrier.is_flooded() {
            carrier.take(Work::Llc { ticket, bytes });
            self.post(id, link);
        } else if let Some(engine) = self.engine(id) {
            engine.handle_link_failed(link, now);
        }
    }

    /// A link goes. Only when the device reads nothing more of what was posted, that is over.
    pub(crate) fn destroy(&mut self, id: u32, link: LinkUserId, now: Duration) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(mut carrier) = group.carriers.remove(&link) else { return };
        if let Some(port) = self.ports.get_mut(&carrier.adapter) {
            port.links.remove(&carrier.qp);
            port.past += carrier.usage(&port.device);
            port.device.destroy(carrier.qp, now);
            for rkey in carrier.keys.values() {
                port.device.deregister(*rkey);
            }
        }
        let lost = carrier.fail();
        for token in lost.iter().filter_map(Posted::connection) {
            self.arrived(token, now);
        }
    }

    /// A group is gone: its free buffers, too.
    fn remove_group(&mut self, id: u32) {
        let Some(group) = self.groups.remove(&id) else { return };
        self.contact_is_over |= group.first.is_some();
        for buffer in group.send_buffers {
            self.scrap(buffer);
        }
    }

    /// A send buffer that no stream needs any more.
    pub(crate) fn scrap(&mut self, buffer: SendBuffer) {
        for (adapter, source) in buffer.sources {
            if let Some(port) = self.ports.get_mut(&adapter) {
                port.device.take_back(source);
            }
        }
    }
}

// ---- events -------------------------------------------------------------------------------------

impl<D: Device> Host<D> {
    fn pass_on(&mut self, id: u32, event: GroupEvent, now: Duration) {
        match event {
            GroupEvent::Introduce(link) => {
                if let Some(token) = self.first_of(id) {
                    self.introduce(token, link, now);
                }
            }
            GroupEvent::Declined(diagnosis) => self.first_contact_failed(id, diagnosis, now),
            GroupEvent::Established => {
                if let Some(token) = self.end_first_contact(id) {
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
            GroupEvent::LinkUp(_) => {}
            GroupEvent::LinkDown(link) => self.pass_fence(id, link, now),
            GroupEvent::Answered(link) => {
                if let Some(group) = self.groups.get_mut(&id) {
                    group.is_doubted = false;
                }
                self.pass_fence(id, link, now);
            }
            GroupEvent::Moved { connection, .. } => self.move_stream(connection, now),
            GroupEvent::Lost(token) => self.cut_off(token, now),
            GroupEvent::Ending(_) => self.cut_off_all(id, now),
            GroupEvent::Ended => {
                self.cut_off_all(id, now);
                self.remove_group(id);
            }
        }
    }

    fn first_of(&self, group: u32) -> Option<AlertToken> {
        self.groups.get(&group)?.first
    }

    fn user_of(&self, group: u32, rmb: RmbId) -> Option<AlertToken> {
        self.groups.get(&group)?.rmbs.get(&rmb)?.user
    }

    pub(crate) fn first_contact_failed(&mut self, id: u32, diagnosis: Diagnosis, now: Duration) {
        if let Some(token) = self.end_first_contact(id) {
            self.decline(token, diagnosis, now);
        }
    }

    /// The connection that a group was made for, if that is only decided now.
    fn end_first_contact(&mut self, id: u32) -> Option<AlertToken> {
        let first = self.groups.get_mut(&id)?.first.take();
        self.contact_is_over |= first.is_some();
        first
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
