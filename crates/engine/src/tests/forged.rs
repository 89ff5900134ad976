//! Accepts, Confirms and Proposals that do not come from the peer.
//!
//! Any local user of either host, and any third host, can hold the other end of a TCP connection and
//! repeat there what it has seen of CLC. A connection that is ours and the peer's goes on meanwhile:
//! not a byte of it is written by others, and its link stays.

use super::*;

/// A connection of the group, beside which others are forged.
struct Bystander {
    pair: Pair,
    ends: [AlertToken; 2],
}

impl Bystander {
    fn new() -> Self {
        let mut pair = Pair::new();
        let ends = pair.connect();
        Self { pair, ends }
    }

    /// The Accept of a further connection, as the server's host says it, and what that calls it.
    fn overheard_accept(&mut self) -> (AlertToken, AcceptConfirmR) {
        let token = self.pair.propose();
        // Its buffer is told of over the link first, if it is a new one.
        let introduced = (0..8).find_map(|_| {
            self.pair.carry_datagrams();
            self.pair.servers_events().into_iter().find_map(|event| match event {
                Event::Introduce(of, accept) if of == token => Some(*accept),
                _ => None,
            })
        });
        let introduced = introduced.expect("an Accept");
        assert!(!introduced.is_first_contact());
        (token, introduced)
    }

    /// What the client says to an Accept that a listener at this address has sent it.
    fn answer(&mut self, accept: &AcceptConfirmR, remote: IpAddr) -> Vec<Event> {
        let caller = Caller::new(USER, address(CLIENT), remote);
        let request = Request { caller, ..request(CLIENT, SIZES) };
        let now = self.pair.now;
        if let Err(diagnosis) = self.pair.hosts[CLIENT].connect(accept, request, now) {
            return vec![Event::Declined(AlertToken(0), diagnosis)];
        }
        let mut events = Vec::new();
        for _ in 0..8 {
            self.pair.carry_datagrams();
            events.extend(std::iter::from_fn(|| self.pair.hosts[CLIENT].poll_event()));
        }
        events
    }

    /// Both directions of the connection carry bytes, over the link that it has always had.
    fn lives(&mut self) {
        for (from, word) in [(CLIENT, b"question"), (SERVER, b"answer..")] {
            let now = self.pair.now;
            assert_eq!(self.pair.hosts[from].send(self.ends[from], word, now), Ok(8));
            self.pair.run(1);
            let (to, mut heard) = (1 - from, [0; 9]);
            let now = self.pair.now;
            assert_eq!(self.pair.hosts[to].receive(self.ends[to], &mut heard, now), Ok(8));
            assert_eq!(&heard[..8], word);
        }
        let moves = |at: usize| self.pair.hosts[at].connection(self.ends[at]).unwrap().moves;
        assert_eq!([SERVER, CLIENT].map(moves), [0, 0]);
    }
}

fn is_declined(events: &[Event], with: Diagnosis) -> bool {
    let is_it = |event: &Event| matches!(event, Event::Declined(_, why) if *why == with);
    let goes_on = |event: &Event| matches!(event, Event::Introduce(..) | Event::Established(_));
    events.iter().any(is_it) && !events.iter().any(goes_on)
}

/// A listener of a local user answers with what the server's host has said to another client.
#[test]
fn an_accept_from_another_address_joins_no_group() {
    let mut it = Bystander::new();
    let (_, accept) = it.overheard_accept();
    for remote in [address(CLIENT), address(7), IpAddr::from([127, 0, 0, 1])] {
        let events = it.answer(&accept, remote);
        assert!(is_declined(&events, Diagnosis::NOSRVLINK), "{remote}: {events:?}");
    }
    it.lives();
}

/// The same by a local user of the server's host, who has its address. A write by a wrong key would
/// break the link, and with it all connections.
#[test]
fn an_accept_with_a_buffer_of_which_no_link_has_told_is_declined() {
    let mut it = Bystander::new();
    let (_, accept) = it.overheard_accept();
    let wrong_key = AcceptConfirmR { rkey: Rkey(accept.rkey.0 ^ 1), ..accept.clone() };
    let elsewhere = RmbAddress(accept.rmb_address.0 + 0x1000);
    let wrong_address = AcceptConfirmR { rmb_address: elsewhere, ..accept };
    for forged in [wrong_key, wrong_address] {
        let events = it.answer(&forged, address(SERVER));
        assert!(is_declined(&events, Diagnosis::ERR_RTOK), "{events:?}");
    }
    it.lives();
}

