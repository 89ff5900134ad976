//! Which version, which adapter, which EID; and what is declined for which cause.

use super::*;
use sidestep_wire::clc::proposal::{SmcDV2, V2Types};

/// The client and the server, to be changed.
struct Facts {
    client: (LocalHost, Route),
    server: (LocalHost, Route),
}

fn facts() -> Facts {
    Facts {
        client: (host(2), route("10.0.0.2/24", "10.0.0.1")),
        server: (host(1), route("10.0.0.1/24", "10.0.0.2")),
    }
}

impl Facts {
    fn on_both(mut self, change: impl Fn(&mut LocalHost, &mut Route)) -> Self {
        change(&mut self.client.0, &mut self.client.1);
        change(&mut self.server.0, &mut self.server.1);
        self
    }

    fn at_client(mut self, change: impl Fn(&mut LocalHost, &mut Route)) -> Self {
        change(&mut self.client.0, &mut self.client.1);
        self
    }

    fn at_server(mut self, change: impl Fn(&mut LocalHost, &mut Route)) -> Self {
        change(&mut self.server.0, &mut self.server.1);
        self
    }

    fn table(self) -> Table {
        Table::new(self.client, self.server)
    }

    fn proposal(&self) -> Proposal {
        client::propose(&self.client.0, &self.client.1).unwrap()
    }
}

fn ueids(names: &str) -> ArrayVec<Eid, 4> {
    names.split_whitespace().map(|name| Eid::ueid(name).unwrap()).collect()
}

// ---- versions -----------------------------------------------------------------------------------

#[test]
fn what_is_proposed_depends_on_what_there_is() {
    let offers = |facts: Facts| {
        let proposal = facts.proposal();
        (proposal.version, proposal.v1.is_some(), proposal.v2.is_some())
    };
    assert_eq!(offers(facts()), (Version::V2, true, true));
    let only_v2 = [
        facts().at_client(|host, _| host.versions = V2_ONLY),
        facts().at_client(|host, _| host.adapters.truncate(1)),
        // Out of the subnet.
        facts().at_client(|_, route| route.remote = "192.0.2.1".parse().unwrap()),
        facts().at_client(|_, route| route.networks.clear()),
    ];
    for facts in only_v2 {
        assert_eq!(offers(facts), (Version::V2, false, true));
    }
    let only_v1 = [
        facts().at_client(|host, _| host.versions = V1_ONLY),
        facts().at_client(|host, _| host.ueids.clear()),
        facts().at_client(|host, _| drop(host.adapters.remove(0))),
    ];
    for facts in only_v1 {
        assert_eq!(offers(facts), (Version::V1, true, false));
    }
}

#[test]
fn version_2_is_chosen_when_both_can_be() {
    facts().table().assert_agreed(Version::V2);
}

#[test]
fn version_1_is_chosen_when_version_2_cannot_be() {
    facts().on_both(|host, _| host.versions = V1_ONLY).table().assert_agreed(Version::V1);
    facts().at_server(|host, _| host.versions = V1_ONLY).table().assert_agreed(Version::V1);
    facts().at_server(|host, _| host.ueids = ueids("OTHER")).table().assert_agreed(Version::V1);
    let no_roce_v2 = facts().at_server(|host, _| drop(host.adapters.remove(0)));
    no_roce_v2.table().assert_agreed(Version::V1);
}

#[test]
fn version_2_goes_beyond_a_subnet() {
    let mut facts = facts();
    facts.server = (host(1), route("192.0.2.1/24", "10.0.0.2"));
    facts.server.0.adapters[0].gid = gid("::ffff:192.0.2.1");
    facts.server.0.adapters[0].networks = networks("192.0.2.1/24");
    facts.client.1.remote = "192.0.2.1".parse().unwrap();
    let mut table = facts.table();
    table.assert_agreed(Version::V2);
    let [Event::Accept(_, terms), ..] = &table.server.asked[..] else { panic!() };
    let Wording::V2 { hello, .. } = &terms.wording else { panic!() };
    assert!(!hello.direct, "there is a gateway");
    let [_, Message::Confirm(AcceptConfirm::SmcR(confirm))] = &table.client.sent[..] else {
        panic!()
    };
    assert!(!confirm.first_contact().unwrap().direct, "and the client goes by that");
}

