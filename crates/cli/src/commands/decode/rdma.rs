//! What goes by RDMA once two hosts have agreed on SMC-R.
//!
//! Connections share *links*, pairs of queue pairs, and the links of two hosts are a *link group*.
//! A packet names only the queue pair it goes to. Which link that is, the CLC messages of the first
//! contact say, and those of LLC for further links; and who may write where, under which key. So a
//! capture is followed in its order: handshakes are learned as they come ([`Rdma::learn`]), and
//! packets are judged by what is known then ([`Rdma::take`]).
//!
//! | Part | Does |
//! |---|---|
//! | [`lane`] | puts the packets of one direction together to messages |
//! | [`control`] | LLC: the links and receive buffers of the group |
//! | [`talk`] | CDC: the cursors and flags of a connection |
//! | [`mod@line`] | what is shown of a message |
//!
//! What is kept grows with the lines that are shown, and these have a limit; packets do not stay.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use sidestep_wire::cdc::{self, CdcMessage};
use sidestep_wire::clc::{AcceptConfirm, AcceptConfirmR, Message as ClcMessage, Version};
use sidestep_wire::llc::{self, AddLink, AddLinkForm, AddLinkStep, RtokenPair};
use sidestep_wire::roce::icrc::{Addresses, Envelope, Uncached, Verdict};
use sidestep_wire::roce::{self, Aeth, Headers, Message, Nak, Packet, Reth, Syndrome};
use sidestep_wire::{AlertToken, Error, LinkNumber, Psn, QpNumber, Rkey, RmbAddress};

use super::capture::Datagram;
use super::conversation;
use super::step::What;
use super::streams::{Moment, Side, Stream};
use control::Exchanges;
use lane::{Lane, Session, Whole};
use line::Said;
use talk::{Talk, Voice};

mod control;
mod lane;
mod line;
mod talk;

pub(super) use line::Line;

/// Lines that are kept to be shown, of all links. What comes behind is judged and counted.
const LINES_MAX: usize = 100_000;
/// Links that are followed. A capture made to hurt could have one for each packet.
const LINKS_MAX: usize = 4096;
/// Longest datagram that can be one packet: the largest MTU with its headers. A longer one is a run
/// of packets that the sender's network card had not cut yet.
const DATAGRAM_LEN_MAX: usize = 4096 + 64;

/// All links of a capture.
#[derive(Debug, Default)]
pub(super) struct Rdma {
    links: Vec<Link>,
    groups: Vec<Group>,
    talks: Vec<Talk>,
    /// The link of a packet from one address to a queue pair of another, and who sends on it so.
    routes: HashMap<(IpAddr, IpAddr, QpNumber), (usize, Side)>,
    /// Connections whose messages are known, by their place in the capture.
    learned: HashSet<usize>,
    hosts: BTreeMap<[IpAddr; 2], Traffic>,
    /// Lines that are kept.
    lines: usize,
}

/// Packets between two hosts.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Traffic {
    pub(super) packets: u64,
    /// Those that belong to no link: of other transports, or runs of packets in one.
    pub(super) strange: u64,
}

/// Two queue pairs, and what they said to each other.
#[derive(Debug)]
pub(super) struct Link {
    /// Of client and server.
    pub(super) ends: [End; 2],
    /// Who is the client is known, by CLC.
    pub(super) is_known: bool,
    pub(super) number: Option<LinkNumber>,
    pub(super) packets: u64,
    pub(super) lines: Vec<Line>,
    /// Lines that are not kept.
    pub(super) hidden: u64,
    pub(super) broken_rules: usize,
    group: usize,
    /// By who sends.
    lanes: [Lane; 2],
    exchanges: Exchanges,
    /// The receive buffers of client and server, by their keys on this link.
    rooms: [HashMap<Rkey, Room>; 2],
    /// Keys that their owner wants to delete.
    leaving: [Vec<Rkey>; 2],
}

#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) address: IpAddr,
    pub(super) qp_number: Option<QpNumber>,
}

/// A receive buffer, as one link knows it.
#[derive(Debug, Clone, Copy)]
struct Room {
    address: RmbAddress,
    /// Which of the group's it is.
    buffer: usize,
}

