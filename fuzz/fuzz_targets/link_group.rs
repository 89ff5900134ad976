//! A link group of SMC-R whose peer says anything over its links, on a device that fails now and then:
//! nothing panics, a message makes few commands, a timer that has come is over, and a group that is
//! ended has ended in time and given everything back.
//!
//! So that more than the first message is understood, the peer can also answer what was said to it,
//! with some bits changed.
//!
//! `cargo xtask fuzz link_group`

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sidestep_proto::link_group::{
    Adapter, AdapterId, Agreement, Command, KEEPALIVE, Link, LinkGroup, LinkState, Local, RMBS_MAX,
    RmbId, Role, Rtoken,
};
use sidestep_wire::clc::{
    AcceptConfirmR, FirstContact, FirstContactR, FormR, Hostname, OsType, Release, Role as ClcRole,
    Version,
};
use sidestep_wire::llc::{
    AddLinkStep, ConfirmLink, ConfirmRkeyStep, DeleteReason, EMITTED_LEN_MAX, Form, LengthOrder,
    Message, RkeyStep, Role as Saying,
};
use sidestep_wire::{
    AlertToken, Eid, LinkNumber, LinkUserId, Mac, Mtu, PeerId, Psn, QpNumber, Rkey, RmbAddress,
    RmbeSize, RoceGid,
};
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Arbitrary, Debug)]
enum Step {
    /// The peer sends these bytes over the link at this place.
    Sends(u8, Vec<u8>),
    /// The same, as a message of this type and of the usual length.
    Says(u8, u8, [u8; 40]),
    /// It answers what was said last, with a byte changed.
    Answers(u8, u8),
    Waits(u16),
    LinkFails(u8),
    AdapterComes(u8),
    AdapterGoes(u8),
    AddRmb(u8),
    RemoveRmb(u8),
    Opens(u8, u8),
    Closes(u8),
    Deletes(u8),
    Probes(u8),
    IsSilent(u8),
}

#[derive(Arbitrary, Debug)]
struct Input {
    is_client: bool,
    is_v2: bool,
    refuses: Vec<bool>,
    steps: Vec<Step>,
}

fuzz_target!(|input: Input| {
    let mut play = Play::begin(&input);
    for step in &input.steps {
        play.perform(step);
        play.settle();
    }
    play.group.end(DeleteReason::OPERATOR, true, play.now);
    play.settle();
    play.wait(Duration::from_secs(60));
    assert!(play.group.has_ended(), "{:#?}", play.group);
    assert_eq!(play.group.poll_timeout(), None);
    assert!(play.queue_pairs.is_empty());
});

const RMB: RmbId = RmbId(0);
const ADAPTERS: u8 = 3;

struct Play {
    group: LinkGroup,
    now: Duration,
    queue_pairs: BTreeSet<LinkUserId>,
    /// Keys that the device does not make, one after the other.
    refuses: std::vec::IntoIter<bool>,
    count: u8,
    /// What was said last, and over which link.
    said: Option<(LinkUserId, Vec<u8>)>,
}

fn adapter(side: u8, number: u8) -> Adapter {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xFF, 0xFF, 10, 0, number, side]);
    let mac = Mac([2, 0, 0, 0, number, side]);
    Adapter { id: AdapterId(number), gid: RoceGid(gid), mac, mtu: Mtu::from_low_bits(3) }
}

/// The peer's Accept or Confirm.
fn introduction(role: ClcRole, version: Version) -> AcceptConfirmR {
    let Adapter { gid, mac, mtu, .. } = adapter(2, 1);
    AcceptConfirmR {
        role,
        peer_id: PeerId([2; 8]),
        gid,
        mac,
        qp_number: QpNumber([0, 2, 1]),
        rkey: Rkey(1),
        rmbe_index: 1,
        alert_token: AlertToken(1),
        size: RmbeSize::DEFAULT,
        mtu,
        rmb_address: RmbAddress(1 << 20),
        psn: Psn::default(),
        form: match version {
            Version::V1 => FormR::V1 { first_contact: true },
            Version::V2 => hello(),
        },
    }
}

