//! The suite of all RDMA devices, over soft RNICs: on a good network and on bad ones.
//!
//! Over verbs it runs on a model of an adapter (`tests/verbs`), and in a virtual machine on the
//! kernel's `rdma_rxe` (`cargo xtask interop verbs`). Each test has addresses of its own: they run at
//! once.

#[path = "../../examples/conformance/live.rs"]
mod live;
#[path = "../../examples/conformance/suite.rs"]
mod suite;

use std::net::IpAddr;
use std::time::Duration;

use live::LiveBench;
use sidestep_rdma::device::Driven;
use sidestep_rdma::faults::Plan;
use sidestep_rdma::soft::Rnic;
use sidestep_rdma::soft::port::Settings;

fn keeps(third: u8, mtu: u16, plan: Option<Plan>) {
    let addresses = [1, 2].map(|last| IpAddr::from([127, 1, third, last]));
    let mut rnics = addresses.map(|address| Rnic::open(address, &Settings::default()).unwrap());
    if let Some(plan) = plan {
        rnics.iter_mut().for_each(|rnic| rnic.spoil(plan));
    }
    let devices = rnics.map(|rnic| Box::new(rnic) as Box<dyn Driven>);
    let mut bench = LiveBench::new(devices, addresses, mtu);
    for (_, case) in suite::CASES {
        case(&mut bench);
    }
}

#[test]
fn soft_rnics_keep_it() {
    keeps(1, 1024, None);
}

#[test]
fn soft_rnics_keep_it_with_long_packets() {
    keeps(2, 4096, None);
}

#[test]
fn soft_rnics_keep_it_with_loss() {
    keeps(3, 1024, Some(Plan { seed: 11, loss: 0.03, ..Plan::PERFECT }));
}

#[test]
fn soft_rnics_keep_it_out_of_order() {
    let jitter = Duration::from_micros(300);
    let plan = Plan { seed: 12, loss: 0.01, duplication: 0.05, jitter, ..Plan::PERFECT };
    keeps(4, 1024, Some(plan));
}
