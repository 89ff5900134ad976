//! Operations at random, against what must hold whatever happens.

use super::*;
use proptest::prelude::*;
use std::vec;

/// What may happen to a table.
#[derive(Debug, Clone)]
enum Operation {
    Run(u64),
    /// One of several links.
    Break(Role, usize),
    /// Perhaps the last one.
    BreakAny(Role, usize),
    Cut(u8, u8),
    Mend(u8, u8),
    AdapterDown(Role, u8),
    AdapterUp(Role, u8),
    AddRmb(Role),
    RemoveRmb(Role, usize),
    Connect,
    Close(usize),
    DeleteLink(Role, usize),
    Swallow(usize),
    End(Role),
}

/// What is swallowed, each at most twice in a row: more would be a peer that has stopped.
const SWALLOWED: [&str; 14] = [
    "s ADD LINK request",
    "c ADD LINK response",
    "c ADD LINK reject",
    "s ADD LINK CONT",
    "c ADD LINK CONT",
    "s CONFIRM LINK",
    "c CONFIRM LINK",
    "s DELETE LINK",
    "c DELETE LINK",
    "s CONFIRM RKEY",
    "c CONFIRM RKEY",
    "s DELETE RKEY",
    "c DELETE RKEY",
    "s TEST LINK",
];

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Server), Just(Role::Client)]
}

fn operation() -> impl Strategy<Value = Operation> {
    let adapter = 1_u8..4;
    prop_oneof![
        6 => (0_u64..20).prop_map(Operation::Run),
        3 => (0_u64..5000).prop_map(Operation::Run),
        2 => (role(), 0_usize..3).prop_map(|(role, at)| Operation::Break(role, at)),
        1 => (role(), 0_usize..9).prop_map(|(role, at)| Operation::BreakAny(role, at)),
        1 => (adapter.clone(), adapter.clone()).prop_map(|(s, c)| Operation::Cut(s, c)),
        2 => (adapter.clone(), adapter.clone()).prop_map(|(s, c)| Operation::Mend(s, c)),
        1 => (role(), adapter.clone()).prop_map(|(role, n)| Operation::AdapterDown(role, n)),
        2 => (role(), adapter).prop_map(|(role, n)| Operation::AdapterUp(role, n)),
        4 => role().prop_map(Operation::AddRmb),
        3 => (role(), 0_usize..8).prop_map(|(role, at)| Operation::RemoveRmb(role, at)),
        3 => Just(Operation::Connect),
        2 => (0_usize..8).prop_map(Operation::Close),
        1 => (role(), 0_usize..3).prop_map(|(role, at)| Operation::DeleteLink(role, at)),
        2 => (0..SWALLOWED.len()).prop_map(Operation::Swallow),
        1 => (role(), 0_u8..40).prop_map(|(role, n)| match n {
            0 => Operation::End(role),
            _ => Operation::Connect,
        }),
    ]
}

fn setting() -> impl Strategy<Value = Setting> {
    let version = prop_oneof![Just(Version::V1), Just(Version::V2)];
    let device = prop_oneof![Just(Duration::ZERO), Just(ms(1)), Just(ms(30))];
    let links = prop_oneof![1 => Just(1_u8), 4 => Just(2)];
    let numbers = (1_u8..4, 1_u8..4, links, 0_u32..8);
    (version, device, numbers).prop_map(|(version, device, (s, c, max_links, skew))| {
        let keepalive = Some(KEEPALIVE);
        Setting { keepalive, max_links, device, skew, ..Setting::new(version, s, c) }
    })
}

impl core::fmt::Debug for Setting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let adapters = (self.servers_adapters, self.clients_adapters);
        let Self { version, max_links, device, skew, .. } = self;
        let links = format!("links {max_links}, device {device:?}, skew {skew}");
        write!(f, "{version:?}, adapters {adapters:?}, {links}")
    }
}

struct Play {
    table: Table,
    next: u32,
    swallowed: BTreeMap<&'static str, u8>,
}

impl Play {
    fn new(setting: Setting) -> Self {
        let mut table = Table::lay(setting);
        table.exchange_clc();
        Self { table, next: 100, swallowed: BTreeMap::new() }
    }