#[test]
fn ipv6_goes_both_ways() {
    let of = |n: u8, peer: u8| {
        let network = format!("fe80::{n}/64 2001:db8::{n}/64");
        let mut host = host(n);
        for adapter in &mut host.adapters {
            adapter.networks = networks(&network);
        }
        host.adapters[0].gid = gid(&format!("2001:db8::{n}"));
        let mut route = route(&network, &format!("2001:db8::{peer}"));
        route.local = format!("2001:db8::{n}").parse().unwrap();
        (host, route)
    };
    Table::new(of(2, 1), of(1, 2)).assert_agreed(Version::V2);
    let [mut client, mut server] = [of(2, 1), of(1, 2)];
    client.0.versions = V1_ONLY;
    server.0.versions = V1_ONLY;
    let proposal = client::propose(&client.0, &client.1).unwrap();
    let Some(IpPrefixes::V6(prefixes)) = proposal.v1.map(|offer| offer.prefixes) else { panic!() };
    assert_eq!(prefixes.len(), 1, "the link-local one is left out");
    Table::new(client.clone(), server.clone()).assert_agreed(Version::V1);
    server.1.networks = networks("2001:db8:1::1/64");
    Table::new(client, server).assert_declined(Role::Accept, Cause::OtherSubnet);
}

#[test]
fn ipv4_in_a_socket_of_ipv6_is_ipv4() {
    let mapped = |_: &mut LocalHost, route: &mut Route| {
        let core::net::IpAddr::V4(local) = route.local else { panic!() };
        let core::net::IpAddr::V4(remote) = route.remote else { panic!() };
        route.local = local.to_ipv6_mapped().into();
        route.remote = remote.to_ipv6_mapped().into();
    };
    facts().on_both(mapped).table().assert_agreed(Version::V2);
    let v1 = facts().on_both(mapped).on_both(|host, _| host.versions = V1_ONLY);
    v1.table().assert_agreed(Version::V1);
}

#[test]
fn a_subnet_is_of_the_connections_family() {
    let dual = |n: u8, peer: u8| {
        let networks = format!("2001:db8::{n}/64 10.0.0.{n}/24");
        let mut route = route(&networks, &format!("10.0.0.{peer}"));
        route.local = format!("10.0.0.{n}").parse().unwrap();
        route
    };
    let v4 = IpPrefixes::V4 { subnet: "10.0.0.0".parse().unwrap(), prefix_len: 24 };
    assert_eq!(dual(2, 1).prefixes(), Some(v4));
    let v6 = route("2001:db8::2/64", "2001:db8::1").prefixes().unwrap();
    assert!(!dual(1, 2).shares_subnet(&v6), "the hosts share it, but not the connection");
}

#[test]
fn a_subnet_may_be_told_with_the_hosts_part_of_an_address() {
    let ours = route("10.0.0.1/24", "10.0.0.2");
    let told =
        |subnet: &str, prefix_len| IpPrefixes::V4 { subnet: subnet.parse().unwrap(), prefix_len };
    assert!(ours.shares_subnet(&told("10.0.0.2", 24)));
    assert!(
        !ours.shares_subnet(&told("10.0.1.0", 24)) && !ours.shares_subnet(&told("10.0.0.0", 23))
    );
}

// ---- adapters -----------------------------------------------------------------------------------

#[test]
fn the_adapter_of_the_connections_own_address_is_preferred() {
    let mut local = host(2);
    local.versions = V2_ONLY;
    local.adapters.clear();
    for (id, address, network) in [
        (1, "192.0.2.7", "192.0.2.7/24"),
        (2, "10.0.0.9", "10.0.0.9/24"),
        (3, "10.0.0.2", "10.0.0.2/24"),
    ] {
        let gid = gid(&format!("::ffff:{address}"));
        let networks = networks(network);
        local.adapters.push(Adapter { gid, networks, ..adapter(id, Roce::V2, 2) });
    }
    let route = route("10.0.0.2/24", "10.0.0.1");
    let ids = local.adapters(&route, Roce::V2).ids();
    assert_eq!(ids[..], [AdapterId(3), AdapterId(2), AdapterId(1)]);
    let proposal = client::propose(&local, &route).unwrap();
    assert_eq!(proposal.v2.map(|offer| offer.roce_gid), Some(gid("::ffff:10.0.0.2")));
}

