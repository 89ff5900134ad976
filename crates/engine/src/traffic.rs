//! What comes over a link, and what connections send.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use sidestep_proto::connection::Receipt;
use sidestep_proto::link_group::AdapterId;
use sidestep_rdma::device::{Device, Event as DeviceEvent, Source};
use sidestep_wire::cdc::{self, CdcMessage};
use sidestep_wire::{AlertToken, LinkUserId, QpNumber};

use crate::carrier::{Carrier, Posted};
use crate::event::{Event, Reset};
use crate::host::Host;
use crate::stream::{InPlace, Lent, SendBuffer, Stage, Stream};

// ---- from the adapters --------------------------------------------------------------------------

impl<D: Device> Host<D> {
    /// Takes what the device of an adapter has to tell.
    pub(crate) fn take_device_events(&mut self, of: AdapterId, now: Duration) {
        while let Some((qp, event)) = self.device(of).and_then(Device::poll_event) {
            self.take_device_event(of, qp, event, now);
        }
    }

    pub(crate) fn take_device_event(
        &mut self,
        adapter: AdapterId,
        qp: QpNumber,
        event: DeviceEvent,
        now: Duration,
    ) {
        let link = self.ports.get(&adapter).and_then(|port| port.links.get(&qp)).copied();
        let Some((id, link)) = link else { return };
        match event {
            DeviceEvent::Ready => {
                if let Some(engine) = self.engine(id) {
                    engine.handle_ready_to_receive(link, now);
                }
            }
            DeviceEvent::Completed { id: work, result: Ok(()) } => {
                self.completed(id, link, work, now);
            }
            // Told by what follows, of all that was posted.
            DeviceEvent::Completed { result: Err(_), .. } => {}
            DeviceEvent::Silent => {
                if let Some(engine) = self.engine(id) {
                    engine.handle_silence(link, now);
                }
            }
            DeviceEvent::Received(bytes) => self.received(id, link, &bytes, now),
            DeviceEvent::Broken(failure) => {
                self.broken_links.push_back((adapter, failure));
                self.fail_carrier(id, link, now);
                if let Some(engine) = self.engine(id) {
                    engine.handle_link_failed(link, now);
                }
            }
        }
    }

    fn completed(&mut self, id: u32, link: LinkUserId, work: u64, now: Duration) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(carrier) = group.carriers.get_mut(&link) else { return };
        let posted = carrier.completed(work);
        group.engine.handle_traffic(link, now);
        group.rouse(id, &mut self.restless);
        match posted {
            Some(Posted::Llc(ticket)) => {
                if let Some(engine) = self.engine(id) {
                    engine.handle_sent(ticket, now);
                }
            }
            Some(Posted::Write(token)) => self.arrived(token, now),
            Some(Posted::Cdc(token, receipt)) => {
                self.note_arrival(token, receipt);
                self.arrived(token, now);
            }
            None => {}
        }
        self.post(id, link);
    }

    /// A CDC message of a connection has arrived, and all bytes before it.
    fn note_arrival(&mut self, token: AlertToken, receipt: Receipt) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        let before = stream.kept();
        if let Some(connection) = &mut stream.connection {
            connection.completed(receipt);
        }
        if stream.kept() < before {
            self.tell_sent(token);
        }
    }

    /// Tells the owner of bytes that are sent in place, once for all that have arrived together.
    fn tell_sent(&mut self, token: AlertToken) {
        let stream = self.streams.get(&token).filter(|it| it.is_held && it.sends_in_place());
        let (event, last) = (Event::Sent(token), self.events.back());
        if stream.is_some() && last != Some(&event) {
            self.events.push_back(event);
        }
    }

    /// A message of a connection is on its way no more.
    pub(crate) fn arrived(&mut self, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        debug_assert!(stream.under_way > 0, "it was");
        stream.under_way -= 1;
        if stream.stage == Stage::Over {
            return self.forget_if_done(token);
        }
        if stream.wants_room && stream.room() > 0 && stream.reset.is_none() {
            stream.wants_room = false;
            self.events.push_back(Event::Writable(token));
        }
        if stream.under_way == 0 && stream.moving {
            self.change_link(token, now);
        }
        self.finish_if_agreed(token, now);
    }

    pub(crate) fn received(&mut self, id: u32, link: LinkUserId, bytes: &[u8], now: Duration) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if let Some(carrier) = group.carriers.get_mut(&link) {
            carrier.traffic.messages_received += 1;
        }
        group.engine.handle_traffic(link, now);
        if bytes.first() != Some(&cdc::TYPE) {
            if let Some(engine) = self.engine(id) {
                engine.handle_message(link, bytes, now);
            }
            return;
        }
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
        let before = connection.readable();
        let result = connection.handle(message);
        let n = connection.readable() - before;
        stream.messages_received += 1;
        let left = match stream.heard_over {
            Some(before) if before == via || !message.producer_flags.failover_validation => None,
            before => {
                stream.heard_over = Some(via);
                before
            }
        };
        let (group, is_told) = (stream.group, stream.is_held && stream.reset.is_none());
        let is_waited_for = stream.patience.is_some();
        if is_waited_for {
            self.set_patience(token, Some(now + crate::PEER_PATIENCE));
        }
        if let Some(before) = left {
            self.fence(token, (before, via), now);
        }
        if let Some(carrier) = self.groups.get_mut(&group).and_then(|it| it.carriers.get_mut(&via))
        {
            carrier.traffic.bytes_received += n;
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
            self.arrived(token, now);
        }
    }
}

