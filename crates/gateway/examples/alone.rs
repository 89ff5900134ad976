//! A gateway without the rest of Sidestep, for tests: `alone WORD…`, until standard input ends.
//!
//! | Word | Meaning |
//! |---|---|
//! | an address, an interface, and those with `soft:` before | an adapter |
//! | `ueid=NAME` | the UEID, `SIDESTEP` without it |
//! | `pnet=INTERFACE` | this interface is on the network `NET1` |
//! | `trust=FILE` | TLS protects what programs begin, with servers that have this certificate for the name `a.example` |
//! | `identity=FILE` | TLS protects what programs accept, by the certificate and the key in this file |
//! | `loss=PERCENT` | so many of the adapters' datagrams are lost |
//! | `replace` | in the place of the gateway that is there |
//! | `store=PATH` | what it leaves when it ends goes to the socket there |
//! | `restore=PATH` | what a gateway has left comes from the socket there |
//!
//! It prints `ready`, and what it reports goes to standard error.

#[path = "handover/rights.rs"]
mod rights;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use log::{LevelFilter, Log, Metadata, Record};
use sidestep_gateway::watchdog::Watchdog;
use sidestep_gateway::{Gateway, Settings};
use sidestep_proto::protection::{Role, Scope};
use sidestep_rdma::faults::Plan;
use sidestep_tls::rule::{Expected, Identity, Rule, Trust};
use sidestep_wire::Eid;

struct Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        eprintln!("{} {}", record.level(), record.args());
    }

    fn flush(&self) {}
}

/// A rule about all connections of this role.
fn rule(role: Role) -> Rule {
    let name = "test".parse().expect("a name");
    let ports = ["1-65535".parse().expect("all")].into_iter().collect();
    let (begin, peers, users) = Default::default();
    Rule::new(Scope { role, begin, name, ports, peers, users })
}

fn outbound(trust: &str) -> Rule {
    let server_name = Some(Expected::Name("a.example".parse().expect("a name")));
    Rule { trust: Trust::File(trust.into()), server_name, ..rule(Role::Outbound) }
}

fn inbound(identity: &str) -> Rule {
    let identity = Some(Identity { certificate: identity.into(), key: identity.into() });
    Rule { identity, ..rule(Role::Inbound) }
}

fn main() {
    log::set_logger(&Lines).expect("the only one");
    log::set_max_level(LevelFilter::Debug);
    let mut settings = Settings::default();
    let mut ueid = "SIDESTEP".to_owned();
    let mut open: fn(Settings) -> _ = Gateway::open;
    let (mut store, mut restore) = (None, None);
    for word in std::env::args().skip(1) {
        match word.split_once('=') {
            None if word == "replace" => open = Gateway::replace,
            Some(("ueid", name)) => ueid = name.to_owned(),
            Some(("pnet", name)) => settings.networks.push((name.to_owned(), "NET1".to_owned())),
            Some(("store", path)) => store = Some(path.to_owned()),
            Some(("restore", path)) => restore = Some(path.to_owned()),
            Some(("trust", path)) => settings.rules.push(outbound(path)),
            Some(("identity", path)) => settings.rules.push(inbound(path)),
            Some(("loss", percent)) => {
                let loss = percent.parse::<f64>().expect("a number") / 100.0;
                settings.faults = Some(Plan { loss, seed: 7, ..Plan::PERFECT });
            }
            _ => settings.adapters.push(word.parse().expect("anything is one")),
        }
    }
    settings.ueids.push(Eid::ueid(&ueid).expect("a UEID"));
    settings.has_store = store.is_some();
    let opened = match restore {
        Some(path) => {
            let keeper = UnixStream::connect(path).expect("the place where it is kept");
            Gateway::restore(settings, rights::receive(&keeper).expect("a descriptor"))
        }
        None => open(settings),
    };
    let gateway = opened.unwrap_or_else(|error| panic!("{error}"));
    gateway.adapters().iter().for_each(|adapter| eprintln!("{adapter}"));
    println!("ready");
    let pulse = Watchdog::default().pulse();
    let stop = io::stdin().as_fd().try_clone_to_owned().expect("standard input");
    let left = gateway.run(stop, pulse, |_| {}).expect("the kernel lets it wait");
    if let (Some(path), Some(left)) = (store, left) {
        let keeper = UnixStream::connect(path).expect("the place where it is kept");
        rights::send(&keeper, left.as_fd()).expect("it is taken");
    }
}