#[test]
fn an_accept_with_the_buffer_of_another_connection_is_declined() {
    let mut it = Bystander::new();
    let (_, accept) = it.overheard_accept();
    let first = it.pair.said[SERVER][0].clone();
    let forged = AcceptConfirmR {
        rkey: first.rkey,
        rmb_address: first.rmb_address,
        rmbe_index: first.rmbe_index,
        ..accept
    };
    let events = it.answer(&forged, address(SERVER));
    assert!(is_declined(&events, Diagnosis::ERR_RTOK), "{events:?}");
    it.lives();
}

#[test]
fn a_confirm_with_a_buffer_of_which_no_link_has_told_or_of_another_connection_is_refused() {
    let mut it = Bystander::new();
    let confirm = it.pair.said[CLIENT][0].clone();
    let of_first_contact = it.pair.said[SERVER][0].clone();
    for wrong in [0, 1] {
        let (token, accept) = it.overheard_accept();
        // Of a further contact, and otherwise as the client's host would say it.
        let forged = AcceptConfirmR {
            form: accept.form.clone(),
            rkey: Rkey(confirm.rkey.0 ^ wrong),
            alert_token: AlertToken(77),
            ..confirm.clone()
        };
        assert_ne!(forged.qp_number, of_first_contact.qp_number);
        let now = it.pair.now;
        it.pair.hosts[SERVER].handle_confirm(token, &forged, now);
        let events = it.pair.servers_events();
        assert!(is_declined(&events, Diagnosis::NOACTLINK), "{events:?}");
        it.lives();
    }
}

/// It is told nothing of the group, and founds one of its own, which comes to nothing.
#[test]
fn a_proposal_in_the_peers_name_from_another_address_joins_no_group() {
    let mut it = Bystander::new();
    let Adapter { gid, mac, .. } = adapter(CLIENT);
    let proposer = Proposer { peer_id: peer_id(CLIENT), gid, mac };
    let caller = Caller::new(USER, address(SERVER), address(7));
    let request = Request { caller, ..request(SERVER, SIZES) };
    let now = it.pair.now;
    let forged = it.pair.hosts[SERVER].accept(proposer, request, now).unwrap();
    let events = it.pair.servers_events();
    let accept = events.iter().find_map(|event| match event {
        Event::Introduce(token, accept) if *token == forged => Some(accept),
        _ => None,
    });
    let accept = accept.expect("an Accept");
    assert!(accept.is_first_contact());
    assert_ne!(accept.qp_number, it.pair.said[SERVER][0].qp_number);
    it.lives();
}

/// Nor does one to an address of ours by which the client could not tell that it is us.
#[test]
fn a_group_takes_no_connection_with_an_address_that_the_client_does_not_know() {
    let mut it = Bystander::new();
    let Adapter { gid, mac, .. } = adapter(CLIENT);
    let proposer = Proposer { peer_id: peer_id(CLIENT), gid, mac };
    let caller = Caller::new(USER, address(9), address(CLIENT));
    let request = Request { caller, ..request(SERVER, SIZES) };
    let now = it.pair.now;
    it.pair.hosts[SERVER].accept(proposer, request, now).unwrap();
    let events = it.pair.servers_events();
    let is_first =
        |event: &Event| matches!(event, Event::Introduce(_, it) if it.is_first_contact());
    assert!(events.iter().any(is_first), "{events:?}");
}

/// A local user at the client's host declines in its name.
#[test]
fn out_of_sync_is_no_reason_to_end_a_group_whose_peer_answers() {
    let mut it = Bystander::new();
    let token = it.pair.propose();
    let now = it.pair.now;
    it.pair.hosts[SERVER].handle_out_of_sync(token, now);
    // Until the peer has answered, a connection does not join.
    let doubting = it.pair.propose();
    let events = it.pair.servers_events();
    let of_doubt = events.iter().find_map(|event| match event {
        Event::Introduce(token, accept) if *token == doubting => Some(accept.is_first_contact()),
        _ => None,
    });
    assert_eq!(of_doubt, Some(true), "{events:?}");
    it.pair.hosts[SERVER].abandon(doubting, now);
    it.pair.run(3);
    it.lives();
    let [_, _] = it.pair.connect();
    assert_eq!(it.pair.hosts[SERVER].groups().count(), 1);
    assert!(!it.pair.said[SERVER].last().unwrap().is_first_contact());
}

/// The peers of a user's connections know the keys of its buffers, and local users can be such peers.
#[test]
fn a_buffer_keeps_its_key_for_one_user_only() {
    let mut it = Bystander::new();
    let mut keys = Vec::new();
    for uid in [USER, USER, USER + 1, USER] {
        it.pair.uids[SERVER] = uid;
        let [server, client] = it.pair.connect();
        let accept = it.pair.said[SERVER].last().unwrap();
        keys.push((accept.rkey, accept.rmb_address));
        it.pair.hosts[SERVER].close(server, it.pair.now);
        it.pair.hosts[CLIENT].close(client, it.pair.now);
        it.pair.run(1);
    }
    assert_eq!(keys[0], keys[1], "one user's next connection has what the first one had");
    assert_ne!(keys[1], keys[2], "another user's has not");
    assert_eq!(keys[0], keys[3]);
    it.lives();
}

