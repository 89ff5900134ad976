//! Facts, bytes and operations at random, against what must hold whatever they are.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

// ---- two hosts with any facts -------------------------------------------------------------------

const V4: [&str; 2] = ["10.0.0", "192.0.2"];

/// An adapter of the `n`th host. Few values, so that many of them go together.
fn any_adapter(n: u8) -> impl Strategy<Value = Adapter> {
    let place = (0_usize..2, 0_u8..3, any::<bool>());
    let names = (
        1_u32..3,
        0_u16..2,
        prop_oneof![3 => Just(None), 1 => select(vec!["A", "B"]).prop_map(PnetId::new)],
    );
    (select(vec![Roce::V1, Roce::V2]), place, names).prop_map(
        move |(roce, (subnet, last, is_v6), (interface, vlan, pnet_id))| {
            let last = 10 * n + last;
            let address = match (roce, is_v6) {
                (Roce::V1, _) => format!("fe80::{n}:{last}"),
                (Roce::V2, false) => format!("::ffff:{}.{last}", V4[subnet]),
                (Roce::V2, true) => format!("2001:db8:{subnet}::{last}"),
            };
            let networks =
                networks(&format!("{}.{last}/24 2001:db8:{subnet}::{last}/64", V4[subnet]));
            Adapter {
                gid: gid(&address),
                interface,
                networks,
                vlan,
                pnet_id,
                ..adapter(0, roce, n)
            }
        },
    )
}

fn numbered(adapters: Vec<Adapter>) -> ArrayVec<Adapter, ADAPTERS_MAX> {
    let ids = (1..).map(AdapterId);
    ids.zip(adapters).map(|(id, adapter)| Adapter { id, ..adapter }).collect()
}

fn any_host(n: u8) -> impl Strategy<Value = LocalHost> {
    let names = vec!["A", "B", "C"];
    let ueids = subsequence(names, 0..=3).prop_shuffle();
    let limits = (prop_oneof![1 => 0_u8..16, 6 => 16_u8..=255], 0_u8..4);
    let versions = (any::<bool>(), prop::bool::weighted(0.8));
    (vec(any_adapter(n), 0..5), ueids, limits, versions).prop_map(
        move |(adapters, ueids, (max_conns, max_links), (v1, v2))| LocalHost {
            ueids: ueids.into_iter().map(|name| Eid::ueid(name).unwrap()).collect(),
            adapters: numbered(adapters),
            versions: Versions { v1, v2 },
            max_conns,
            max_links,
            ..host(n)
        },
    )
}

