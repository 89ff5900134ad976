//! SMC-R over RDMA adapters of this machine: two hosts, their link group, its connections.
//!
//! ```text
//!   cargo run --release -p sidestep-engine --example verbs -- 10.0.0.1 10.0.0.2 [connections [bytes]]
//! ```
//!
//! Each host has the adapter with one of the addresses; it may be the same adapter. Needs libibverbs
//! with its drivers, and rights to use `/dev/infiniband/uverbs*`.

mod hosts;

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hosts::Place;
use sidestep_rdma::verbs::{self, Adapter, By, Kind, Verbs};
use sidestep_wire::{Mtu, RoceGid};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [one, other, rest @ ..] = &words[..] else {
        return Err("verbs ADDRESS ADDRESS [CONNECTIONS [BYTES]]".into());
    };
    let number = |index: usize, default| rest.get(index).map_or(Ok(default), |word| word.parse());
    let (connections, bytes) = (number(0, 3)?, number(1, 1_000_000)?);
    let verbs = Verbs::load()?;
    let places = [place(&verbs, one.parse()?)?, place(&verbs, other.parse()?)?];
    let begin = Instant::now();
    let mut wait = || thread::sleep(Duration::from_micros(100));
    hosts::converse(places, connections, bytes, &mut wait);
    let took = begin.elapsed().as_millis();
    println!("{connections} connections, {bytes} bytes there and back, {took} ms");
    Ok(())
}

/// The adapter with an address.
fn place(verbs: &Arc<Verbs>, address: IpAddr) -> Result<Place, Box<dyn Error>> {
    let ports = verbs::ports(verbs)?;
    let (port, gid) = verbs::choose(&ports, By::Address(address), Kind::RoceV2)
        .ok_or_else(|| format!("no active adapter with {address} among {ports:?}"))?;
    let octets = match gid.address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    // 1 for 256 bytes, each more for twice as many.
    let mtu = Mtu::from_low_bits((port.mtu / 128).ilog2() as u8);
    let device = Adapter::open(verbs, port, gid)?;
    Ok(Place { device, gid: RoceGid(octets), mtu })
}