#[test]
fn adapters_that_are_down_are_for_later() {
    let down = |host: &mut LocalHost, _: &mut Route| {
        host.versions = V2_ONLY;
        host.adapters.clear();
        let [one, other] = [1, 2].map(|id| adapter(id, Roce::V2, 2));
        host.adapters.push(Adapter { is_up: false, ..one });
        host.adapters.push(Adapter { gid: gid("::ffff:10.0.0.3"), ..other });
    };
    let Facts { client: (mut local, route), .. } = facts().at_client(down);
    let named = |local: &LocalHost| {
        let eligible = local.adapters(&route, Roce::V2);
        (eligible.ids(), eligible.gids())
    };
    let (ids, gids) = named(&local);
    assert_eq!(ids[..], [AdapterId(2), AdapterId(1)]);
    assert_eq!(gids[..], [gid("::ffff:10.0.0.3")]);
    local.adapters[1].is_up = false;
    assert_eq!(client::propose(&local, &route), Err(Cause::NoAdapter));
}

#[test]
fn a_confirm_names_all_gids_and_that_of_the_first_link_first() {
    let facts = facts().at_client(|host, _| {
        let second = Adapter { gid: gid("::ffff:10.0.0.3"), ..adapter(3, Roce::V2, 2) };
        host.adapters.insert(0, second);
    });
    let mut table = facts.table();
    table.assert_agreed(Version::V2);
    let [_, Message::Confirm(AcceptConfirm::SmcR(confirm))] = &table.client.sent[..] else {
        panic!()
    };
    let gids = [gid("::ffff:10.0.0.2"), gid("::ffff:10.0.0.3")];
    assert_eq!(confirm.first_contact().unwrap().gids[..], gids);
    assert_eq!(confirm.gid, gids[0]);
}

#[test]
fn pnet_ids_join_adapters_and_interfaces() {
    let with = |adapter: Option<&str>, interface: Option<&str>| {
        let [adapter, interface] = [adapter, interface].map(|id| id.and_then(PnetId::new));
        facts().at_client(move |host, route| {
            for it in &mut host.adapters {
                it.pnet_id = adapter;
                it.interface = 5;
            }
            route.pnet_id = interface;
        })
    };
    with(Some("NET1"), Some("net1")).table().assert_agreed(Version::V2);
    let apart =
        [(Some("NET1"), Some("NET2")), (None, Some("NET1")), (Some("NET1"), None), (None, None)];
    for (adapter, interface) in apart {
        with(adapter, interface).table().assert_declined(Role::Confirm, Cause::NoAdapter);
    }
    // Without a PNET ID it is the adapter of the interface.
    let own = with(Some("NET1"), None).at_client(|_, route| route.interface = 5);
    own.table().assert_agreed(Version::V2);
}

#[test]
fn pnet_ids_are_16_letters_and_digits() {
    assert_eq!(PnetId::new("Net1"), PnetId::new("NET1"));
    assert_ne!(PnetId::new("NET1"), PnetId::new("NET10"));
    assert!(PnetId::new("ABCDEFGHIJKLMNOP").is_some());
    for bad in ["", "ABCDEFGHIJKLMNOPQ", "A B", "NET-1", "\u{c4}"] {
        assert_eq!(PnetId::new(bad), None, "{bad:?}");
    }
}

#[test]
fn an_adapter_on_another_vlan_is_none() {
    let other = facts().at_client(|_, route| route.vlan = 7);
    other.table().assert_declined(Role::Confirm, Cause::NoAdapter);
    let other = facts().at_server(|_, route| route.vlan = 7).on_both(|it, _| it.versions = V2_ONLY);
    other.table().assert_declined(Role::Accept, Cause::NoRoutedAdapter);
    let same = facts().on_both(|host, route| {
        route.vlan = 7;
        host.adapters.iter_mut().for_each(|adapter| adapter.vlan = 7);
    });
    same.table().assert_agreed(Version::V2);
}

