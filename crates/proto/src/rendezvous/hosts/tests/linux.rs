//! Linux 6.12 as the peer: its messages, from captures, and what it checks in ours.

use super::*;

macro_rules! capture {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../vectors/linux-clc-",
                $name,
                ".hex"
            )),
        )
    };
}

const CAPTURES: [(&str, &str); 7] = [
    capture!("rr-first-contact"),
    capture!("eight-connections"),
    capture!("stream-300k"),
    capture!("urgent"),
    capture!("half-close"),
    capture!("abort-linger0"),
    capture!("slow-rr-60"),
];

/// All messages of a capture.
fn messages(text: &str) -> Vec<Vec<u8>> {
    let digits = text.lines().filter(|line| !line.starts_with('#')).flat_map(str::chars);
    let digits: Vec<_> = digits.filter_map(|digit| digit.to_digit(16)).collect();
    let mut rest: &[u8] =
        &digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect::<Vec<_>>();
    let mut messages = vec![];
    while !rest.is_empty() {
        let (_, len) = Header::extent(rest).unwrap();
        let (message, behind) = rest.split_at(len.into());
        messages.push(message.to_vec());
        rest = behind;
    }
    messages
}

/// The Proposals, Accepts and Confirms of a capture, those of one connection together.
fn connections(text: &str) -> Vec<[Vec<u8>; 3]> {
    let of_type = |code| messages(text).into_iter().filter(move |message| message[4] == code);
    let accepts_confirms = of_type(2).zip(of_type(3));
    of_type(1).zip(accepts_confirms).map(|(one, (two, three))| [one, two, three]).collect()
}

fn smc_r(bytes: &[u8]) -> AcceptConfirmR {
    match Message::parse(bytes) {
        Ok(
            Message::Accept(AcceptConfirm::SmcR(it)) | Message::Confirm(AcceptConfirm::SmcR(it)),
        ) => it,
        other => panic!("{other:?}"),
    }
}

/// The host that has sent this Accept or Confirm: one adapter of soft-RoCE, which is RoCEv2.
fn sender(message: &AcceptConfirmR, n: u8) -> LocalHost {
    let adapter =
        Adapter { gid: message.gid, mac: message.mac, mtu: message.mtu, ..adapter(1, Roce::V2, n) };
    LocalHost { peer_id: message.peer_id, adapters: [adapter].into_iter().collect(), ..host(n) }
}

/// What the engine says that has made the link and the buffer of this message, by our terms.
fn by_terms(linux: &AcceptConfirmR, terms: &Terms) -> AcceptConfirmR {
    let Wording::V2 { eid, hello } = &terms.wording else { panic!("{terms:?}") };
    let first_contact = linux.is_first_contact().then(|| hello.clone());
    AcceptConfirmR { form: FormR::V2 { eid: *eid, first_contact }, ..linux.clone() }
}

/// Where a Proposal has the peer ID and the MAC, which Linux leaves out of one of version 2 alone.
const PEER_ID: core::ops::Range<usize> = 8..16;
const MAC: core::ops::Range<usize> = 32..38;

fn without_identity(mut proposal: Vec<u8>) -> Vec<u8> {
    proposal[PEER_ID].fill(0);
    proposal[MAC].fill(0);
    proposal
}

#[test]
fn as_client_we_say_what_a_linux_client_has_said() {
    let mut count = 0;
    for (name, text) in CAPTURES {
        for [proposal, accept, confirm] in connections(text) {
            let linux = smc_r(&confirm);
            let route = route("10.0.0.2/24", "10.0.0.1");
            let local = Arc::new(sender(&linux, 2));
            let mut client = Exchange::client(local, route, Duration::ZERO);
            let ours = client.poll_transmit().unwrap();
            assert_eq!(ours[PEER_ID], linux.peer_id.0, "{name}");
            assert_eq!(ours[MAC], linux.mac.0, "{name}");
            assert_eq!(without_identity(ours), proposal, "{name}");
            assert_eq!(client.handle_bytes(&accept), accept.len(), "{name}");
            let Some(Event::Connect(read, terms)) = client.poll_event() else { panic!("{name}") };
            assert_eq!(*read, smc_r(&accept), "{name}");
            client.introduce(&by_terms(&linux, &terms), Duration::ZERO);
            assert_eq!(client.poll_transmit(), Some(confirm), "{name}");
            client.established();
            let first_contact = linux.is_first_contact();
            let agreed = Outcome::Agreed { version: Version::V2, first_contact };
            assert_eq!(client.poll_event(), Some(Event::Ended(agreed)), "{name}");
            count += 1;
        }
    }
    assert_eq!(count, 14);
}