/// The group has as many buffers as there can be, all of another user. One of them goes.
#[test]
fn buffers_of_another_user_make_room() {
    let mut pair = Pair::new();
    // Of different sizes, so that the client has fewer.
    for (above, count) in [(0, 100), (1, 100), (2, RMBS_MAX - 200)] {
        pair.sizes[SERVER].rmbe = RmbeSize::from_low_bits(RmbeSize::MIN.code() + above);
        let ends: Vec<_> = (0..count).map(|_| pair.connect()).collect();
        for [server, client] in ends {
            pair.hosts[SERVER].close(server, pair.now);
            pair.hosts[CLIENT].close(client, pair.now);
        }
        pair.run(1);
    }
    assert_eq!(pair.hosts[SERVER].holdings().rmbs, RMBS_MAX);
    let Adapter { gid, mac, .. } = adapter(CLIENT);
    let proposer = Proposer { peer_id: peer_id(CLIENT), gid, mac };
    let request = request_of(USER + 1, SERVER, SIZES);
    let refused = pair.hosts[SERVER].accept(proposer, request, pair.now);
    assert_eq!(refused, Err(Diagnosis::MEM));
    pair.run(1);
    assert_eq!(pair.hosts[SERVER].holdings().rmbs, RMBS_MAX - 1);
    pair.uids[SERVER] = USER + 1;
    pair.connect();
    assert_eq!(pair.hosts[SERVER].groups().count(), 1);
}

/// A peer that has seen those of the past cannot guess the next.
#[test]
fn alert_tokens_are_drawn_at_random() {
    let tokens = |seed: u64| {
        let mut host: Host<soft::Adapter> = Host::new(Settings { keepalive: None }, random(seed));
        [(); 8].map(|()| host.next_token().0)
    };
    let [one, other] = [1, 2].map(tokens);
    assert!(one.iter().all(|token| !other.contains(token)));
    let is_near = |pair: &[u32]| pair[0].abs_diff(pair[1]) < 1 << 16;
    assert!(!one.windows(2).any(is_near), "{one:?}");
}

/// A stranger repeats a host's Proposal: the host does not wait behind it.
#[test]
fn a_first_contact_waits_for_those_with_its_own_address_only() {
    let mut pair = Pair::new();
    let Adapter { gid, mac, .. } = adapter(CLIENT);
    let proposer = Proposer { peer_id: peer_id(CLIENT), gid, mac };
    let caller = Caller::new(USER, address(SERVER), address(7));
    let stranger = Request { caller, ..request(SERVER, SIZES) };
    let now = pair.now;
    pair.hosts[SERVER].accept(proposer, stranger, now).unwrap();
    let token = pair.propose();
    let events = pair.servers_events();
    let is_its = |event: &Event| matches!(event, Event::Introduce(of, _) if *of == token);
    assert!(events.iter().any(is_its), "{events:?}");
}

impl Pair {
    /// A local user of the client's host begins a first contact in another's name, and never goes on with it.
    fn stall(&mut self) {
        let Adapter { gid, mac, .. } = adapter(CLIENT);
        let invented = Proposer { peer_id: peer_id(7), gid, mac };
        let now = self.now;
        self.hosts[SERVER].accept(invented, request(SERVER, SIZES), now).unwrap();
    }
}

#[test]
fn a_connection_of_a_group_waits_for_no_first_contact() {
    let mut it = Bystander::new();
    (0..3).for_each(|_| it.pair.stall());
    let now = it.pair.now;
    it.overheard_accept();
    assert_eq!(it.pair.now, now);
    it.lives();
}

/// It has had to wait for the first contact with its host, behind one that comes to nothing.
#[test]
fn a_connection_that_waits_is_in_the_group_as_soon_as_there_is_one() {
    let mut pair = Pair::new();
    let first = pair.propose();
    pair.stall();
    let second = pair.propose();
    let now = pair.now;
    let mut introduced = None;
    for _ in 0..16 {
        pair.carry_datagrams();
        for event in pair.servers_events() {
            match event {
                Event::Introduce(of, accept) if of == first => {
                    pair.hosts[CLIENT].connect(&accept, request(CLIENT, SIZES), now).unwrap();
                }
                Event::Introduce(of, accept) if of == second => introduced = Some(accept),
                _ => {}
            }
        }
        while let Some(event) = pair.hosts[CLIENT].poll_event() {
            if let Event::Introduce(_, confirm) = event {
                pair.hosts[SERVER].handle_confirm(first, &confirm, now);
            }
        }
    }
    assert!(!introduced.expect("an Accept").is_first_contact());
}

