//! Whether an RDMA adapter of this machine keeps what a device promises.
//!
//! ```text
//!   cargo run --release -p sidestep-rdma --example conformance -- eth0 [case …]
//! ```
//!
//! The adapter above that network interface, or the one with that address, is opened twice, and the
//! two talk to each other. Each case is a line, `NAME ok`; a case that is not kept ends the program.
//! Needs libibverbs with its drivers, and rights to use `/dev/infiniband/uverbs*`.

mod live;
mod suite;

use std::fs;
use std::process::ExitCode;

use live::LiveBench;
use sidestep_rdma::verbs::{self, Adapter, By, Kind, Verbs};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let Some(place) = words.next() else {
        let names = suite::CASES.map(|(name, _)| name).join(" ");
        eprintln!("conformance INTERFACE|ADDRESS [CASE ...]; cases: {names}");
        return ExitCode::from(2);
    };
    match run(&place, &words.collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(place: &str, wanted: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let verbs = Verbs::load()?;
    let ports = verbs::ports(&verbs)?;
    let by = by(place)?;
    let (port, gid) = verbs::choose(&ports, by, Kind::RoceV2)
        .ok_or_else(|| format!("no active adapter at {place} among {ports:?}"))?;
    println!(
        "{} port {}, {} over {:?}, MTU {}",
        port.device, port.number, gid.address, gid.kind, port.mtu
    );
    let adapters = [Adapter::open(&verbs, port, gid)?, Adapter::open(&verbs, port, gid)?];
    let mut bench = LiveBench::new(adapters, [gid.address; 2], port.mtu);
    for (name, case) in suite::CASES {
        if wanted.is_empty() || wanted.iter().any(|it| it == name) {
            case(&mut bench);
            println!("{name} ok");
        }
    }
    Ok(())
}

/// An address, or the name of an interface.
fn by(place: &str) -> Result<By, Box<dyn std::error::Error>> {
    if let Ok(address) = place.parse() {
        return Ok(By::Address(address));
    }
    let index = fs::read_to_string(format!("/sys/class/net/{place}/ifindex"))
        .map_err(|_| format!("there is no network interface {place}"))?;
    Ok(By::Interface(index.trim().parse()?))
}
