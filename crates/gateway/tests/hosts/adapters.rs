//! Which adapters gateways have: those that are asked for, when they come, each for its own network.

use std::net::IpAddr;

use sidestep_gateway::status::{Mode, Status};

use sidestep_wire::lessons::Cause;

use crate::scene::{CLIENT, SERVER, Scene, adapters, address};
use crate::stays::lesson;
use crate::{receive, send};

/// Sends something each way.
fn converse(scene: &Scene) {
    let [client, server] = scene.connect();
    for (from, to) in [(&client, &server), (&server, &client)] {
        send(from, 1, 100_000);
        receive(to, 1, 100_000);
    }
}

fn are_up(count: usize) -> impl Fn(&Status) -> bool {
    move |status| status.adapters.iter().filter(|it| it.is_up).count() == count
}

/// A gateway whose settings name no soft RNIC has none: bytes go by TCP.
#[test]
fn without_names_only_devices_are_used() {
    let Some(mut scene) = Scene::without_gateways(1) else { return };
    for host in [CLIENT, SERVER] {
        scene.start(host, &[]);
        scene.await_log(host, "name one: --adapter soft:INTERFACE", 1);
        scene.await_log(host, "connections to other hosts stay TCP", 1);
    }
    let ends = scene.hand_over(scene.connection());
    scene.expect(&ends, Mode::Tcp);
    send(&ends[0].h, 1, 100_000);
    receive(&ends[1].h, 1, 100_000);
    assert!(scene.status(CLIENT).adapters.is_empty());
    // The next ones are not even handed over, to whatever server.
    let [client, _server] = scene.connection();
    let server = client.peer_addr().unwrap();
    assert_eq!(lesson(&scene, CLIENT, server).map(|it| it.cause), Some(Cause::NoAdapter));
}

/// A server behind a distributor has its address on `lo`: the adapter is that of the interface by which the
/// client is reached. Its GID is its own, whether clients take the address for one of their link or not.
#[test]
fn an_address_on_lo_is_served_by_the_adapter_that_leads_to_the_client() {
    let Some(mut scene) = Scene::without_gateways(2) else { return };
    for host in [CLIENT, SERVER] {
        scene.start(host, &[0, 1].map(|cable| format!("soft:{}", address(host, cable))));
    }
    let vips = [[10, 93, 0, 100], [10, 99, 0, 100]].map(IpAddr::from);
    let via = address(SERVER, 0).to_string();
    for vip in vips.map(|vip| format!("{vip}/32")) {
        assert!(scene.ip(SERVER, &["address", "add", &vip, "dev", "lo"]));
        assert!(scene.ip(CLIENT, &["route", "add", &vip, "via", &via]));
    }
    for vip in vips {
        let ends = scene.hand_over(scene.connection_to(vip));
        scene.expect(&ends, Mode::SmcR);
        send(&ends[0].h, 1, 100_000);
        receive(&ends[1].h, 1, 100_000);
    }
    let gids = [CLIENT, SERVER].map(|host| format!("::ffff:{}", address(host, 0)));
    for host in [CLIENT, SERVER] {
        let links = scene.status(host).links;
        assert!(!links.is_empty());
        for link in links {
            assert_eq!((&link.gid, link.peer_gid.as_ref()), (&gids[host], Some(&gids[1 - host])));
        }
    }
}

/// Where an interface is named that has no device, the gateway says how to ask for more.
#[test]
fn an_interface_without_a_device_is_told_and_waited_for() {
    let Some(mut scene) = Scene::without_gateways(1) else { return };
    scene.start(CLIENT, &["cable0".to_owned()]);
    scene.await_log(CLIENT, "cable0: no RDMA device is there", 1);
    scene.await_log(CLIENT, "name soft:cable0", 1);
}