/// One that says with each connection that it is another one leaves room for others.
#[test]
fn one_address_has_a_part_of_the_groups() {
    let mut pair = Pair::new();
    let Adapter { gid, mac, .. } = adapter(CLIENT);
    let mut accepted = 0;
    for nth in 0..=GROUPS_OF_ADDRESS_MAX {
        pair.hosts[SERVER].ripen_first_contacts();
        let peer_id = PeerId((0x0100_0000_0000_0000 + nth as u64).to_be_bytes());
        let proposer = Proposer { peer_id, gid, mac };
        let caller = Caller::new(USER, address(SERVER), address(7));
        let request = Request { caller, ..request(SERVER, SIZES) };
        let now = pair.now;
        match pair.hosts[SERVER].accept(proposer, request, now) {
            Ok(_) => accepted += 1,
            Err(diagnosis) => assert_eq!(diagnosis, Diagnosis::MEM),
        }
    }
    assert_eq!(accepted, GROUPS_OF_ADDRESS_MAX);
    while pair.hosts[SERVER].poll_event().is_some() {}
    pair.connect();
}

/// The `nth` of many hosts: which host it says it is, and where its TCP connection comes from.
fn stranger(nth: usize) -> (Proposer, IpAddr) {
    let Adapter { gid, mac, .. } = adapter(CLIENT);
    let peer_id = PeerId((0x0100_0000_0000_0000 + nth as u64).to_be_bytes());
    (Proposer { peer_id, gid, mac }, Ipv4Addr::from_bits(0x0B00_0000 + nth as u32).into())
}

/// Strangers with as many addresses as they like propose, and never speak RDMA.
#[test]
fn who_only_proposes_takes_no_group_from_others() {
    let mut pair = Pair::new();
    let now = pair.now;
    for nth in 0..2 * GROUPS_MAX {
        let (proposer, remote) = stranger(nth);
        let caller = Caller::new(USER, address(SERVER), remote);
        let request = Request { caller, ..request(SERVER, SIZES) };
        assert!(pair.hosts[SERVER].accept(proposer, request, now).is_ok());
    }
    assert_eq!(pair.hosts[SERVER].groups().count(), FIRST_CONTACTS_MAX);
    let is_declined = |event: &Event| matches!(event, Event::Declined(_, Diagnosis::MEM));
    let declined = pair.servers_events().iter().filter(|event| is_declined(event)).count();
    assert_eq!(declined, 2 * GROUPS_MAX - FIRST_CONTACTS_MAX, "the oldest");
    pair.connect();
}

/// Hosts that do speak RDMA, and say with each connection that they are another one.
#[test]
fn who_takes_all_groups_that_can_be_had_leaves_some_to_others() {
    let mut pair = Pair::new();
    let now = pair.now;
    for nth in 0..20 * GROUPS_OF_ADDRESS_MAX {
        pair.hosts[SERVER].ripen_first_contacts();
        let (proposer, _) = stranger(nth);
        let (_, remote) = stranger(nth / GROUPS_OF_ADDRESS_MAX);
        let caller = Caller::new(USER, address(SERVER), remote);
        let request = Request { caller, ..request(SERVER, SIZES) };
        let accepted = pair.hosts[SERVER].accept(proposer, request, now);
        assert!(matches!(accepted, Ok(_) | Err(Diagnosis::MEM)));
    }
    pair.servers_events();
    pair.connect();
}

/// A user of our own host has servers of his own at any number of addresses.
#[test]
fn who_takes_all_groups_as_a_client_leaves_some_to_other_users() {
    let mut pair = Pair::new();
    pair.connect();
    let accept = pair.said[SERVER][0].clone();
    let now = pair.now;
    let mut connect = |uid: u32, nth: usize| {
        let caller = Caller::new(uid, address(CLIENT), stranger(nth).1);
        let request = Request { caller, ..request(CLIENT, SIZES) };
        pair.hosts[CLIENT].connect(&accept, request, now).map(|_| ())
    };
    let connected = (0..GROUPS_MAX).filter(|nth| connect(USER + 1, *nth).is_ok()).count();
    assert!((GROUPS_MAX / 2 - 1..GROUPS_MAX * 2 / 3).contains(&connected), "{connected}");
    assert_eq!(connect(USER + 1, GROUPS_MAX), Err(Diagnosis::MEM));
    assert_eq!(connect(USER + 2, GROUPS_MAX), Ok(()));
}