    fn perform(&mut self, operation: &Operation) {
        let table = &mut self.table;
        let now = table.now;
        match *operation {
            Operation::Run(time) => table.run(ms(time)),
            Operation::Break(role, _) if table.group(role).active().count() < 2 => {}
            Operation::Break(role, at) | Operation::BreakAny(role, at) => {
                if let Some(link) = table.group(role).links().get(at).map(Link::user_id) {
                    table.happen(role, Due::Broken(link));
                }
            }
            Operation::Cut(servers, clients) => table.cut(servers, clients),
            Operation::Mend(servers, clients) => table.mend(servers, clients),
            Operation::AdapterDown(role, n) => table.adapter_down(role, n),
            Operation::AdapterUp(role, n) => table.adapter_up(role, n),
            Operation::AddRmb(role) => {
                self.next += 1;
                let _ = table.group(role).add_rmb(RmbId(self.next), now);
            }
            Operation::RemoveRmb(role, at) => {
                let rmb = table.group(role).rmbs().nth(at);
                if let Some((rmb, _)) = rmb {
                    let _ = table.group(role).remove_rmb(rmb, now);
                }
            }
            Operation::Connect => self.connect(),
            Operation::Close(at) => {
                let token = table.server().connections().get(at).map(|it| it.token);
                if let Some(token) = token {
                    table.server().close(token, now);
                    table.client().close(token, now);
                }
            }
            Operation::DeleteLink(role, at) => {
                if let Some(link) = table.group(role).links().get(at).map(Link::user_id) {
                    table.group(role).delete_link(link, now);
                }
            }
            Operation::Swallow(at) => {
                let count = self.swallowed.entry(SWALLOWED[at]).or_default();
                *count += 1;
                if *count <= 2 {
                    table.swallow(SWALLOWED[at]);
                }
            }
            Operation::End(role) => table.group(role).end(DeleteReason::OPERATOR, false, now),
        }
        self.table.carry_out();
        self.check();
    }

    /// A connection of two buffers that both sides know, over a link that both have.
    fn connect(&mut self) {
        self.next += 1;
        let token = AlertToken(self.next);
        let announced = |group: &LinkGroup| {
            group.rmbs().find(|(_, state)| *state == RmbState::Announced).map(|(rmb, _)| rmb)
        };
        let table = &mut self.table;
        let (Some(ours), Some(theirs)) = (announced(table.server()), announced(table.client()))
        else {
            return;
        };
        let Some(link) = table.server().next_link() else { return };
        let number = table.server().link(link).unwrap().number();
        let Some(peer) = table.client().link_numbered(number).map(Link::user_id) else { return };
        let both_open = table.server().open(token, ours, link).is_ok()
            && table.client().open(token, theirs, peer).is_ok();
        let tokens = (table.server().rtoken(ours, link), table.client().rtoken(theirs, peer));
        let is_bound = match tokens {
            (Some(ours), Some(theirs)) if both_open => {
                table.client().bind(token, peer, ours).is_ok()
                    && table.server().bind(token, link, theirs).is_ok()
            }
            _ => false,
        };
        if !is_bound {
            let now = table.now;
            table.server().close(token, now);
            table.client().close(token, now);
        }
    }

    /// What holds at any moment.
    fn check(&mut self) {
        for host in &self.table.hosts {
            let group = &host.group;
            assert!(group.links().len() <= LINK_SLOTS);
            assert!(group.flow.is_none() || group.rkey_flow.is_none(), "one flow at a time");
            assert!(group.poll_timeout().is_none_or(|at| at > self.table.now));
            for link in group.links() {
                let is_deleting = link.state() == LinkState::Deleting;
                assert_eq!(is_deleting, link.farewell.is_some());
                let same = group.links().iter().filter(|it| it.user_id() == link.user_id());
                assert_eq!(same.count(), 1);
            }
            let at_device: Vec<_> = host.queue_pairs.keys().copied().collect();
            let has_queue_pair = |link: &&Link| !link.is_destroyed;
            let known = group.links().iter().filter(has_queue_pair);
            let mut known: Vec<_> = known.map(Link::user_id).collect();
            known.sort_unstable();
            assert_eq!(at_device, known, "queue pairs are those of links");
            let is_live = group.is_established();
            for connection in group.connections().iter().filter(|_| is_live) {
                let carried = group.active().any(|link| link.user_id() == connection.link);
                assert!(carried || host.has(Event::Lost(connection.token)), "{connection:?}");
            }
            for (_, keys) in group.peer_rmbs() {
                assert!(!keys.is_empty());
                assert!(keys.iter().all(|(link, _)| group.link(*link).is_some()));
            }
        }
    }