fn hello() -> FormR {
    let common = FirstContact {
        os_type: OsType::LINUX,
        release: Release::V2_1,
        hostname: Hostname::new(b"peer"),
        feature_mask: 0,
    };
    let (max_conns, max_links) = (255, 2);
    let gids = Default::default();
    let contact = FirstContactR { common, direct: true, max_conns, max_links, gids };
    FormR::V2 { eid: Eid::ueid("FUZZ").expect("a good name"), first_contact: Some(contact) }
}

impl Play {
    /// A first contact in which nothing goes wrong.
    fn begin(input: &Input) -> Self {
        let version = if input.is_v2 { Version::V2 } else { Version::V1 };
        let local = Local {
            peer_id: PeerId([1; 8]),
            vlan: 0,
            group: 7,
            direct: true,
            keepalive: Some(KEEPALIVE),
            adapters: (1..=2).map(|number| adapter(1, number)).collect(),
        };
        let group = match input.is_client {
            true => LinkGroup::client(local, &introduction(ClcRole::Accept, version), RMB),
            false => LinkGroup::server(local, Agreement::standard(version), PeerId([2; 8]), RMB),
        };
        let mut play = Self {
            group: group.expect("all is well"),
            now: Duration::from_secs(1),
            queue_pairs: BTreeSet::new(),
            refuses: Vec::new().into_iter(),
            count: 0,
            said: None,
        };
        play.settle();
        let (link, role) = (play.group.links()[0].user_id(), play.group.role());
        if role == Role::Server {
            play.group.handle_confirm(&introduction(ClcRole::Confirm, version), play.now);
            play.settle();
        }
        let form = match version {
            Version::V1 => Form::V1,
            Version::V2 => Form::V2(LengthOrder::LittleEndian),
        };
        let Adapter { gid, mac, .. } = adapter(2, 1);
        let message = ConfirmLink {
            form,
            role: if role == Role::Server { Saying::Response } else { Saying::Request },
            no_eyecatcher: true,
            mac,
            gid,
            qp_number: QpNumber([0, 2, 1]),
            link_number: LinkNumber(1),
            link_user_id: LinkUserId(9),
            max_links: 2,
            max_conns: 255,
        };
        play.hear(link, &message.into(), (0, 0));
        play.settle();
        assert_eq!(play.group.links()[0].state(), LinkState::Active, "the first contact");
        play.refuses = input.refuses.clone().into_iter();
        play
    }

    fn link(&self, at: u8) -> Option<LinkUserId> {
        let links = self.group.links();
        links.get(usize::from(at) % links.len().max(1)).map(Link::user_id)
    }

    fn perform(&mut self, step: &Step) {
        let now = self.now;
        match *step {
            Step::Sends(at, ref bytes) => {
                if let Some(link) = self.link(at) {
                    self.group.handle_message(link, bytes, now);
                }
            }
            Step::Says(at, kind, ref body) => {
                let header = match self.group.version() {
                    Version::V1 => [kind & 0xF, 44, 0, body[0]],
                    Version::V2 => [0x20 | kind & 0xF, 44, 0, body[0]],
                };
                if let Some(link) = self.link(at) {
                    self.group.handle_message(link, &[&header[..], body].concat(), now);
                }
            }
            Step::Answers(at, bits) => self.answer((at, bits)),
            Step::Waits(ms) => self.wait(Duration::from_millis(ms.into())),
            Step::LinkFails(at) => {
                if let Some(link) = self.link(at) {
                    self.group.handle_link_failed(link, now);
                }
            }
            Step::AdapterComes(number) => {
                self.group.handle_adapter_up(adapter(1, 1 + number % ADAPTERS), now);
            }
            Step::AdapterGoes(number) => {
                self.group.handle_adapter_down(AdapterId(1 + number % ADAPTERS), now);
            }
            // It may well be refused.
            Step::AddRmb(id) => {
                let _ = self.group.add_rmb(RmbId(id.into()), now);
            }
            Step::RemoveRmb(id) => {
                let _ = self.group.remove_rmb(RmbId(id.into()), now);
            }
            Step::Opens(token, at) => {
                let (token, Some(link)) = (AlertToken(token.into()), self.link(at)) else { return };
                let rtoken = Rtoken { rkey: Rkey(1), address: RmbAddress(1 << 20) };
                if self.group.open(token, RMB, link).is_ok() {
                    let _ = self.group.bind(token, link, rtoken);
                }
            }
            Step::Closes(token) => self.group.close(AlertToken(token.into()), now),
            Step::Deletes(at) => {
                if let Some(link) = self.link(at) {
                    self.group.delete_link(link, now);
                }
            }
            Step::Probes(at) => {
                if let Some(link) = self.link(at) {
                    self.group.probe(link, now);
                }
            }
            Step::IsSilent(at) => {
                if let Some(link) = self.link(at) {
                    self.group.handle_silence(link, now);
                }
            }
        }
    }