#[test]
fn as_server_we_say_what_a_linux_server_has_said() {
    let mut count = 0;
    for (name, text) in CAPTURES {
        for [proposal, accept, confirm] in connections(text) {
            let linux = smc_r(&accept);
            let route = route("10.0.0.1/24", "10.0.0.2");
            let local = Arc::new(sender(&linux, 1));
            let mut server = Exchange::server(local, route, Duration::ZERO);
            assert_eq!(server.handle_bytes(&proposal), proposal.len(), "{name}");
            let Some(Event::Accept(proposer, terms)) = server.poll_event() else {
                panic!("{name}")
            };
            assert_eq!(proposer.gid, smc_r(&confirm).gid, "{name}");
            server.introduce(&by_terms(&linux, &terms), Duration::ZERO);
            assert_eq!(server.poll_transmit(), Some(accept), "{name}");
            assert_eq!(server.handle_bytes(&confirm), confirm.len(), "{name}");
            let confirmed = Event::Confirmed(Box::new(smc_r(&confirm)));
            assert_eq!(server.poll_event(), Some(confirmed), "{name}");
            server.established();
            let first_contact = linux.is_first_contact();
            let agreed = Outcome::Agreed { version: Version::V2, first_contact };
            assert_eq!(server.poll_event(), Some(Event::Ended(agreed)), "{name}");
            count += 1;
        }
    }
    assert_eq!(count, 14);
}

#[test]
fn without_a_device_we_decline_as_linux_has() {
    let (name, text) = capture!("decline-no-device");
    let [linux] = &messages(text)[..] else { panic!("{name}") };
    let Ok(Message::Decline(decline)) = Message::parse(linux) else { panic!("{name}") };
    let local = LocalHost { peer_id: decline.peer_id, adapters: ArrayVec::new(), ..host(2) };
    let route_2 = route("10.0.0.2/24", "10.0.0.1");
    let mut client = Exchange::client(Arc::new(local), route_2, Duration::ZERO);
    assert_eq!(client.poll_transmit().as_ref(), Some(linux));
    let fallback = Outcome::Tcp(Fallback::Ours(Cause::NoAdapter));
    assert_eq!(client.poll_event(), Some(Event::Ended(fallback)));

    let route_1 = route("10.0.0.1/24", "10.0.0.2");
    let mut server = Exchange::server(Arc::new(host(1)), route_1, Duration::ZERO);
    assert_eq!(server.handle_bytes(linux), linux.len());
    let fallback = Outcome::Tcp(Fallback::Peers(decline));
    assert_eq!(server.poll_event(), Some(Event::Ended(fallback)));
}

// ---- what Linux checks (wire reference §2.3, §9.2 to §9.4) --------------------------------------

fn number(bytes: &[u8], at: usize) -> usize {
    usize::from(bytes[at]) << 8 | usize::from(bytes[at + 1])
}