#[test]
fn an_adapter_whose_mtu_nobody_understands_is_none() {
    let odd = facts().at_client(|host, _| {
        host.adapters.iter_mut().for_each(|adapter| adapter.mtu = Mtu::from_low_bits(6));
    });
    odd.table().assert_declined(Role::Confirm, Cause::NoAdapter);
}

#[test]
fn only_a_gid_that_ip_leads_to_is_routed() {
    let route_4 = route("10.0.0.2/24", "10.0.0.1");
    let route_6 = route("2001:db8::2/64", "2001:db8::1");
    for bad in [
        "::",
        "::ffff:127.0.0.1",
        "::ffff:169.254.0.1",
        "::ffff:224.0.0.1",
        "::ffff:255.255.255.255",
        "2001:db8::1",
        "::ffff:0.0.0.0",
    ] {
        assert!(!route_4.reaches(gid(bad), Roce::V2), "{bad}");
    }
    for bad in ["::", "::1", "fe80::1", "ff02::1", "::ffff:10.0.0.1"] {
        assert!(!route_6.reaches(gid(bad), Roce::V2), "{bad}");
    }
    assert!(route_4.reaches(gid("::ffff:192.0.2.1"), Roce::V2));
    assert!(route_6.reaches(gid("2001:db8:1::1"), Roce::V2));
    assert!(route_4.reaches(gid("fe80::1"), Roce::V1) && !route_4.reaches(gid("::"), Roce::V1));
    let loopback = route("127.0.0.1/8", "127.0.0.1");
    assert!(loopback.reaches(gid("::ffff:127.0.0.2"), Roce::V2));
    assert!(!loopback.reaches(gid("::ffff:10.0.0.2"), Roce::V2));
}

// ---- Declines by their cause --------------------------------------------------------------------

#[test]
fn a_client_that_has_nothing_to_propose_declines() {
    for (change, cause) in [
        ((|host, _| host.adapters.clear()) as fn(&mut LocalHost, &mut Route), Cause::NoAdapter),
        (|host, _| host.versions = Versions { v1: false, v2: false }, Cause::NotAllowed),
        (|host, _| (host.versions, host.ueids) = (V2_ONLY, ArrayVec::new()), Cause::NoEid),
        (
            |host, route| (host.versions, route.networks) = (V1_ONLY, ArrayVec::new()),
            Cause::NoSubnet,
        ),
        (
            |host, route| (host.versions, route.remote) = (V1_ONLY, "192.0.2.1".parse().unwrap()),
            Cause::OtherSubnet,
        ),
    ] {
        let mut table = facts().at_client(change).table();
        table.assert_declined(Role::Confirm, cause);
        assert!(matches!(table.client.sent[..], [Message::Decline(Decline { v2: None, .. })]));
    }
}