    /// The network is whole again, and all hosts listen. Then all comes to rest.
    fn settle(&mut self) {
        self.table.cuts.clear();
        self.table.swallows.clear();
        self.table.run(s(400));
        self.check();
        let [server, client] = &self.table.hosts[..] else { unreachable!() };
        match (server.group.has_ended(), client.group.has_ended()) {
            (false, false) => self.table.assert_agreement(),
            (true, true) => {}
            ended => panic!("one side lives on, {ended:?}: {:#?}", self.table.trace),
        }
    }

    /// Both sides end, whatever the other does.
    fn finish(mut self) {
        for role in [Role::Server, Role::Client] {
            let now = self.table.now;
            self.table.group(role).end(DeleteReason::OPERATOR, false, now);
            self.table.carry_out();
        }
        self.table.run(s(3));
        self.table.assert_gone(Role::Server);
        self.table.assert_gone(Role::Client);
    }

    fn end(mut self, role: Role) {
        let now = self.table.now;
        self.table.group(role).end(DeleteReason::OPERATOR, true, now);
        self.table.carry_out();
        self.table.run(s(5));
        self.table.assert_gone(Role::Server);
        self.table.assert_gone(Role::Client);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Whatever the network and the two programs do: once they leave it alone, both sides agree on
    /// links and keys, or both have ended.
    #[test]
    fn two_sides_agree_in_the_end(
        setting in setting(),
        operations in prop::collection::vec(operation(), 0..60),
        ender in role(),
    ) {
        let mut play = Play::new(setting);
        for operation in &operations {
            play.perform(operation);
        }
        play.settle();
        play.end(ender);
    }
}

/// A message that a peer could send, and then changed.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        Just(1_u8),
        Just(2),
        Just(3),
        Just(4),
        Just(5),
        Just(6),
        Just(7),
        Just(8),
        Just(9),
        any::<u8>(),
    ];
    let len = prop_oneof![8 => Just(44_usize), 2 => 0_usize..300];
    let small = prop_oneof![3 => 0_u8..8, 1 => any::<u8>()];
    let body = prop::collection::vec(small, 300);
    (kind, any::<bool>(), any::<u8>(), len, body).prop_map(
        |(kind, is_v2, flags, len, mut bytes)| {
            bytes.truncate(len);
            let header = match is_v2 {
                true => vec![0x20 | kind, len as u8, (len >> 8) as u8, flags],
                false => vec![kind, len as u8, 0, flags],
            };
            for (byte, at) in header.into_iter().zip(0..len) {
                bytes[at] = byte;
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Whatever becomes of messages on their way: nothing panics, no timer runs wild, and a group that
    /// we end has ended in time.
    #[test]
    fn a_peer_that_garbles_its_messages_gets_no_further_than_its_group(
        setting in setting(),
        steps in prop::collection::vec((operation(), 0_usize..90, 0_u8..9), 1..60),
    ) {
        let mut play = Play::new(setting);
        play.perform(&Operation::Run(3000));
        for (operation, at, bit) in &steps {
            // Most arrive as they were sent.
            let change = 1_u8.checked_shl(u32::from(*bit)).unwrap_or(0);
            play.table.mangles.push_back((*at, change));
            play.table.mangles.push_back((0, 0));
            play.perform(operation);
        }
        play.finish();
    }

    /// Whatever a peer sends: the same, and a message makes few commands.
    #[test]
    fn a_hostile_peer_gets_no_further_than_its_group(
        setting in setting(),
        messages in prop::collection::vec((role(), 0_usize..3, hostile(), 0_u64..3000), 1..40),
    ) {
        let mut play = Play::new(setting);
        play.perform(&Operation::Run(3000));
        play.perform(&Operation::Connect);
        for (role, at, bytes, wait) in &messages {
            let now = play.table.now;
            let group = play.table.group(*role);
            if let Some(link) = group.links().get(*at).map(Link::user_id) {
                group.handle_message(link, bytes, now);
                assert!(group.commands.len() < 3 * RMBS_MAX, "one message, few commands");
            }
            play.table.carry_out();
            play.perform(&Operation::Run(*wait));
        }
        play.finish();
    }
}
