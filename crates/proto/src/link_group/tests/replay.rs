//! Captures of two Linux hosts, played again with an engine in the place of either.
//!
//! The device makes what the captured side had: queue pairs, PSNs and keys. Then every message that
//! Linux sent must be one that the engine sends, byte for byte. What a program wants, such as a
//! buffer to be withdrawn, is wanted at the moment when Linux said so.
//!
//! Two differences are known. The order of messages that cross is not compared: on the other side of
//! the wire it was another. And a Linux server may say twice that the group ends.

use super::*;
use sidestep_wire::clc::{AcceptConfirm, Message as ClcMessage};
use std::vec;

const GROUP: u32 = 1;

/// A message of a vector, and its sender.
struct Captured {
    by: Role,
    bytes: Vec<u8>,
}

macro_rules! vector {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/linux-", $name, ".hex"))
    };
}

/// The CLC and LLC messages of all captures.
const CAPTURES: [(&str, &str, &str); 7] = [
    ("abort-linger0", vector!("clc-abort-linger0"), vector!("llc-abort-linger0")),
    ("eight-connections", vector!("clc-eight-connections"), vector!("llc-eight-connections")),
    ("half-close", vector!("clc-half-close"), vector!("llc-half-close")),
    ("rr-first-contact", vector!("clc-rr-first-contact"), vector!("llc-rr-first-contact")),
    ("slow-rr-60", vector!("clc-slow-rr-60"), vector!("llc-slow-rr-60")),
    ("stream-300k", vector!("clc-stream-300k"), vector!("llc-stream-300k")),
    ("urgent", vector!("clc-urgent"), vector!("llc-urgent")),
];

/// Each message has a line before it that names its sender.
fn captured(text: &str) -> Vec<Captured> {
    let messages = text.split("# frame ").skip(1);
    let message = |message: &str| {
        let (words, digits) = message.split_once('\n').unwrap();
        let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap();
        let by = if words.contains("client") { Role::Client } else { Role::Server };
        Captured { by, bytes: digits.chunks_exact(2).map(byte).collect() }
    };
    messages.map(message).collect()
}

/// The Accept and the Confirm of the first contact.
fn introductions(text: &str) -> [AcceptConfirmR; 2] {
    let smc_r = |captured: &Captured| match ClcMessage::parse(&captured.bytes) {
        Ok(
            ClcMessage::Accept(AcceptConfirm::SmcR(it))
            | ClcMessage::Confirm(AcceptConfirm::SmcR(it)),
        ) => Some(it),
        _ => None,
    };
    let mut both = captured(text).into_iter().filter_map(|it| smc_r(&it));
    [both.next().unwrap(), both.next().unwrap()]
}

/// The engine in the place of one side, and the device of that side.
struct Stand {
    group: LinkGroup,
    us: AcceptConfirmR,
    /// What the captured side said of its second link.
    second: Option<llc::AddLink>,
    /// What buffers are registered as, over the first link.
    rtokens: BTreeMap<RmbId, Rtoken>,
    said: VecDeque<Vec<u8>>,
    now: Duration,
}

impl Stand {
    fn new(role: Role, us: AcceptConfirmR, peer: &AcceptConfirmR, llc: &[Captured]) -> Self {
        let AcceptConfirmR { gid, mac, mtu, .. } = us;
        let local = Local {
            peer_id: us.peer_id,
            vlan: 0,
            group: GROUP,
            direct: true,
            keepalive: None,
            adapters: [Adapter { id: AdapterId(0), gid, mac, mtu }].into_iter().collect(),
        };
        let group = match role {
            Role::Server => {
                let agreement = Agreement::of(&us).unwrap();
                LinkGroup::server(local, agreement, peer.peer_id, RMB).unwrap()
            }
            Role::Client => LinkGroup::client(local, peer, RMB).unwrap(),
        };
        let second =
            llc.iter().filter(|it| it.by == role).find_map(|it| match Message::parse(&it.bytes) {
                Ok(Message::AddLink(it)) if it.step == AddLinkStep::Request => Some(it),
                _ => None,
            });
        let rtoken = Rtoken { rkey: us.rkey, address: us.rmb_address };
        let rtokens = [(RMB, rtoken)].into();
        let mut stand =
            Self { group, us, second, rtokens, said: VecDeque::new(), now: Duration::ZERO };
        stand.carry_out();
        if role == Role::Server {
            stand.group.handle_confirm(peer, stand.now);
            stand.carry_out();
        }
        stand
    }

