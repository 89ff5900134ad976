//! What comes over a link, and what connections send.

use std::time::Duration;

use sidestep_proto::link_group::AdapterId;
use sidestep_rdma::soft::queue_pair::Event as DeviceEvent;
use sidestep_wire::cdc::{self, CdcMessage};
use sidestep_wire::{AlertToken, LinkUserId, QpNumber};

use crate::carrier::{Carrier, Posted};
use crate::event::{Event, Reset};
use crate::host::Host;
use crate::stream::Stage;

// ---- from the adapters --------------------------------------------------------------------------

impl Host {
    /// Takes what the adapters have to tell. False: nothing.
    pub(crate) fn take_device_events(&mut self, now: Duration) -> bool {
        let mut is_some = false;
        let ids: Vec<AdapterId> = self.ports.keys().copied().collect();
        for id in ids {
            while let Some((qp, event)) = self.next_device_event(id) {
                self.take_device_event(id, qp, event, now);
                is_some = true;
            }
        }
        is_some
    }

    fn next_device_event(&mut self, id: AdapterId) -> Option<(QpNumber, DeviceEvent)> {
        self.ports.get_mut(&id)?.device.poll_event()
    }

    fn take_device_event(
        &mut self,
        adapter: AdapterId,
        qp: QpNumber,
        event: DeviceEvent,
        now: Duration,
    ) {
        let link = self.ports.get(&adapter).and_then(|port| port.links.get(&qp)).copied();
        let Some((id, link)) = link else { return };
        match event {
            DeviceEvent::Completed { id: work, result: Ok(()) } => {
                self.completed(id, link, work, now);
            }
            // Told by what follows, of all that was posted.
            DeviceEvent::Completed { result: Err(_), .. } => {}
            DeviceEvent::Received(bytes) => self.received(id, link, &bytes, now),
            DeviceEvent::Broken(_) => {
                self.fail_carrier(id, link, now);
                if let Some(group) = self.groups.get_mut(&id) {
                    group.engine.handle_link_failed(link, now);
                }
            }
        }
    }

    fn completed(&mut self, id: u32, link: LinkUserId, work: u64, now: Duration) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(carrier) = group.carriers.get_mut(&link) else { return };
        let posted = carrier.completed(work);
        group.engine.handle_traffic(link, now);
        match posted {
            Some(Posted::Llc(ticket)) => group.engine.handle_sent(ticket, now),
            Some(Posted::Write(token)) => self.arrived(token, 1, now),
            Some(Posted::Cdc(token, receipt)) => {
                let connection = self.streams.get_mut(&token).and_then(|it| it.connection.as_mut());
                if let Some(connection) = connection {
                    connection.completed(receipt);
                }
                self.arrived(token, 1, now);
            }
            None => {}
        }
        self.post(id, link);
    }

    /// So many messages of a connection are on their way no more.
    fn arrived(&mut self, token: AlertToken, count: usize, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        stream.under_way = stream.under_way.saturating_sub(count);
        if stream.wants_room && stream.room() > 0 && stream.reset.is_none() {
            stream.wants_room = false;
            self.events.push_back(Event::Writable(token));
        }
        if stream.under_way == 0 && stream.moving {
            self.replay(token, now);
        }
        self.finish_if_agreed(token, now);
    }

    pub(crate) fn received(&mut self, id: u32, link: LinkUserId, bytes: &[u8], now: Duration) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if bytes.first() != Some(&cdc::TYPE) {
            return group.engine.handle_message(link, bytes, now);
        }
        group.engine.handle_traffic(link, now);
        let Ok(message) = CdcMessage::parse(bytes) else {
            self.drops.malformed += 1;
            return;
        };
        let token = message.alert_token;
        match self.streams.get(&token) {
            Some(stream) if stream.group == id && stream.stage != Stage::Over => {
                self.handle_cdc(token, link, &message, now);
            }
            _ => self.drops.unknown += 1,
        }
    }

    /// A connection's peer has said something.
    pub(crate) fn handle_cdc(
        &mut self,
        token: AlertToken,
        via: LinkUserId,
        message: &CdcMessage,
        now: Duration,
    ) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        let Some(connection) = &mut stream.connection else {
            // Each says all there is to say, but a validation, before which nothing has come.
            if !message.producer_flags.failover_validation {
                stream.early = Some((via, *message));
            }
            return;
        };
        let result = connection.handle(message);
        stream.patience = stream.patience.map(|_| now + crate::PEER_PATIENCE);
        let left = match stream.heard_over {
            Some(before) if before == via || !message.producer_flags.failover_validation => None,
            before => {
                stream.heard_over = Some(via);
                before
            }
        };
        let (group, rmb, is_told) =
            (stream.group, stream.rmb, stream.is_held && stream.reset.is_none());
        if let Some(before) = left {
            self.deregister(group, before, rmb);
        }
        match result {
            Ok(news) if news.aborted => self.reset(token, Reset::ByPeer, now),
            Ok(news) if is_told => {
                let told =
                    [(news.readable, Event::Readable(token)), (news.urgent, Event::Urgent(token))];
                self.events.extend(told.into_iter().filter_map(|(is, event)| is.then_some(event)));
            }
            Ok(_) => {}
            Err(misbehaved) => self.reset(token, Reset::Misbehaved(misbehaved), now),
        }
        self.rouse(token);
    }

    /// A queue pair is broken or goes: nothing more leaves by it.
    pub(crate) fn fail_carrier(&mut self, id: u32, link: LinkUserId, now: Duration) {
        let carrier = self.groups.get_mut(&id).and_then(|group| group.carriers.get_mut(&link));
        let lost = carrier.map(Carrier::fail).unwrap_or_default();
        for token in lost.iter().filter_map(Posted::connection) {
            self.arrived(token, 1, now);
        }
    }
}