/// Links of the same two hosts.
#[derive(Debug, Default)]
struct Group {
    /// The capture has it from its first contact.
    is_whole: bool,
    version: Option<Version>,
    talks: Vec<usize>,
    /// Connections by the token of client and server.
    tokens: [HashMap<AlertToken, usize>; 2],
    /// The elements of receive buffers: where they begin, their length and connection.
    buffers: Vec<BTreeMap<u64, (u64, usize)>>,
    /// The server's ADD LINK that waits for the client's.
    offered: Option<AddLink>,
}

impl Rdma {
    /// The links that have packets in the capture.
    pub(super) fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| link.packets > 0)
    }

    /// The names of the connections of the link's group.
    pub(super) fn connections(&self, link: &Link) -> Vec<&str> {
        let talks = &self.groups[link.group].talks;
        talks.iter().map(|index| self.talks[*index].name.as_str()).collect()
    }

    pub(super) fn hosts(&self) -> &BTreeMap<[IpAddr; 2], Traffic> {
        &self.hosts
    }

    pub(super) fn broken_rules(&self) -> usize {
        self.links.iter().map(|link| link.broken_rules).sum()
    }

    /// Looks whether the connection with this place in the capture has agreed on SMC-R by now.
    pub(super) fn learn(&mut self, place: usize, stream: &Stream) {
        if self.learned.contains(&place) {
            return;
        }
        let Some([confirm, accept]) = agreement(stream) else { return };
        self.learned.insert(place);
        let end = |message: &AcceptConfirmR| End {
            address: control::address(message.gid),
            qp_number: Some(message.qp_number),
        };
        let ends = [end(&confirm), end(&accept)];
        let known = self.link_of(&ends);
        let index = match known.filter(|_| !accept.is_first_contact()) {
            Some(index) => index,
            None => {
                let version = Some(accept.version());
                let is_whole = accept.is_first_contact();
                self.groups.push(Group { is_whole, version, ..Group::default() });
                let lanes = if is_whole {
                    [Lane::from(confirm.psn), Lane::from(accept.psn)]
                } else {
                    Default::default()
                };
                self.connect(ends, self.groups.len() - 1, lanes)
            }
        };
        self.open(index, stream, [&confirm, &accept]);
    }

    /// The link with these ends.
    fn link_of(&self, ends: &[End; 2]) -> Option<usize> {
        let [client, server] = ends;
        let route = (client.address, server.address, server.qp_number?);
        let (index, _) = *self.routes.get(&route)?;
        let link = &self.links[index];
        (link.is_known && link.ends[0].qp_number == client.qp_number).then_some(index)
    }

    /// Makes a link, and leads packets there.
    fn connect(&mut self, ends: [End; 2], group: usize, lanes: [Lane; 2]) -> usize {
        let index = self.links.len();
        let [client, server] = ends;
        for (from, to, side) in [(client, server, Side::Client), (server, client, Side::Server)] {
            if let Some(qp_number) = to.qp_number {
                self.routes.insert((from.address, to.address, qp_number), (index, side));
            }
        }
        self.links.push(Link {
            ends,
            is_known: true,
            number: None,
            packets: 0,
            lines: Vec::new(),
            hidden: 0,
            broken_rules: 0,
            group,
            lanes,
            exchanges: Exchanges::default(),
            rooms: Default::default(),
            leaving: Default::default(),
        });
        index
    }

    /// A connection begins on a link.
    fn open(&mut self, index: usize, stream: &Stream, messages: [&AcceptConfirmR; 2]) {
        let (link, talk) = (&mut self.links[index], self.talks.len());
        let group = &mut self.groups[link.group];
        group.talks.push(talk);
        let name = format!("{} → {}", stream.client, stream.server);
        let voices = messages.map(|message| Voice::new(message.size.bytes()));
        self.talks.push(Talk { name, voices });
        for (side, message) in messages.into_iter().enumerate() {
            group.tokens[side].insert(message.alert_token, talk);
            let size = message.size.bytes() as u64;
            let begin = u64::from(message.rmbe_index.max(1) - 1) * size;
            let buffer = group.buffer(&mut link.rooms[side], message.rkey, message.rmb_address);
            group.buffers[buffer].insert(begin, (size, talk));
        }
    }

    /// A datagram, as the next of the capture.
    pub(super) fn take(&mut self, moment: Moment, datagram: &Datagram<'_>) {
        let (source, destination) = (datagram.source, datagram.destination);
        let hosts = [source.min(destination), source.max(destination)];
        let traffic = self.hosts.entry(hosts).or_default();
        traffic.packets += 1;
        let bytes = whole(datagram);
        let is_cut = datagram.payload.len() < datagram.len;
        let packet = Packet::parse(&bytes);
        let to = destination_qp(datagram);
        let Some((index, from)) = self.route(datagram, to, packet.as_ref().ok()) else {
            self.hosts.entry(hosts).or_default().strange += 1;
            return;
        };
        if datagram.len > DATAGRAM_LEN_MAX {
            self.hosts.entry(hosts).or_default().strange += 1;
            self.links[index].lanes[from as usize] = Lane::default();
            self.forget(index, from);
            return;
        }
        self.links[index].packets += 1;
        let damage = if is_cut { None } else { damage(datagram) };
        let packet = match (packet, damage) {
            (Ok(mut packet), None) => {
                // Cut within its headers: what is behind the BTH is not known.
                if datagram.payload.len() < packet.headers.emitted_len() {
                    packet.headers.reth = None;
                }
                packet
            }
            (Ok(packet), Some(damage)) => {
                let psn = packet.headers.bth.psn;
                self.say(index, moment, from, psn, Said::packet("a damaged packet"), vec![damage]);
                return;
            }
            (Err(error), damage) => {
                let broken = [error.to_string()].into_iter().chain(damage).collect();
                let said = Said::packet("a packet that makes no sense");
                self.say(index, moment, from, Psn::default(), said, broken);
                return;
            }
        };
        let arrival = Arrival { index, moment, from, psn: packet.headers.bth.psn };
        match packet.headers.aeth {
            Some(aeth) => self.answer(arrival, aeth),
            None => self.request(arrival, &packet, is_cut),
        }
    }

    /// The link of a packet, and who sends it. One that nothing announced begins another.
    fn route(
        &mut self,
        datagram: &Datagram<'_>,
        to: Option<QpNumber>,
        packet: Option<&Packet<'_>>,
    ) -> Option<(usize, Side)> {
        let (source, destination) = (datagram.source, datagram.destination);
        let key = (source, destination, to?);
        if let Some(route) = self.routes.get(&key) {
            return Some(*route);
        }
        // Packets of no reliable connection, or more links than anybody has.
        let headers = &packet?.headers;
        if let Some(route) = self.answered(source, destination, headers) {
            self.routes.insert(key, route);
            let (index, side) = route;
            self.links[index].ends[1 - side as usize].qp_number = to;
            return Some(route);
        }
        if self.links.len() >= LINKS_MAX {
            return None;
        }
        self.groups.push(Group::default());
        let ends =
            [End { address: source, qp_number: None }, End { address: destination, qp_number: to }];
        let index = self.connect(ends, self.groups.len() - 1, Default::default());
        self.links[index].is_known = false;
        Some((index, Side::Client))
    }

    /// The link of which one end is not known, and the other has just sent what this acknowledges.
    fn answered(
        &self,
        source: IpAddr,
        destination: IpAddr,
        headers: &Headers,
    ) -> Option<(usize, Side)> {
        headers.aeth?;
        let index = self.links.iter().position(|link| {
            let [client, server] = &link.ends;
            client.qp_number.is_none()
                && (client.address, server.address) == (destination, source)
                && link.lanes[0].has_just_sent(headers.bth.psn)
        })?;
        Some((index, Side::Server))
    }

    fn answer(&mut self, arrival: Arrival, aeth: Aeth) {
        let Arrival { index, from, psn, .. } = arrival;
        let missing = match aeth.syndrome {
            Syndrome::Ack { .. } => self.links[index].lanes[from.other() as usize].acknowledge(psn),
            Syndrome::ReceiverNotReady { .. } | Syndrome::Nak(_) => None,
        };
        let said = match (aeth.syndrome, missing) {
            (Syndrome::Ack { .. }, None) => Said::Acks { packets: 1 },
            (Syndrome::Ack { .. }, Some(missing)) => {
                self.forget(index, from.other());
                Said::Message {
                    kind: "ACK",
                    label: format!("ACK up to PSN {psn}"),
                    fields: vec![("not captured", format!("packets {missing}"))],
                }
            }
            (Syndrome::ReceiverNotReady { timer }, _) => {
                let delay = f64::from(roce::rnr_delay_us(timer)) / 1000.0;
                let label = format!("RNR NAK of PSN {psn}: not ready, again after {delay} ms");
                Said::Message { kind: "RNR NAK", label, fields: Vec::new() }
            }
            (Syndrome::Nak(nak), _) => Said::Message {
                kind: "NAK",
                label: format!("NAK of PSN {psn}: {}", refusal(nak)),
                fields: Vec::new(),
            },
        };
        self.push(arrival, said, Vec::new());
    }

    /// What connections of the group say in this direction is not all known from here on.
    fn forget(&mut self, index: usize, from: Side) {
        for talk in &self.groups[self.links[index].group].talks {
            self.talks[*talk].voices[from as usize].forget();
        }
    }

    fn request(&mut self, arrival: Arrival, packet: &Packet<'_>, is_cut: bool) {
        let Arrival { index, from, psn, .. } = arrival;
        let lane = &mut self.links[index].lanes[from as usize];
        let announced = lane.untouched();
        match lane.take(packet, is_cut) {
            Session::Part | Session::Dropped => {}
            Session::Whole(whole) => match whole.kind {
                Message::Write => self.write(arrival, &whole),
                Message::Send => self.send(arrival, &whole),
            },
            Session::Again if announced.is_none() => {
                self.push(arrival, Said::Again { packets: 1 }, Vec::new());
            }
            Session::Again => {
                let rule = "PSN before the initial PSN of the handshake (RFC 7609 §A.2)".into();
                self.push(arrival, Said::packet(format!("packet, PSN {psn}")), vec![rule]);
            }
            Session::Gap(due) => {
                let rule = match announced {
                    Some(first) => format!("PSN {psn}, not the initial {first} (RFC 7609 §A.2)"),
                    None => format!("PSN {psn} where {due} was due (InfiniBand vol. 1 §9.7)"),
                };
                self.push(arrival, Said::packet(format!("packet, PSN {psn}")), vec![rule]);
            }
            Session::Misplaced(words) => {
                let rule = format!("{words} (InfiniBand vol. 1 §9.7)");
                self.push(arrival, Said::packet(format!("packet, PSN {psn}")), vec![rule]);
            }
        }
    }

    /// A whole WRITE.
    fn write(&mut self, arrival: Arrival, whole: &Whole) {
        let Some(reth) = whole.reth else {
            self.forget(arrival.index, arrival.from);
            let label = format!("WRITE, {} bytes, to where the capture does not say", whole.len);
            self.push(arrival, Said::packet(label), Vec::new());
            return;
        };
        let mut fields = vec![
            ("address", format!("{} to {}", reth.address, end_of(&reth))),
            ("RKey", reth.rkey.to_string()),
            ("packets", whole.packets.to_string()),
        ];
        let mut broken = Vec::new();
        if u64::from(reth.len) != whole.len {
            let (announced, came) = (reth.len, whole.len);
            broken.push(format!(
                "announces {announced} bytes, and has {came} (InfiniBand vol. 1 §9.7)"
            ));
        }
        match self.target(arrival, &reth) {
            Ok(Some(talk)) => {
                let talk = &mut self.talks[talk];
                talk.voices[arrival.from as usize].write(whole.len);
                fields.push(("connection", talk.name.clone()));
            }
            Ok(None) => {}
            Err(rule) => broken.push(rule),
        }
        let label = format!("WRITE, {} bytes", whole.len);
        self.push(arrival, Said::Message { kind: "WRITE", label, fields }, broken);
    }

    /// The connection that a WRITE is for, if that is known, or the rule that it breaks.
    fn target(&self, arrival: Arrival, reth: &Reth) -> Result<Option<usize>, String> {
        let link = &self.links[arrival.index];
        let group = &self.groups[link.group];
        let Some(room) = link.rooms[arrival.from.other() as usize].get(&reth.rkey) else {
            let rule = format!("no buffer has RKey {} (RFC 7609 §4.4)", reth.rkey);
            return if group.is_whole { Err(rule) } else { Ok(None) };
        };
        let elements = &group.buffers[room.buffer];
        if elements.is_empty() {
            return Ok(None);
        }
        let offset = reth.address.0.wrapping_sub(room.address.0);
        let element = elements.range(..=offset).next_back();
        let len = u64::from(reth.len);
        match element {
            Some((begin, (size, talk))) if (offset - begin).saturating_add(len) <= *size => {
                Ok(Some(*talk))
            }
            _ => Err(format!(
                "outside the receive buffer that begins at {} (RFC 7609 §4.4)",
                room.address
            )),
        }
    }

    /// A whole SEND.
    fn send(&mut self, arrival: Arrival, whole: &Whole) {
        if whole.is_cut {
            self.forget(arrival.index, arrival.from);
            let label = format!("SEND, {} bytes that the capture does not all have", whole.len);
            self.push(arrival, Said::packet(label), Vec::new());
        } else if whole.bytes.first() == Some(&cdc::TYPE) {
            self.cdc(arrival, &whole.bytes);
        } else {
            self.llc(arrival, &whole.bytes);
        }
    }

    fn cdc(&mut self, arrival: Arrival, bytes: &[u8]) {
        let message = match CdcMessage::parse(bytes) {
            Ok(message) => message,
            Err(error) => {
                self.forget(arrival.index, arrival.from);
                let said = Said::Message { kind: "CDC", label: "CDC".into(), fields: Vec::new() };
                self.push(arrival, said, vec![format!("{error} (RFC 7609 §A.4)")]);
                return;
            }
        };
        let mut broken = Vec::new();
        if bytes.len() != cdc::LEN {
            broken.push(format!("{} bytes; a CDC message has 44 (RFC 7609 §A.4)", bytes.len()));
        }
        let mut emitted = [0; cdc::LEN];
        if message.emit(&mut emitted).is_ok() {
            broken.extend(reserved(bytes, &emitted).map(|it| format!("{it} (RFC 7609 §A.4)")));
        }
        let mut fields = talk::fields(&message);
        let group = &self.groups[self.links[arrival.index].group];
        let token = message.alert_token;
        match group.tokens[arrival.from.other() as usize].get(&token) {
            Some(talk) => {
                let talk = &mut self.talks[*talk];
                broken.extend(talk.judge(arrival.from, &message));
                fields.push(("alert token", token.to_string()));
                fields.push(("connection", talk.name.clone()));
            }
            None => {
                fields.push(("alert token", token.to_string()));
                if group.is_whole {
                    broken.push(format!("no connection has the token {token} (RFC 7609 §A.4)"));
                }
            }
        }
        let label = format!("CDC, sequence number {}", message.seqno);
        self.push(arrival, Said::Message { kind: "CDC", label, fields }, broken);
    }

    fn llc(&mut self, arrival: Arrival, bytes: &[u8]) {
        let message = match llc::Message::parse(bytes) {
            Ok(message) => message,
            Err(error) => {
                let is_optional = matches!(error, Error::Unsupported { value, .. }
                    if u8::try_from(value).is_ok_and(|it| llc::OPTIONAL_TYPES.contains(&it)));
                let label = if is_optional { "LLC, an optional message" } else { "LLC" };
                let broken = if is_optional {
                    Vec::new()
                } else {
                    vec![format!("{error} (RFC 7609 §A.3)")]
                };
                let said = Said::Message { kind: "LLC", label: label.into(), fields: Vec::new() };
                self.push(arrival, said, broken);
                return;
            }
        };
        let broken = self.judge(arrival, bytes, &message);
        let said = Said::Message {
            kind: "LLC",
            label: control::label(&message),
            fields: control::fields(&message),
        };
        self.push(arrival, said, broken);
        self.follow(arrival, &message);
    }

    /// The rules that an LLC message breaks.
    fn judge(&mut self, arrival: Arrival, bytes: &[u8], message: &llc::Message) -> Vec<String> {
        let link = &mut self.links[arrival.index];
        let group = &self.groups[link.group];
        let mut broken = Vec::new();
        let version = message.form().version();
        if let Some(agreed) = group.version.filter(|agreed| *agreed != version) {
            let (is, should) = (version.code(), agreed.code());
            broken
                .push(format!("version {is} in a link group of version {should} (RFC 7609 §A.3)"));
        }
        let mut emitted = [0; llc::EMITTED_LEN_MAX];
        if let Ok(len) = message.emit(&mut emitted) {
            let rule = reserved(bytes, &emitted[..len]);
            broken.extend(rule.map(|it| format!("{it} (RFC 7609 §A.3)")));
        }
        let unasked = link.exchanges.judge(arrival.from, message);
        broken.extend(unasked.filter(|_| group.is_whole));
        if let llc::Message::ConfirmLink(confirm) = message
            && link.is_known
        {
            let end = &link.ends[arrival.from as usize];
            let is =
                End { address: control::address(confirm.gid), qp_number: Some(confirm.qp_number) };
            if (is.address, is.qp_number) != (end.address, end.qp_number) {
                broken.push(format!(
                    "confirms {}; the link was set up with {} (RFC 7609 §A.3.1)",
                    is.name(),
                    end.name()
                ));
            }
        }
        broken
    }

    /// What an LLC message changes: links come, and receive buffers come and go.
    fn follow(&mut self, arrival: Arrival, message: &llc::Message) {
        let link = &mut self.links[arrival.index];
        let group = &mut self.groups[link.group];
        let side = arrival.from as usize;
        match message {
            llc::Message::ConfirmLink(confirm) => link.number = Some(confirm.link_number),
            llc::Message::ConfirmRkey(it) if control::is_request(message) => {
                let buffer = group.buffer(&mut link.rooms[side], it.rkey, it.address);
                let group = link.group;
                for entry in &it.entries {
                    let room = Room { address: entry.address, buffer };
                    let other = self.numbered(group, entry.link_number);
                    if let Some(other) = other {
                        other.rooms[side].insert(entry.rkey, room);
                    }
                }
            }
            llc::Message::DeleteRkey(it) if control::is_request(message) => {
                link.leaving[side].extend(&it.rkeys);
            }
            llc::Message::DeleteRkey(_) => {
                let owner = 1 - side;
                for rkey in std::mem::take(&mut link.leaving[owner]) {
                    link.rooms[owner].remove(&rkey);
                }
            }
            llc::Message::AddLink(it) => match (it.step, arrival.from) {
                (AddLinkStep::Request, Side::Server) => group.offered = Some(it.clone()),
                (AddLinkStep::Response, Side::Client) => self.add_link(arrival.index, it),
                _ => {}
            },
            llc::Message::AddLinkContinuation(it) => {
                let rooms = link.translated(side, &it.pairs);
                let group = link.group;
                if let Some(new) = self.numbered(group, it.link_number) {
                    new.rooms[side].extend(rooms);
                }
            }
            _ => {}
        }
    }

    fn numbered(&mut self, group: usize, number: LinkNumber) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.group == group && link.number == Some(number))
    }

    /// Both have named their ends of another link.
    fn add_link(&mut self, index: usize, response: &AddLink) {
        let group = self.links[index].group;
        let Some(offer) = self.groups[group].offered.take() else { return };
        if self.links.len() >= LINKS_MAX {
            return;
        }
        let messages = [response, &offer];
        let ends = messages
            .map(|it| End { address: control::address(it.gid), qp_number: Some(it.qp_number) });
        let lanes = messages.map(|it| Lane::from(it.psn));
        let rooms = [0, 1].map(|side| match &messages[side].form {
            AddLinkForm::V2 { extension: Some(it), .. } => {
                self.links[index].translated(side, &it.pairs)
            }
            AddLinkForm::V1 | AddLinkForm::V2 { .. } => Vec::new(),
        });
        let new = self.connect(ends, group, lanes);
        let link = &mut self.links[new];
        link.number = Some(offer.link_number);
        for (known, rooms) in link.rooms.iter_mut().zip(rooms) {
            known.extend(rooms);
        }
    }

    fn push(&mut self, arrival: Arrival, said: Said, broken: Vec<String>) {
        let Arrival { index, moment, from, psn } = arrival;
        self.say(index, moment, from, psn, said, broken);
    }

    fn say(
        &mut self,
        index: usize,
        moment: Moment,
        from: Side,
        psn: Psn,
        said: Said,
        broken: Vec<String>,
    ) {
        let link = &mut self.links[index];
        link.broken_rules += broken.len();
        let line = Line { moment, from, psn, said, broken };
        if link.lines.last_mut().is_some_and(|last| last.joins(&line)) {
            return;
        }
        if self.lines < LINES_MAX {
            self.lines += 1;
            link.lines.push(line);
        } else {
            link.hidden += 1;
        }
    }
}