/// The way from host `n` to host `peer`, as each of them sees it.
fn any_routes() -> impl Strategy<Value = [Route; 2]> {
    let side = |n: u8| {
        let pnet = prop_oneof![3 => Just(None), 1 => Just(PnetId::new("A"))];
        (1_u32..3, prop::bool::weighted(0.2), 23_u8..25, pnet).prop_map(
            move |(interface, has_vlan, prefix, pnet_id)| (n, interface, has_vlan, prefix, pnet_id),
        )
    };
    (side(2), side(1), any::<bool>(), 0_usize..2).prop_map(|(client, server, is_v6, subnet)| {
        let address = |n: u8, subnet: usize| match is_v6 {
            false => format!("{}.{}", V4[subnet], 10 * n),
            true => format!("2001:db8:{subnet}::{}", 10 * n),
        };
        let of =
            |(n, interface, has_vlan, prefix, pnet_id): (u8, u32, bool, u8, Option<PnetId>),
             peer: u8| {
                let (own, far) = match n {
                    1 => (subnet, 0),
                    _ => (0, subnet),
                };
                let prefix = if is_v6 { prefix + 40 } else { prefix };
                let local = format!("{}/{prefix}", address(n, own));
                let base = route(&local, &address(peer, far));
                Route { interface, vlan: has_vlan.into(), pnet_id, ..base }
            };
        [of(client, 1), of(server, 2)]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    /// Whatever two hosts are, and however the stream is cut: they agree on the same version, EID and
    /// limits, or both go on at the first byte of the other's program.
    #[test]
    fn two_hosts_agree_or_both_stay_on_tcp(
        client in any_host(2),
        server in any_host(1),
        [clients, servers] in any_routes(),
        first_contact in any::<bool>(),
        refusals in (option(), option()),
        piece in prop_oneof![1_usize..20, Just(usize::MAX)],
    ) {
        let engine = |refuses| Engine { refuses, first_contact, ..Engine::SOUND };
        let table = Table::with(
            (client.clone(), clients),
            (server.clone(), servers),
            engine(refusals.0),
            engine(refusals.1),
        );
        let mut table = Table { piece, ..table };
        match table.outcomes() {
            (ours @ Outcome::Agreed { version, .. }, theirs) => {
                prop_assert_eq!(&ours, &theirs);
                check_agreement(&table, version, &client, &server);
            }
            (Outcome::Tcp(Fallback::Ours(cause)), Outcome::Tcp(Fallback::Peers(decline)))
            | (Outcome::Tcp(Fallback::Peers(decline)), Outcome::Tcp(Fallback::Ours(cause))) => {
                prop_assert_eq!(cause.diagnosis(), decline.diagnosis);
            }
            other => prop_assert!(false, "{:?}", other),
        }
        table.assert_at_the_programs_bytes();
        if let Some(proposal @ Message::Proposal(_)) = table.client.sent.first() {
            linux::assert_linux_takes_proposal(&bytes(proposal.clone()));
        }
    }
}

fn option() -> impl Strategy<Value = Option<Diagnosis>> {
    prop_oneof![9 => Just(None), 1 => Just(Some(Diagnosis::MEM))]
}

/// Invariant 21 of the wire reference: nothing is agreed on that one of the two does not have.
fn check_agreement(table: &Table, version: Version, client: &LocalHost, server: &LocalHost) {
    let [Message::Accept(AcceptConfirm::SmcR(accept))] = &table.server.sent[..] else { panic!() };
    let [_, Message::Confirm(AcceptConfirm::SmcR(confirm))] = &table.client.sent[..] else {
        panic!()
    };
    assert_eq!((accept.version(), confirm.version()), (version, version));
    assert_eq!(accept.eid(), confirm.eid());
    assert_eq!(accept.eid().is_some(), version == Version::V2);
    if let Some(eid) = accept.eid() {
        assert!(client.ueids.contains(&eid) && server.ueids.contains(&eid));
    }
    assert!(client.has(confirm.gid) && server.has(accept.gid));
    assert_eq!(accept.is_first_contact(), confirm.is_first_contact());
    if let (Some(theirs), Some(ours)) = (accept.first_contact(), confirm.first_contact()) {
        let limits =
            |hello: &FirstContactR| (hello.common.release, hello.max_conns, hello.max_links);
        assert_eq!(limits(theirs), limits(ours));
        assert!(theirs.max_conns <= client.max_conns.min(server.max_conns));
        assert!(theirs.max_links <= client.max_links.min(server.max_links));
    }
    let proposed = table.server.asked.iter().find_map(|event| match event {
        Event::Accept(proposer, _) => Some(proposer.gid),
        _ => None,
    });
    assert_eq!(proposed, Some(confirm.gid), "whom the server sends to is who answers");
}

// ---- one host and any peer ----------------------------------------------------------------------

/// What may happen to an exchange.
#[derive(Clone, Debug)]
enum Operation {
    /// Bytes come, of which as many are read as are wanted.
    Bytes(Vec<u8>),
    /// One of the messages that a peer could send, with one byte changed, if it is not by 0.
    Message(usize, usize, u8),
    Answer,
    Decline(bool),
    Established,
    Later(u64),
    End,
    Reset,
}

fn operation() -> impl Strategy<Value = Operation> {
    let change = prop_oneof![3 => Just(0_u8), 2 => any::<u8>()];
    prop_oneof![
        1 => vec(any::<u8>(), 0..40).prop_map(Operation::Bytes),
        6 => (0_usize..9, 0_usize..180, change).prop_map(|(n, at, by)| Operation::Message(n, at, by)),
        5 => Just(Operation::Answer),
        1 => any::<bool>().prop_map(Operation::Decline),
        1 => Just(Operation::Established),
        2 => (0_u64..3000).prop_map(Operation::Later),
        1 => Just(Operation::End),
        1 => Just(Operation::Reset),
    ]
}

/// Messages that fit each other.
fn peers_messages() -> Vec<Vec<u8>> {
    let mut messages = vec![];
    for first_contact in [true, false] {
        let engine = Engine { first_contact, ..Engine::SOUND };
        let mut table = Table::neighbours(Engine::SOUND, engine);
        table.run();
        messages.extend(table.client.sent.iter().chain(&table.server.sent).cloned().map(bytes));
    }
    for decline in [Decline::v1, Decline::v2] {
        messages.push(bytes(decline(PeerId::default(), Diagnosis::CNFERR)));
    }
    messages.push(bytes(Message::Proposal(Proposal::smc_d_v2(
        Default::default(),
        None,
        Default::default(),
        sidestep_wire::Chid::LOOPBACK,
    ))));
    messages
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    /// Whatever a peer sends and the engine says: nothing panics; there is one end, and nothing is
    /// wanted, sent or waited for behind it; no Decline chases a message of ours that is not of a
    /// first contact; and no byte is read behind a message.
    #[test]
    fn an_exchange_ends_once_whatever_happens(
        role in select(vec![Role::Accept, Role::Confirm]),
        first_contact in any::<bool>(),
        operations in vec(operation(), 1..25),
    ) {
        let messages = peers_messages();
        let (n, way) = match role {
            Role::Accept => (1, route("10.0.0.1/24", "10.0.0.2")),
            Role::Confirm => (2, route("10.0.0.2/24", "10.0.0.1")),
        };
        let engine = Engine { first_contact, is_slow: true, ..Engine::SOUND };
        let mut end = End::new(role, host(n), way, engine);
        let mut now = Duration::ZERO;
        let _ = end.act(now);
        for operation in operations {
            match operation {
                Operation::Bytes(bytes) => read(&mut end, &bytes),
                Operation::Message(which, at, by) => {
                    let mut message = messages[which % messages.len()].clone();
                    let at = at % message.len();
                    message[at] ^= by;
                    read(&mut end, &message);
                }
                Operation::Answer => drop(end.answer(now)),
                Operation::Decline(in_time) => {
                    let diagnosis = if in_time { Diagnosis::MEM } else { Diagnosis::TIMEOUT_CL };
                    end.exchange.decline(diagnosis, now);
                }
                Operation::Established => end.exchange.established(),
                Operation::Later(ms) => {
                    now += Duration::from_millis(ms);
                    end.exchange.handle_timeout(now);
                }
                Operation::End => end.exchange.handle_end(),
                Operation::Reset => end.exchange.handle_reset(),
            }
            let before = end.sent.len();
            let had_ended = end.outcome.is_some();
            let _ = end.act(now);
            if had_ended {
                prop_assert_eq!(end.sent.len(), before);
            }
            if end.outcome.is_some() {
                prop_assert_eq!((end.exchange.wanted(), end.exchange.poll_timeout()), (0, None));
            }
            for pair in end.sent.windows(2) {
                if let [Message::Accept(said) | Message::Confirm(said), Message::Decline(_)] = pair {
                    prop_assert!(said.is_first_contact());
                }
            }
        }
    }
}

/// Lets the end read a message, or what may be none, and asserts that no byte behind it is taken.
fn read(end: &mut End, bytes: &[u8]) {
    let is_begun = !matches!(end.exchange.wanted(), 0 | Header::LEN);
    let taken = end.exchange.handle_bytes(bytes);
    assert!(taken <= bytes.len());
    if !is_begun && bytes.len() >= Header::LEN {
        let len = Header::extent(bytes).map_or(Header::LEN, |(_, len)| len.into());
        assert!(taken <= len, "{taken} bytes of {len}");
    }
}
