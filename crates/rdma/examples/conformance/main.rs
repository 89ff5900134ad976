//! Whether an RDMA adapter of this machine keeps what a device promises.
//!
//! ```text
//!   cargo run --release -p sidestep-rdma --example conformance -- eth0 [case ...]
//!   cargo run --release -p sidestep-rdma --example conformance -- eth0 watch
//! ```
//!
//! The adapter above that network interface, or the one with that address, is opened twice, and the
//! two talk to each other. Each case is a line, `NAME ok`; a case that is not kept ends the program.
//! With `watch` it prints what happens to the adapter ([`Notice`]), until its port has come up again,
//! or for half a minute.
//!
//! Needs libibverbs with its drivers, and rights to use `/dev/infiniband/uverbs*`.

mod live;
mod suite;

use std::error::Error;
use std::fs;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use live::LiveBench;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidestep_rdma::device::Driven;
use sidestep_rdma::verbs::{self, Adapter, By, Gid, Kind, Notice, Port, Verbs};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let Some(place) = words.next() else {
        let names = suite::CASES.map(|(name, _)| name).join(" ");
        eprintln!("conformance INTERFACE|ADDRESS [watch | CASE ...]; cases: {names}");
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

fn run(place: &str, words: &[String]) -> Result<(), Box<dyn Error>> {
    let verbs = Verbs::load()?;
    let ports = verbs::ports(&verbs)?;
    let (port, gid) = verbs::choose(&ports, by(place)?, Kind::RoceV2)
        .ok_or_else(|| format!("no active adapter at {place} among {ports:?}"))?;
    let Port { device, number, mtu, .. } = port;
    let Gid { address, kind, .. } = gid;
    println!("{device} port {number}, {address} over {kind:?}, MTU {mtu}");
    let adapters = [Adapter::open(&verbs, port, gid)?, Adapter::open(&verbs, port, gid)?];
    if words == ["watch"] {
        let [adapter, _] = adapters;
        return watch(adapter);
    }
    let devices = adapters.map(|adapter| Box::new(adapter) as Box<dyn Driven>);
    let mut bench = LiveBench::new(devices, [address; 2], *mtu);
    for (name, case) in suite::CASES {
        if words.is_empty() || words.iter().any(|it| it == name) {
            case(&mut bench);
            println!("{name} ok");
        }
    }
    Ok(())
}

/// Prints what happens to an adapter.
fn watch(mut adapter: Adapter) -> Result<(), Box<dyn Error>> {
    const PATIENCE: Duration = Duration::from_secs(30);
    println!("watching");
    let begin = Instant::now();
    while let Some(rest) = PATIENCE.checked_sub(begin.elapsed()) {
        let rest = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: rest.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(adapter.as_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&rest))?;
        while adapter.turn(begin.elapsed()) {}
        while let Some(notice) = adapter.poll_notice() {
            println!("{notice:?}");
            if notice == Notice::PortUp {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// An address, or the name of an interface.
fn by(place: &str) -> Result<By, Box<dyn Error>> {
    if let Ok(address) = place.parse() {
        return Ok(By::Address(address));
    }
    let index = fs::read_to_string(format!("/sys/class/net/{place}/ifindex"))
        .map_err(|_| format!("there is no network interface {place}"))?;
    Ok(By::Interface(index.trim().parse()?))
}