/// Where and when a packet came.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    index: usize,
    moment: Moment,
    from: Side,
    psn: Psn,
}

impl End {
    pub(super) fn name(&self) -> String {
        match self.qp_number {
            Some(qp_number) => format!("{} QP {qp_number}", self.address),
            None => format!("{} QP unknown", self.address),
        }
    }
}

impl Link {
    /// The receive buffers of a side, under the keys of another link.
    fn translated(&self, side: usize, pairs: &[RtokenPair]) -> Vec<(Rkey, Room)> {
        let room = |pair: &RtokenPair| {
            let known = self.rooms[side].get(&pair.reference)?;
            Some((pair.rkey, Room { address: pair.address, ..*known }))
        };
        pairs.iter().filter_map(room).collect()
    }
}

impl Group {
    /// The receive buffer with this key, which may be a new one.
    fn buffer(
        &mut self,
        rooms: &mut HashMap<Rkey, Room>,
        rkey: Rkey,
        address: RmbAddress,
    ) -> usize {
        if let Some(room) = rooms.get(&rkey).filter(|room| room.address == address) {
            return room.buffer;
        }
        self.buffers.push(BTreeMap::new());
        let buffer = self.buffers.len() - 1;
        rooms.insert(rkey, Room { address, buffer });
        buffer
    }
}