#[test]
fn a_server_declines_with_the_code_of_the_cause() {
    let v2_only = |facts: Facts| facts.on_both(|host, _| host.versions = V2_ONLY);
    let cases = [
        (
            facts().at_server(|host, _| host.versions = Versions { v1: false, v2: false }),
            Cause::NotAllowed,
            Diagnosis::CNFERR,
        ),
        (
            facts()
                .at_client(|host, _| host.versions = V2_ONLY)
                .at_server(|host, _| host.versions = V1_ONLY),
            Cause::NothingUsable,
            Diagnosis::PEERNOSMC,
        ),
        (
            v2_only(facts()).at_server(|host, _| host.ueids = ueids("OTHER")),
            Cause::NoCommonEid,
            Diagnosis::NOSMCDEV,
        ),
        (
            v2_only(facts()).at_server(|host, _| host.ueids.clear()),
            Cause::NoCommonEid,
            Diagnosis::NOSMCDEV,
        ),
        (
            v2_only(facts()).at_server(|host, _| host.adapters.clear()),
            Cause::NoRoutedAdapter,
            Diagnosis::NOSMCRDEV,
        ),
        (
            facts()
                .on_both(|host, _| host.versions = V1_ONLY)
                .at_server(|host, _| host.adapters.clear()),
            Cause::NoAdapter,
            Diagnosis::NOSMCDEV,
        ),
        (
            facts()
                .on_both(|host, _| host.versions = V1_ONLY)
                .at_server(|_, route| route.networks = networks("10.0.0.1/16")),
            Cause::OtherSubnet,
            Diagnosis::DIFFPREFIX,
        ),
        (
            v2_only(facts()).at_client(|host, _| host.max_conns = 15),
            Cause::Connections,
            Diagnosis::MAXCONNERR,
        ),
        (
            v2_only(facts()).at_client(|host, _| host.max_links = 0),
            Cause::Links,
            Diagnosis::MAXLINKERR,
        ),
        // The adapter of the client has our own GID.
        (
            v2_only(facts()).at_client(|host, _| host.adapters[0].gid = gid("::ffff:10.0.0.1")),
            Cause::NoRoutedAdapter,
            Diagnosis::NOSMCRDEV,
        ),
    ];
    for (facts, cause, diagnosis) in cases {
        let mut table = facts.table();
        let version = match &table.client.exchange.poll_transmit().map(|it| Message::parse(&it)) {
            Some(Ok(message @ Message::Proposal(proposal))) => {
                table.server.incoming.extend(bytes(message.clone()));
                proposal.version
            }
            other => panic!("{other:?}"),
        };
        table.assert_declined(Role::Accept, cause);
        assert_eq!(cause.diagnosis(), diagnosis);
        let [Message::Decline(decline)] = &table.server.sent[..] else { panic!() };
        assert_eq!(decline.version(), version, "as the Proposal's");
        assert!(!decline.out_of_sync);
    }
}

#[test]
fn a_proposal_of_smc_d_alone_or_without_eids_is_declined() {
    let (local, route) = facts().server;
    let choose = |proposal: &_| server::choose(proposal, &local, &route).unwrap_err();
    let smc_d = Proposal::smc_d_v2(
        ueids(UEID).into_iter().collect(),
        None,
        Default::default(),
        sidestep_wire::Chid::LOOPBACK,
    );
    assert_eq!(choose(&smc_d), Cause::OnlySmcD);
    assert_eq!(Cause::OnlySmcD.diagnosis(), Diagnosis::NOSMCDDEV);
    let mut bare = facts().at_client(|host, _| host.versions = V2_ONLY).proposal();
    bare.v2.as_mut().unwrap().ueids.clear();
    assert_eq!(choose(&bare), Cause::PeerWithoutEid);
    assert_eq!(Cause::PeerWithoutEid.diagnosis(), Diagnosis::NOUEID);
}

/// z/OS and Linux on IBM Z offer SMC-D beside SMC-R, and a SEID for it.
#[test]
fn the_seid_of_another_machine_is_nothing_to_smc_r() {
    let facts = facts().at_client(|host, _| host.versions = V2_ONLY);
    let mut proposal = facts.proposal();
    let offer = proposal.v2.as_mut().unwrap();
    let seid = Some(Eid(*b"IBM-SYSZ-ISMSEID0000000012348561"));
    offer.types = V2Types::Both(SmcDV2 { seid, entries: Default::default() });
    let choose = |proposal: &_| {
        server::choose(proposal, &facts.server.0, &facts.server.1).map(|(_, terms)| terms.wording)
    };
    let Ok(Wording::V2 { eid, .. }) = choose(&proposal) else { panic!() };
    assert_eq!(eid, Eid::ueid(UEID).unwrap());
    proposal.v2.as_mut().unwrap().ueids.clear();
    assert_eq!(choose(&proposal).unwrap_err(), Cause::PeerWithoutEid);
}

#[test]
fn a_server_sends_to_no_gid_that_cannot_be_a_clients() {
    let answer = |versions, change: fn(&mut Proposal)| {
        let facts = facts().on_both(|host, _| host.versions = versions);
        let mut proposal = facts.proposal();
        change(&mut proposal);
        server::choose(&proposal, &facts.server.0, &facts.server.1).map(drop)
    };
    let v2: [fn(&mut Proposal); 3] = [
        |it| it.v2.as_mut().unwrap().roce_gid = gid("::"),
        |it| it.v2.as_mut().unwrap().roce_gid = gid("2001:db8::2"),
        |it| it.v2.as_mut().unwrap().roce_gid = gid("::ffff:224.0.0.1"),
    ];
    for change in v2 {
        assert_eq!(answer(V2_ONLY, change), Err(Cause::NoRoutedAdapter));
    }
    let v1: [fn(&mut Proposal); 3] = [
        |it| it.roce_gid = gid("::"),
        |it| it.roce_gid = gid("ff02::1"),
        |it| it.roce_gid = host(1).adapters[1].gid,
    ];
    for change in v1 {
        assert_eq!(answer(V1_ONLY, change), Err(Cause::NoAdapter));
    }
}