/// Asserts what a Linux server asks of a Proposal, of SMC-R.
pub(super) fn assert_linux_takes_proposal(bytes: &[u8]) {
    const NEITHER: u8 = 2;
    let eyecatcher = [0xE2, 0xD4, 0xC3, 0xD9];
    assert_eq!((&bytes[..4], &bytes[bytes.len() - 4..]), (&eyecatcher[..], &eyecatcher[..]));
    assert_eq!((bytes[4], number(bytes, 5)), (1, bytes.len()));
    assert!(bytes[PEER_ID] != [0; 8] && bytes[MAC] != [0; 6], "§9.2: to be filled in any case");
    let (version, type_v2, type_v1) = (bytes[7] >> 4, bytes[7] >> 2 & 3, bytes[7] & 3);
    let has_v1 = type_v1 != NEITHER;
    let ip_offset = number(bytes, 38);
    assert!(ip_offset <= 40);
    let ip_area = 40 + ip_offset;
    let prefixes = if has_v1 { 8 + 17 * usize::from(bytes[ip_area + 7]) } else { 0 };
    if version == 1 {
        assert!(has_v1 && type_v2 == 0);
        assert_eq!(bytes.len(), ip_area + prefixes + 4);
        return;
    }
    assert_eq!(version, 2);
    assert_eq!(type_v2, 0, "SMC-R");
    // §9.4, pitfall 22: without an IP prefix area Linux looks for one at offset 40.
    assert!(has_v1 || bytes[47] <= 8);
    let v2_offset = number(bytes, 50);
    assert!((1..=172).contains(&v2_offset));
    assert_eq!(v2_offset, 28 + prefixes);
    let v2 = 52 + v2_offset;
    let eids = usize::from(bytes[v2]);
    assert!((1..=8).contains(&eids), "without an EID there is no version 2");
    assert_eq!(bytes[v2 + 1], 0, "no GIDs of ISM devices");
    assert_eq!(bytes[v2 + 3], 0x10, "release 1, no SEID");
    assert_eq!(number(bytes, v2 + 6), 0);
    let gid = &bytes[v2 + 8..v2 + 24];
    assert!(gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF] || gid[0] & 0xE0 == 0x20);
    assert_eq!(bytes.len(), 40 + 40 + prefixes + 40 + 32 * eids + 4);
}

#[test]
fn a_linux_server_takes_our_proposals() {
    let both = host(2);
    let v2 = LocalHost { versions: V2_ONLY, ..host(2) };
    let v1 = LocalHost { versions: V1_ONLY, ..host(2) };
    for (local, len) in [(both, 164), (v2, 156), (v1, 52)] {
        let route = route("10.0.0.2/24", "10.0.0.1");
        let mut client = Exchange::client(Arc::new(local), route, Duration::ZERO);
        let proposal = client.poll_transmit().unwrap();
        assert_linux_takes_proposal(&proposal);
        assert_eq!(proposal.len(), len);
    }
}

#[test]
fn a_linux_peer_takes_our_accept_and_confirm() {
    for (first_contact, accept_len, confirm_len) in [(true, 160, 180), (false, 108, 108)] {
        let engine = Engine { first_contact, ..Engine::SOUND };
        let mut table = Table::neighbours(Engine::SOUND, engine);
        table.assert_agreed(Version::V2);
        let accept = bytes(table.server.sent[0].clone());
        let confirm = bytes(table.client.sent[1].clone());
        assert_eq!((accept.len(), confirm.len()), (accept_len, confirm_len));
        let flags = if first_contact { 0x28 } else { 0x20 };
        assert_eq!((accept[7], confirm[7]), (flags, flags));
        assert_eq!(accept[64..96], confirm[64..96], "the EID is echoed");
        if first_contact {
            // Direct; release 1; limits within 16..=255 and 1..=2, and echoed exactly.
            assert_eq!((accept[104], accept[105] & 0x0F), (0x80, 1));
            assert_eq!(accept[140..142], [255, 2]);
            assert_eq!(accept[104..142], confirm[104..142]);
            assert_eq!(confirm[156], 1, "the list has the GID of the link");
            assert_eq!(confirm[160..176], confirm[16..32]);
        }
    }
}

#[test]
fn the_length_of_a_decline_goes_with_its_version() {
    let nothing = LocalHost { adapters: ArrayVec::new(), ..host(2) };
    let client = (nothing, route("10.0.0.2/24", "10.0.0.1"));
    let mut table = Table::new(client, (host(1), route("10.0.0.1/24", "10.0.0.2")));
    table.run();
    assert_eq!(bytes(table.client.sent[0].clone()).len(), 28);
    let refusing = Engine { refuses: Some(Diagnosis::MEM), ..Engine::SOUND };
    let mut table = Table::neighbours(Engine::SOUND, refusing);
    table.run();
    assert_eq!(bytes(table.server.sent[0].clone()).len(), 44);
}