/// The Confirm and the Accept of a connection, of SMC-R.
fn agreement(stream: &Stream) -> Option<[AcceptConfirmR; 2]> {
    let of = |side| {
        let (steps, _) = conversation::read(stream.half(side), side);
        steps.into_iter().find_map(|step| match step.what {
            What::Clc {
                message:
                    Ok(
                        ClcMessage::Accept(AcceptConfirm::SmcR(it))
                        | ClcMessage::Confirm(AcceptConfirm::SmcR(it)),
                    ),
                ..
            } => Some(it),
            _ => None,
        })
    };
    Some([of(Side::Client)?, of(Side::Server)?])
}

/// The payload of a datagram. What the capture has cut off is zeros: lengths still count.
fn whole<'a>(datagram: &Datagram<'a>) -> Cow<'a, [u8]> {
    let present = datagram.payload;
    if present.len() >= datagram.len || datagram.len > DATAGRAM_LEN_MAX {
        return Cow::Borrowed(present);
    }
    let mut bytes = present.to_vec();
    bytes.resize(datagram.len, 0);
    Cow::Owned(bytes)
}

fn destination_qp(datagram: &Datagram<'_>) -> Option<QpNumber> {
    let bth = datagram.payload.get(..roce::BTH_LEN)?;
    bth.get(5..)?.first_chunk().copied().map(QpNumber)
}