    fn carry_out(&mut self) {
        let first = LinkUserId(GROUP << 8 | 1);
        while let Some(command) = self.group.poll_command() {
            let now = self.now;
            match command {
                Command::CreateQueuePair { link, .. } if link == first => {
                    self.group.handle_queue_pair(link, Some((self.us.qp_number, self.us.psn)), now);
                }
                Command::CreateQueuePair { link, .. } => {
                    let made = self.second.as_ref().map(|second| (second.qp_number, second.psn));
                    self.group.handle_queue_pair(link, made, now);
                }
                Command::ReadyToReceive { link, .. } => {
                    self.group.handle_ready_to_receive(link, now);
                }
                Command::Register { link, rmb } => {
                    let known = self.rtokens.get(&rmb).copied();
                    let rtoken = if link == first { known } else { self.rtoken_on_second(known) };
                    self.group.handle_registered(link, rmb, rtoken, now);
                }
                Command::Send { ticket, bytes, .. } => {
                    self.said.push_back(bytes);
                    self.group.handle_sent(ticket, now);
                }
                Command::ReadyToSend { .. }
                | Command::Deregister { .. }
                | Command::Destroy { .. } => {}
            }
        }
    }

    fn rtoken_on_second(&self, known: Option<Rtoken>) -> Option<Rtoken> {
        let llc::AddLinkForm::V2 { extension: Some(extension), .. } = &self.second.as_ref()?.form
        else {
            return None;
        };
        let is_it = |pair: &&llc::RtokenPair| known.is_some_and(|it| it.rkey == pair.reference);
        let pair = extension.pairs.iter().find(is_it)?;
        Some(Rtoken { rkey: pair.rkey, address: pair.address })
    }

    /// Wants what makes the captured side send this request.
    fn want(&mut self, message: &Message) {
        let now = self.now;
        match message {
            Message::ConfirmRkey(it) if it.step == ConfirmRkeyStep::Request => {
                let rmb = RmbId(100 + self.rtokens.len() as u32);
                self.rtokens.insert(rmb, Rtoken { rkey: it.rkey, address: it.address });
                self.group.add_rmb(rmb, now).unwrap();
            }
            Message::DeleteRkey(it) if it.step == RkeyStep::Request => {
                let rkey = it.rkeys[0];
                let (rmb, _) = self.rtokens.iter().find(|(_, it)| it.rkey == rkey).unwrap();
                self.group.remove_rmb(*rmb, now).unwrap();
            }
            Message::DeleteLink(it) => self.group.end(it.reason, it.orderly, now),
            _ => {}
        }
        self.carry_out();
    }
}

fn replay(role: Role) -> Vec<(&'static str, usize)> {
    let mut compared = vec![];
    for (name, clc, llc) in CAPTURES {
        let [accept, confirm] = introductions(clc);
        let llc = captured(llc);
        let (us, peer) = match role {
            Role::Server => (accept, confirm),
            Role::Client => (confirm, accept),
        };
        let mut stand = Stand::new(role, us, &peer, &llc);
        let mut count = 0;
        let (mut has_ended, link) = (false, LinkUserId(GROUP << 8 | 1));
        for Captured { by, bytes } in llc {
            let message = Message::parse(&bytes).unwrap();
            stand.now += ms(1);
            if by != role {
                stand.group.handle_message(link, &bytes, stand.now);
                stand.carry_out();
                continue;
            }
            let is_end = matches!(message, Message::DeleteLink(_));
            if is_end && core::mem::replace(&mut has_ended, true) {
                continue;
            }
            stand.want(&message);
            let same = stand.said.iter().position(|said| *said == bytes);
            let same = same.unwrap_or_else(|| {
                panic!("{name}, as {role:?}: not {message:02x?}\nbut {:02x?}", stand.said)
            });
            stand.said.remove(same);
            count += 1;
        }
        assert!(stand.said.is_empty(), "{name}: said more than Linux: {:02x?}", stand.said);
        assert!(stand.group.has_ended());
        compared.push((name, count));
    }
    compared
}

#[test]
fn a_linux_server_says_what_ours_says() {
    let compared = replay(Role::Server);
    assert_eq!(
        compared,
        [
            ("abort-linger0", 5),
            ("eight-connections", 33),
            ("half-close", 5),
            ("rr-first-contact", 5),
            ("slow-rr-60", 5),
            ("stream-300k", 5),
            ("urgent", 5),
        ]
    );
}

#[test]
fn a_linux_client_says_what_ours_says() {
    let compared = replay(Role::Client);
    assert_eq!(compared.iter().map(|(_, count)| count).sum::<usize>(), 63);
}