// ---- to the adapters ----------------------------------------------------------------------------

impl Host {
    /// A connection may have something to send.
    pub(crate) fn rouse(&mut self, token: AlertToken) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        let Some((link, _)) = stream.to.filter(|_| !stream.moving && !stream.is_ready) else {
            return;
        };
        let Some(group) = self.groups.get_mut(&stream.group) else { return };
        if let Some(carrier) = group.carriers.get_mut(&link) {
            stream.is_ready = true;
            carrier.ready.push_back(token);
        }
    }

    /// Lets the connections of a group send, in turn, as long as there is room.
    pub(crate) fn send_ready(&mut self, id: u32, now: Duration) {
        let Some(group) = self.groups.get(&id) else { return };
        let links: Vec<LinkUserId> = group.carriers.keys().copied().collect();
        for link in links {
            while let Some(token) = self.next_ready(id, link) {
                self.send_step(id, link, token, now);
            }
        }
    }

    fn next_ready(&mut self, id: u32, link: LinkUserId) -> Option<AlertToken> {
        let carrier = self.groups.get_mut(&id)?.carriers.get_mut(&link)?;
        if carrier.has_room() { carrier.ready.pop_front() } else { None }
    }

    fn send_step(&mut self, id: u32, link: LinkUserId, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        // It may have moved on, and be ready elsewhere.
        if stream.to.is_none_or(|(to, _)| to != link) || stream.moving {
            return;
        }
        stream.is_ready = false;
        let Some(works) = stream.next_step(token) else {
            return self.finish_if_agreed(token, now);
        };
        let group = self.groups.get_mut(&id);
        if let Some(carrier) = group.and_then(|group| group.carriers.get_mut(&link)) {
            for work in works {
                carrier.take(work);
            }
        }
        self.post(id, link);
        self.rouse(token);
    }

    /// Posts what waits for a link.
    pub(crate) fn post(&mut self, id: u32, link: LinkUserId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(carrier) = group.carriers.get_mut(&link) else { return };
        let port = self.ports.get_mut(&carrier.adapter);
        if let Some(qp) = port.and_then(|port| port.device.queue_pair(carrier.qp)) {
            carrier.post(qp);
        }
    }

    // ---- failover -------------------------------------------------------------------------------

    /// A connection is to go on over another link.
    pub(crate) fn move_stream(&mut self, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token).filter(|it| it.connection.is_some()) else {
            return;
        };
        stream.moving = true;
        if stream.under_way == 0 {
            self.replay(token, now);
        }
    }

    /// It goes on, and sends again what is not known to have arrived.
    fn replay(&mut self, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        let Some(group) = self.groups.get(&stream.group) else { return };
        stream.moving = false;
        stream.is_ready = false;
        stream.to = group.engine.destination(token);
        if stream.to.is_none() {
            return self.reset(token, Reset::Unreachable, now);
        }
        if let Some(connection) = &mut stream.connection {
            connection.change_link();
        }
        self.rouse(token);
    }
}
