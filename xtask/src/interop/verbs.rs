//! RDMA adapters by libibverbs, on the device that a guest's kernel has: `rdma_rxe`.
//!
//! ```text
//!   host                                            guest
//!   examples of rdma, engine ─┐                   / /verbs/conformance eth0 CASE
//!   their C library ──────────┴─ verbs.tar ─ http │ /verbs/verbs ADDRESS ADDRESS
//!                                                 │   │ dlopen
//!   packages of libibverbs ─── library.tar ─ http \   libibverbs.so.1, librxe ── /dev/infiniband
//! ```
//!
//! One program is the suite of all RDMA devices (`crates/rdma/examples/conformance`), the other has
//! two hosts of SMC-R with their link group and connections (`crates/engine/examples/verbs`). Either
//! opens the guest's adapter twice and lets the two talk to each other; packets between them do not
//! leave the guest. First the suite runs without the library, and must say what to install.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Scene;
use super::ground::Case;
use super::guest::Guest;
use super::kit::{self, Kit};
use crate::bench::place;

pub(super) const CASES: [Case; 1] = [("verbs", verbs)];

/// The guest that has the device; the other one is a peer that stays as it is.
const GUEST: usize = 1;
/// The interface of a guest, above which its adapter is.
const INTERFACE: &str = "eth0";
/// Where programs lie in a guest, and the name of their archive.
const DIRECTORY: &str = "verbs";
/// The suite, and the hosts.
const PROGRAMS: [&str; 2] = ["conformance", "verbs"];
/// An address that a guest gets besides its own, for a while.
const OTHER: &str = "10.91.0.200";

fn verbs(scene: &mut Scene) -> Result<String> {
    let kit = Kit::gather(&scene.logs.join("verbs-kit"))?;
    build_programs(&kit)?;
    let _server = kit.hand_out(&scene.lan)?;
    let guest = &mut scene.guests[GUEST];
    kit::take(guest, DIRECTORY)?;
    let Err(without) = run(guest, "messages") else {
        anyhow::bail!("libibverbs was there before it was brought")
    };
    let without = format!("{without:#}");
    ensure!(without.contains("install the packages libibverbs1"), "without it: {without}");
    kit::take(guest, kit::LIBRARY)?;
    let cases = cases(guest)?;
    let mut about = String::new();
    for case in &cases {
        let said = run(guest, case).with_context(|| case.clone())?;
        ensure!(said.lines().any(|line| line == format!("{case} ok")), "{said}");
        about = said.lines().next().unwrap_or_default().to_owned();
    }
    let hosts = hosts(guest)?;
    let notices = watch(guest)?;
    Ok(format!("{} cases on {about}; {hosts}; {notices}", cases.len()))
}

/// Two hosts with a link group over the guest's adapter, at two of its addresses.
fn hosts(guest: &mut Guest) -> Result<String> {
    let [suite, hosts] = PROGRAMS;
    let own = guest.member().v4();
    // A case that there is not: the suite only looks for the adapter, which has the address soon.
    let script = format!(
        "set -e; export PATH=/bin; busybox ip address add {OTHER}/24 dev {INTERFACE}; \
         until /{DIRECTORY}/{suite} {OTHER} none; do busybox sleep 0.1; done 2>&1; \
         /{DIRECTORY}/{hosts} {own} {OTHER} 3 300000; \
         busybox ip address del {OTHER}/24 dev {INTERFACE}"
    );
    let said = guest.run(&["sh", "-c", &script]).context("two hosts")?;
    let line = said.lines().find(|line| line.contains("there and back"));
    Ok(line.with_context(|| said.clone())?.to_owned())
}

/// What is done to the first guest's interface while the program watches the adapter above it. Each
/// step is seen before the next one. The interface keeps its addresses while it is down.
const CHANGES: &str = "\
set -e
export PATH=/bin
await() {
    until busybox grep -q \"$1\" /watched; do busybox sleep 0.1; done
}
ip() {
    busybox ip \"$@\" dev INTERFACE
}
echo 1 > /proc/sys/net/ipv6/conf/INTERFACE/keep_addr_on_down
/DIRECTORY/conformance INTERFACE watch > /watched 2>&1 &
await watching
ip address add OTHER/24
await 'has_ours: true'
ip address del OTHER/24
busybox ip link set INTERFACE down
await PortDown
busybox ip link set INTERFACE up
await PortUp
wait
busybox cat /watched
";

/// Addresses that come and go, and a cable that is pulled.
fn watch(guest: &mut Guest) -> Result<String> {
    let script = CHANGES.replace("INTERFACE", INTERFACE).replace("DIRECTORY", DIRECTORY);
    let script = script.replace("OTHER", OTHER);
    let said = guest.run(&["sh", "-c", &script]).context("watching")?;
    let at = |notice| said.find(notice).with_context(|| format!("no {notice}: {said}"));
    ensure!(at("Addresses")? < at("PortDown")? && at("PortDown")? < at("PortUp")?, "{said}");
    // The adapter can be used again.
    run(guest, "messages")?;
    Ok("addresses and port events".to_owned())
}

/// Runs one case of the suite in the guest, and returns what it prints.
fn run(guest: &mut Guest, case: &str) -> Result<String> {
    let [suite, _] = PROGRAMS;
    guest.run(&["sh", "-c", &format!("/{DIRECTORY}/{suite} {INTERFACE} {case}")])
}

/// What the suite says that its cases are: the end of its usage.
fn cases(guest: &mut Guest) -> Result<Vec<String>> {
    let [suite, _] = PROGRAMS;
    let usage = guest.run(&["sh", "-c", &format!("/{DIRECTORY}/{suite} 2>&1 || true")])?;
    let (_, names) = usage.split_once("cases: ").with_context(|| usage.clone())?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// Builds the programs, for an archive.
fn build_programs(kit: &Kit) -> Result<()> {
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--release"]);
    build.args(["--package", "sidestep-rdma", "--package", "sidestep-engine"]);
    build.args(PROGRAMS.iter().flat_map(|program| ["--example", program]));
    crate::run(&mut build)?;
    let examples = place::target_dir(&place::repo_root()?).join("release/examples");
    kit.add(DIRECTORY, &PROGRAMS.map(|program| examples.join(program)))
}