    /// The peer's answer to what was said last.
    fn answer(&mut self, change: (u8, u8)) {
        let Some((link, bytes)) = self.said.take() else { return };
        let Ok(message) = Message::parse(&bytes) else { panic!("we said {bytes:?}") };
        let theirs = adapter(2, 2);
        let answer = match message {
            Message::ConfirmLink(it) => {
                let Some(peer) = self.group.link(link).and_then(Link::peer) else { return };
                let (role, gid, mac) = (Saying::Response, peer.gid, peer.mac);
                Message::from(ConfirmLink { role, gid, mac, qp_number: peer.qp, ..it })
            }
            Message::AddLink(mut it) => {
                it.step = AddLinkStep::Response;
                (it.gid, it.mac, it.qp_number) = (theirs.gid, theirs.mac, QpNumber([0, 2, 2]));
                it.into()
            }
            Message::AddLinkContinuation(mut it) => {
                it.role = Saying::Response;
                it.into()
            }
            Message::DeleteLink(mut it) => {
                it.role = Saying::Response;
                it.into()
            }
            Message::ConfirmRkey(mut it) => {
                it.step = ConfirmRkeyStep::Response;
                it.into()
            }
            Message::DeleteRkey(mut it) => {
                it.step = RkeyStep::Response;
                it.into()
            }
            Message::TestLink(it) => it.response().into(),
            other => other,
        };
        self.hear(link, &answer, change);
    }

    /// A message comes, but for some bits of a byte.
    fn hear(&mut self, link: LinkUserId, message: &Message, (at, bits): (u8, u8)) {
        let mut room = [0; EMITTED_LEN_MAX];
        let len = message.emit(&mut room).expect("there is room for any");
        room[usize::from(at)] ^= bits;
        self.group.handle_message(link, &room[..len], self.now);
    }

    /// The device does what it is told.
    fn settle(&mut self) {
        let mut count = 0;
        while let Some(command) = self.group.poll_command() {
            count += 1;
            assert!(count < 4 * RMBS_MAX, "one step, few commands");
            self.execute(command);
        }
        while self.group.poll_event().is_some() {}
    }

    fn execute(&mut self, command: Command) {
        let now = self.now;
        match command {
            Command::CreateQueuePair { link, .. } => {
                assert!(self.queue_pairs.insert(link), "made twice");
                self.count = self.count.wrapping_add(1);
                let made = (QpNumber([0, 1, self.count]), Psn::default());
                self.group.handle_queue_pair(link, Some(made), now);
            }
            Command::ReadyToReceive { link, .. } => self.group.handle_ready_to_receive(link, now),
            Command::Register { link, rmb } => {
                self.count = self.count.wrapping_add(1);
                let rkey = Rkey(u32::from(self.count) << 8);
                let rtoken = Rtoken { rkey, address: RmbAddress(1 << 30) };
                let rtoken = Some(rtoken).filter(|_| !self.refuses.next().unwrap_or_default());
                self.group.handle_registered(link, rmb, rtoken, now);
            }
            Command::Send { link, ticket, bytes } => {
                self.said = Some((link, bytes));
                self.group.handle_sent(ticket, now);
            }
            Command::Destroy { link } => assert!(self.queue_pairs.remove(&link), "destroyed twice"),
            Command::ReadyToSend { .. } | Command::Deregister { .. } => {}
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.group.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.group.handle_timeout(self.now);
            let next = self.group.poll_timeout();
            assert!(next.is_none_or(|next| next > self.now), "a timer that does not stop");
            self.settle();
        }
        self.now = end;
    }
}