/// The gateways start without any; then an interface comes, and another one, and the first one's address
/// changes.
#[test]
fn adapters_that_come_later_are_used() {
    let Some(mut scene) = Scene::without_gateways(0) else { return };
    let words = ["soft:cable0", "soft:cable1", "pnet=cable0", "pnet=cable1"].map(str::to_owned);
    for host in [CLIENT, SERVER] {
        scene.start(host, &words);
        scene.await_log(host, "soft:cable0: there is no such interface", 1);
    }
    scene.lay(0);
    for host in [CLIENT, SERVER] {
        scene.await_status(host, are_up(1));
        let any = scene.connection()[0].peer_addr().unwrap();
        assert_eq!(lesson(&scene, host, any), None, "programs may ask again");
    }
    let [client, server] = scene.connect();
    // One that comes is for the link groups that there are, too.
    scene.lay(1);
    for host in [CLIENT, SERVER] {
        scene.await_status(host, are_up(2));
        scene.await_status(host, |it| {
            it.links.iter().filter(|link| link.state == "Active").count() == 2
        });
    }
    send(&client, 1, 100_000);
    receive(&server, 1, 100_000);
    drop((client, server));

    let [was, is] = ["10.93.0.1/24", "10.93.0.9/24"];
    assert!(scene.ip(CLIENT, &["address", "del", was, "dev", "cable0"]));
    assert!(scene.ip(CLIENT, &["address", "add", is, "dev", "cable0"]));
    let is_there: IpAddr = "10.93.0.9".parse().unwrap();
    scene
        .await_status(CLIENT, |it| it.adapters.iter().any(|it| it.address == is_there && it.is_up));
    let ends = scene.hand_over(scene.connection_from(is_there));
    scene.expect(&ends, Mode::SmcR);
}

/// An adapter that comes is not for link groups of another network.
#[test]
fn an_adapter_of_another_network_stays_out_of_the_groups_that_there_are() {
    let Some(mut scene) = Scene::without_gateways(1) else { return };
    for host in [CLIENT, SERVER] {
        let words = ["soft:cable0", "soft:cable1", "pnet=cable0"].map(str::to_owned);
        scene.start(host, &words);
    }
    let _ends = scene.connect();
    scene.lay(1);
    for host in [CLIENT, SERVER] {
        scene.await_status(host, are_up(2));
    }
    converse(&scene);
    for host in [CLIENT, SERVER] {
        let status = scene.status(host);
        let of = |cable| status.adapters.iter().find(|it| it.address == address(host, cable));
        assert_eq!([0, 1].map(|cable| of(cable).unwrap().links), [1, 0], "{status:#?}");
    }
}

/// What a packet carries follows the MTU of the interface, up to 4096 bytes.
#[test]
fn the_mtu_of_roce_is_that_of_the_interface() {
    let Some(mut scene) = Scene::without_gateways(1) else { return };
    for (host, mtu) in [(CLIENT, "9000"), (SERVER, "9000")] {
        assert!(scene.ip(host, &["link", "set", "cable0", "mtu", mtu]));
    }
    for host in [CLIENT, SERVER] {
        scene.start(host, &adapters(host, 1));
        assert_eq!(scene.status(host).adapters[0].mtu, Some(4096));
    }
    converse(&scene);
}

/// Two VLANs over one cable, each with a network, an adapter and a link group of its own.
#[test]
fn connections_use_the_adapter_of_their_vlan() {
    let Some(mut scene) = Scene::without_gateways(1) else { return };
    if !scene.lay_vlans(&[5, 6]) {
        eprintln!("skipped: this kernel has no VLANs (CONFIG_VLAN_8021Q)");
        return;
    }
    for host in [CLIENT, SERVER] {
        let words = ["soft:cable0", "soft:cable0.5", "soft:cable0.6"].map(str::to_owned);
        let networks = ["pnet=cable0", "pnet=cable0.5", "pnet=cable0.6"].map(str::to_owned);
        scene.start(host, &[words, networks].concat());
    }
    let mut kept = Vec::new();
    for network in [0, 5, 6] {
        let ends = scene.hand_over(scene.connection_over(network));
        scene.expect(&ends, Mode::SmcR);
        send(&ends[0].h, 1, 100_000);
        receive(&ends[1].h, 1, 100_000);
        kept.push(ends);
    }
    for host in [CLIENT, SERVER] {
        let status = scene.status(host);
        let used: Vec<_> = status.adapters.iter().map(|it| (it.vlan, it.links)).collect();
        assert_eq!(used, [(0, 1), (5, 1), (6, 1)], "{status:#?}");
    }
}

/// Both hosts are behind routers of their own: the links go where IP goes, by SMC version 2.
#[test]
fn two_routers_lie_between_hosts() {
    let Some(mut scene) = Scene::routed() else { return };
    for host in [CLIENT, SERVER] {
        scene.start(host, &[format!("soft:{}", Scene::routed_address(host))]);
    }
    let ends = scene.hand_over(scene.connection_routed());
    scene.expect(&ends, Mode::SmcR);
    for (from, to) in [(0, 1), (1, 0)] {
        send(&ends[from].h, 1, 1_000_000);
        receive(&ends[to].h, 1, 1_000_000);
    }
    let [link] = &scene.status(CLIENT).links[..] else { panic!("not one link") };
    assert_eq!(link.version, 2);
}