/// Whether the check at the end of a packet is wrong.
fn damage(datagram: &Datagram<'_>) -> Option<String> {
    let envelope = Envelope {
        addresses: Addresses::new(datagram.source, datagram.destination)?,
        source_port: datagram.source_port,
        destination_port: roce::PORT,
    };
    let identification = datagram.identification;
    match envelope.check(datagram.payload, identification, &mut Uncached) {
        Verdict::Intact { identification: is } if is == identification => None,
        Verdict::Intact { identification: is } => Some(format!(
            "ICRC wrong: it is that of IP identification {is:#06x}, the packet has \
             {identification:#06x} (InfiniBand vol. 1 §7.8)"
        )),
        Verdict::Damaged => Some("ICRC wrong (InfiniBand vol. 1 §7.8)".into()),
    }
}

/// Whether there is anything where `emitted`, the same message from us, has nothing.
fn reserved(bytes: &[u8], emitted: &[u8]) -> Option<String> {
    let at = bytes.iter().zip(emitted).position(|(is, should)| is != should)?;
    Some(format!("reserved bits set, in byte {at}"))
}

/// The address behind the last byte.
fn end_of(reth: &Reth) -> RmbAddress {
    RmbAddress(reth.address.0.wrapping_add(reth.len.into()))
}

fn refusal(nak: Nak) -> String {
    match nak {
        Nak::SequenceError => "packets before it are missing, go back".into(),
        Nak::InvalidRequest => "invalid request".into(),
        Nak::RemoteAccessError => "the key or the range was refused".into(),
        Nak::RemoteOperationalError => "the responder could not".into(),
        Nak::Other(code) => format!("unknown code {code}"),
    }
}