// ---- to the adapters ----------------------------------------------------------------------------

impl<D: Device> Host<D> {
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
            group.rouse(stream.group, &mut self.restless);
        }
    }

    /// Lets the connections of a group send, in turn, as long as there is room.
    pub(crate) fn send_ready(&mut self, id: u32, now: Duration) {
        let mut last = None;
        while let Some(link) = self.carrier_behind(id, last) {
            while self.send_batch(id, link, now) {}
            last = Some(link);
        }
    }

    /// Lets connections of a link send until their messages are a batch. False: none has anything,
    /// or there is no room.
    fn send_batch(&mut self, id: u32, link: LinkUserId, now: Duration) -> bool {
        let mut is_some = false;
        while let Some(token) = self.next_ready(id, link) {
            is_some = true;
            self.send_step(id, link, token, now);
        }
        if let Some(carrier) = self.groups.get_mut(&id).and_then(|it| it.carriers.get_mut(&link)) {
            carrier.close_batch();
        }
        self.post(id, link);
        is_some
    }

    fn carrier_behind(&self, id: u32, last: Option<LinkUserId>) -> Option<LinkUserId> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.groups.get(&id)?.carriers.range((from, Bound::Unbounded));
        behind.next().map(|(link, _)| *link)
    }

    fn next_ready(&mut self, id: u32, link: LinkUserId) -> Option<AlertToken> {
        let group = self.groups.get_mut(&id).filter(|group| !group.is_frozen)?;
        let carrier = group.carriers.get_mut(&link)?;
        if carrier.has_room() && !carrier.is_batch() { carrier.ready.pop_front() } else { None }
    }

    fn send_step(&mut self, id: u32, link: LinkUserId, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        // It may have moved on, and be ready elsewhere.
        if stream.to.is_none_or(|(to, _)| to != link) || stream.moving {
            return;
        }
        stream.is_ready = false;
        let group = self.groups.get_mut(&id);
        let Some(carrier) = group.and_then(|group| group.carriers.get_mut(&link)) else { return };
        let was_blocked = stream.is_blocked;
        if !stream.take_step(token, carrier) {
            return self.finish_if_agreed(token, now);
        }
        self.tally.rmbe_full += u64::from(stream.is_blocked && !was_blocked);
        self.post(id, link);
        self.rouse(token);
    }

    /// Posts what waits for a link.
    pub(crate) fn post(&mut self, id: u32, link: LinkUserId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Some(carrier) = group.carriers.get_mut(&link) else { return };
        let port = self.ports.get_mut(&carrier.adapter);
        if let Some(port) = port {
            carrier.post(&mut port.device);
        }
    }

    /// Lets the adapter of its link read what a connection sends. False: there is no such link, or
    /// the device refuses.
    pub(crate) fn lend(&mut self, token: AlertToken) -> bool {
        let source = self.source_of(token);
        let is_there = source.is_some();
        if let Some(stream) = self.streams.get_mut(&token) {
            stream.source = source;
        }
        is_there
    }

    fn source_of(&mut self, token: AlertToken) -> Option<Source> {
        let stream = self.streams.get_mut(&token)?;
        let (link, _) = stream.to?;
        let carrier = self.groups.get(&stream.group)?.carriers.get(&link)?;
        let device = &mut self.ports.get_mut(&carrier.adapter)?.device;
        let is_ring = stream.sends_in_place();
        let source = stream.sending_from()?.lend_to(carrier.adapter, device)?;
        (!is_ring || device.can_read(carrier.qp, &source)).then_some(source)
    }

    /// From now on a connection sends in place, from these bytes on. Nothing of it is under way. False: it is about to
    /// change links, or the adapter of its link cannot read the ring, and is not asked again.
    pub(crate) fn send_from_ring(&mut self, token: AlertToken, bytes: &InPlace<'_>) -> bool {
        let Some(stream) = self.streams.get_mut(&token) else { return false };
        if stream.is_ring_refused || stream.moving {
            return false;
        }
        let lent = stream.lent.get_or_insert_with(|| Lent {
            ring: SendBuffer { memory: Arc::clone(bytes.ring), sources: Vec::new() },
            begin: None,
        });
        lent.begin = Some(bytes.position.wrapping_sub(stream.queued));
        let can_read = self.lend(token);
        if !can_read {
            self.refuse_ring(token);
        }
        can_read
    }

    fn refuse_ring(&mut self, token: AlertToken) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        stream.is_ring_refused = true;
        if let Some(lent) = stream.lent.take() {
            self.scrap(lent.ring);
        }
        self.lend(token);
    }

    /// A connection sends from its send buffer, which each adapter can read. Nothing of it is under way.
    pub(crate) fn send_from_buffer(&mut self, token: AlertToken) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        if let Some(lent) = &mut stream.lent {
            lent.begin = None;
        }
        // Else it is lent to the adapter of the next link.
        if !stream.moving {
            self.lend(token);
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
            self.change_link(token, now);
        }
    }

    /// Nothing of it is on its way over its link any more. If that link works, the peer may still
    /// have the last message before it, and must not hear the validation first.
    fn change_link(&mut self, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        let before = stream.to.map(|(link, _)| link);
        let Some(group) = self.groups.get_mut(&stream.group) else { return };
        match before.filter(|link| group.has_active(*link)) {
            Some(_) if stream.probed.is_some() => {}
            Some(before) => {
                stream.probed = Some(before);
                let id = stream.group;
                if let Some(engine) = self.engine(id) {
                    engine.probe(before, now);
                }
            }
            None => self.replay(token, now),
        }
    }

    /// The peer has changed links. As long as the old one works, writes of before may still come
    /// over it; so nothing may be written in their place. If it does not work, they find no door.
    fn fence(&mut self, token: AlertToken, (before, via): (LinkUserId, LinkUserId), now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        let (id, rmb) = (stream.group, stream.rmb);
        // What has come over this one since has come behind them.
        stream.left.retain(|link| *link != via);
        let is_active = self.groups.get(&id).is_some_and(|group| group.has_active(before));
        let is_asked = is_active && stream.left.try_push(before).is_ok();
        // It may have come back to the only link that was left, while the other one has gone.
        if let Some(connection) = &mut stream.connection {
            connection.hold_window(!stream.left.is_empty());
        }
        if !is_asked {
            self.deregister(id, before, rmb);
        } else if let Some(engine) = self.engine(id) {
            engine.probe(before, now);
        }
    }

    /// The peer has answered over a link, or that is gone: nothing comes over it any more that was
    /// sent before connections have left it.
    pub(crate) fn pass_fence(&mut self, id: u32, link: LinkUserId, now: Duration) {
        let is_active = self.groups.get(&id).is_some_and(|group| group.has_active(link));
        let concerned = |stream: &Stream| {
            stream.group == id && (stream.probed == Some(link) || stream.left.contains(&link))
        };
        let tokens = self.streams.iter().filter(|(_, stream)| concerned(stream));
        for token in tokens.map(|(token, _)| *token).collect::<Vec<_>>() {
            let Some(stream) = self.streams.get_mut(&token) else { continue };
            let (has_answer, was_left) = (stream.probed == Some(link), stream.left.contains(&link));
            let rmb = stream.rmb;
            stream.left.retain(|left| *left != link);
            if let Some(connection) = &mut stream.connection {
                connection.hold_window(!stream.left.is_empty());
            }
            if was_left && !is_active {
                self.deregister(id, link, rmb);
            }
            match has_answer {
                true => self.replay(token, now),
                false => self.rouse(token),
            }
        }
    }

    /// It goes on, and sends again what is not known to have arrived.
    fn replay(&mut self, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        let Some(group) = self.groups.get(&stream.group) else { return };
        (stream.moving, stream.probed) = (false, None);
        stream.is_ready = false;
        stream.to = group.engine.destination(token);
        if !self.lend(token) {
            return self.reset(token, Reset::Unreachable, now);
        }
        let Some(stream) = self.streams.get_mut(&token) else { return };
        stream.moves += 1;
        self.tally.failovers += 1;
        if let Some(connection) = &mut stream.connection {
            connection.change_link();
        }
        // What the peer has read is known to have arrived by then.
        self.tell_sent(token);
        self.rouse(token);
    }
}