#[test]
fn with_both_versions_offered_the_subnet_is_told_first() {
    let facts = facts().at_server(|host, route| {
        route.networks = networks("10.0.0.1/16");
        host.ueids = ueids("OTHER");
    });
    facts.table().assert_declined(Role::Accept, Cause::OtherSubnet);
}

// ---- what is agreed on --------------------------------------------------------------------------

#[test]
fn of_several_common_ueids_the_clients_first_is_chosen() {
    let facts = facts()
        .at_client(|host, _| host.ueids = ueids("A PROD TEST"))
        .at_server(|host, _| host.ueids = ueids("TEST B PROD"));
    let mut table = facts.table();
    table.assert_agreed(Version::V2);
    let [Message::Accept(AcceptConfirm::SmcR(accept))] = &table.server.sent[..] else { panic!() };
    assert_eq!(accept.eid(), Some(Eid::ueid("PROD").unwrap()));
}

#[test]
fn the_lower_limits_hold() {
    let facts = facts()
        .at_client(|host, _| (host.max_conns, host.max_links) = (20, 2))
        .at_server(|host, _| (host.max_conns, host.max_links) = (255, 1));
    let mut table = facts.table();
    table.assert_agreed(Version::V2);
    for message in [&table.server.sent[0], &table.client.sent[1]] {
        let (Message::Accept(AcceptConfirm::SmcR(message))
        | Message::Confirm(AcceptConfirm::SmcR(message))) = message
        else {
            panic!("{message:?}")
        };
        let hello = message.first_contact().unwrap();
        assert_eq!((hello.max_conns, hello.max_links), (20, 1));
    }
}

#[test]
fn with_a_client_of_release_0_the_standards_limits_hold() {
    let facts = facts();
    let mut proposal = facts.proposal();
    let offer = proposal.v2.as_mut().unwrap();
    (offer.release, offer.max_conns, offer.max_links) = (Release::V2_0, 0, 0);
    let (local, route) = facts.server;
    let (_, terms) = server::choose(&proposal, &local, &route).unwrap();
    let Wording::V2 { hello, .. } = terms.wording else { panic!() };
    assert_eq!((hello.common.release, hello.max_conns, hello.max_links), (Release::V2_0, 255, 2));
}

#[test]
fn a_client_of_a_later_release_is_answered_in_ours() {
    let facts = facts();
    let mut proposal = facts.proposal();
    proposal.v2.as_mut().unwrap().release = Release::from_low_bits(9);
    let (local, route) = facts.server;
    let (_, terms) = server::choose(&proposal, &local, &route).unwrap();
    let Wording::V2 { hello, .. } = terms.wording else { panic!() };
    assert_eq!(hello.common.release, Release::V2_1);
}

#[test]
fn a_gid_as_z_os_once_wrote_it_is_ipv4() {
    let facts = facts();
    let mut proposal = facts.proposal();
    proposal.v2.as_mut().unwrap().roce_gid = gid("::10.0.0.2");
    let (local, route) = facts.server;
    let (proposer, _) = server::choose(&proposal, &local, &route).unwrap();
    assert_eq!(proposer.gid, gid("::ffff:10.0.0.2"));
}

// ---- an Accept that was not asked for -----------------------------------------------------------

/// What a client makes of the Accept that the neighbour's engine sends, changed.
fn answer(facts: Facts, change: impl FnOnce(&mut AcceptConfirmR)) -> Result<Terms, Cause> {
    let proposal = facts.proposal();
    let ((client, clients_route), (server, servers_route)) = (facts.client, facts.server);
    let (_, terms) = server::choose(&proposal, &server, &servers_route).unwrap();
    let mut accept = introduction(Role::Accept, &server, &terms, true);
    change(&mut accept);
    let offered = Versions { v1: false, v2: true };
    let accept = AcceptConfirm::SmcR(accept);
    client::check_accept(accept, offered, &client, &clients_route).map(|(_, terms)| terms)
}

fn check(change: impl FnOnce(&mut AcceptConfirmR)) -> Result<(), Cause> {
    answer(facts(), change).map(drop)
}

fn hello(accept: &mut AcceptConfirmR) -> &mut FirstContactR {
    match &mut accept.form {
        FormR::V2 { first_contact: Some(hello), .. } => hello,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_checks_all_that_an_accept_says() {
    assert_eq!(check(|_| {}), Ok(()));
    type Case = (fn(&mut AcceptConfirmR), Cause, Diagnosis);
    let cases: [Case; 15] = [
        (
            |it| it.form = FormR::V1 { first_contact: true },
            Cause::NotOffered,
            Diagnosis::MODEUNSUPP,
        ),
        (
            |it| {
                it.form = FormR::V2 { eid: Eid::ueid("OTHER").unwrap(), first_contact: None };
            },
            Cause::ForeignEid,
            Diagnosis::NOUEID,
        ),
        (|it| it.mtu = Mtu::from_low_bits(0), Cause::Reserved, Diagnosis::MODEUNSUPP),
        (|it| it.mtu = Mtu::from_low_bits(6), Cause::Reserved, Diagnosis::MODEUNSUPP),
        (|it| it.qp_number = QpNumber([0, 0, 1]), Cause::NoLinkEnd, Diagnosis::ERR_RDYLNK),
        (|it| it.rmbe_index = 0, Cause::NoBuffer, Diagnosis::ERR_RTOK),
        (|it| it.rmb_address = RmbAddress(u64::MAX - 7), Cause::NoBuffer, Diagnosis::ERR_RTOK),
        (|it| it.gid = gid("::"), Cause::NoRoute, Diagnosis::NOROUTE),
        (|it| it.gid = gid("2001:db8::1"), Cause::NoRoute, Diagnosis::NOROUTE),
        (|it| it.gid = gid("::ffff:10.0.0.2"), Cause::NoRoute, Diagnosis::NOROUTE),
        (
            |it| hello(it).common.release = Release::from_low_bits(2),
            Cause::Release,
            Diagnosis::RELEASEERR,
        ),
        (|it| hello(it).max_conns = 15, Cause::Connections, Diagnosis::MAXCONNERR),
        (|it| hello(it).max_links = 0, Cause::Links, Diagnosis::MAXLINKERR),
        (|it| hello(it).max_links = 3, Cause::Links, Diagnosis::MAXLINKERR),
        (|it| hello(it).direct = false, Cause::Indirect, Diagnosis::NOINDIRECT),
    ];
    for (change, cause, diagnosis) in cases {
        assert_eq!(check(change), Err(cause));
        assert_eq!(cause.diagnosis(), diagnosis);
    }
}

#[test]
fn an_accept_of_release_0_needs_no_limits() {
    assert_eq!(
        check(|it| {
            hello(it).common.release = Release::V2_0;
            (hello(it).max_conns, hello(it).max_links) = (0, 0);
        }),
        Ok(())
    );
}

#[test]
fn a_server_keeps_within_the_limits_of_the_client() {
    let small = || facts().at_client(|host, _| (host.max_conns, host.max_links) = (20, 1));
    assert!(answer(small(), |_| {}).is_ok());
    assert_eq!(answer(small(), |it| hello(it).max_conns = 21), Err(Cause::Connections));
    assert_eq!(answer(small(), |it| hello(it).max_links = 2), Err(Cause::Links));
}

#[test]
fn features_are_those_that_both_have() {
    for (theirs, both) in [(0, 0), (FEATURES, FEATURES), (0xFFFF, FEATURES)] {
        let terms = answer(facts(), |it| hello(it).common.feature_mask = theirs).unwrap();
        let Wording::V2 { hello, .. } = terms.wording else { panic!() };
        assert_eq!(hello.common.feature_mask, both);
    }
}
