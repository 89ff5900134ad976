//! RDMA adapters by libibverbs, on the device that a guest's kernel has: `rdma_rxe`.
//!
//! ```text
//!   host                                            guest
//!   examples of rdma, engine ─┐                     / /verbs/conformance eth0 CASE
//!   their C library ──────────┴ programs.tar ─ http │ /verbs/verbs ADDRESS ADDRESS
//!                                                   │   │ dlopen
//!   packages of libibverbs ──── library.tar ── http \   libibverbs.so.1, librxe ── /dev/infiniband
//! ```
//!
//! One program is the suite of all RDMA devices (`crates/rdma/examples/conformance`), the other has
//! two hosts of SMC-R with their link group and connections (`crates/engine/examples/verbs`). Either
//! opens the guest's adapter twice and lets the two talk to each other; packets between them do not
//! leave the guest. First the suite runs without the library, and must say what to install.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::ground::Case;
use super::lan::Member;
use super::{Scene, image};
use crate::bench::launch::{self, Program};
use crate::bench::place;
use crate::debian;
use crate::suite::Lacking;

pub(super) const CASES: [Case; 1] = [("verbs", verbs)];

/// libibverbs, its drivers, and what it uses; none of it is installed on the host.
const PACKAGES: [&str; 4] =
    ["libibverbs1", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200"];

/// The interface of a guest, above which its adapter is.
const INTERFACE: &str = "eth0";
/// Where programs lie in a guest.
const DIRECTORY: &str = "verbs";
/// The suite, and the hosts.
const PROGRAMS: [&str; 2] = ["conformance", "verbs"];
/// An address that a guest gets besides its own, for a while.
const OTHER: &str = "10.91.0.200";
/// Where the host hands archives out.
const PORT: u16 = 5_001;
/// For tools of the host.
const PATIENCE: Duration = Duration::from_secs(60);

fn verbs(scene: &mut Scene) -> Result<String> {
    let kit = Kit::gather(&scene.logs.join("verbs-kit"))?;
    let _server = kit.hand_out(scene)?;
    take(scene, Kit::PROGRAMS)?;
    let Err(without) = run(scene, "messages") else {
        anyhow::bail!("libibverbs was there before it was brought")
    };
    let without = format!("{without:#}");
    ensure!(without.contains("install the packages libibverbs1"), "without it: {without}");
    take(scene, Kit::LIBRARY)?;
    let cases = cases(scene)?;
    let mut about = String::new();
    for case in &cases {
        let said = run(scene, case).with_context(|| case.clone())?;
        ensure!(said.lines().any(|line| line == format!("{case} ok")), "{said}");
        about = said.lines().next().unwrap_or_default().to_owned();
    }
    let hosts = hosts(scene)?;
    let notices = watch(scene)?;
    Ok(format!("{} cases on {about}; {hosts}; {notices}", cases.len()))
}

/// Two hosts with a link group over the first guest's adapter, at two of its addresses.
fn hosts(scene: &mut Scene) -> Result<String> {
    let [suite, hosts] = PROGRAMS;
    let own = scene.guests[0].member().v4();
    // A case that there is not: the suite only looks for the adapter, which has the address soon.
    let script = format!(
        "set -e; export PATH=/bin; busybox ip address add {OTHER}/24 dev {INTERFACE}; \
         until /{DIRECTORY}/{suite} {OTHER} none; do busybox sleep 0.1; done 2>&1; \
         /{DIRECTORY}/{hosts} {own} {OTHER} 3 300000; \
         busybox ip address del {OTHER}/24 dev {INTERFACE}"
    );
    let said = scene.guests[0].run(&["sh", "-c", &script]).context("two hosts")?;
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
fn watch(scene: &mut Scene) -> Result<String> {
    let script = CHANGES.replace("INTERFACE", INTERFACE).replace("DIRECTORY", DIRECTORY);
    let script = script.replace("OTHER", OTHER);
    let said = scene.guests[0].run(&["sh", "-c", &script]).context("watching")?;
    let at = |notice| said.find(notice).with_context(|| format!("no {notice}: {said}"));
    ensure!(at("Addresses")? < at("PortDown")? && at("PortDown")? < at("PortUp")?, "{said}");
    // The adapter can be used again.
    run(scene, "messages")?;
    Ok("addresses and port events".to_owned())
}

/// Runs one case of the suite in the first guest, and returns what it prints.
fn run(scene: &mut Scene, case: &str) -> Result<String> {
    let [suite, _] = PROGRAMS;
    scene.guests[0].run(&["sh", "-c", &format!("/{DIRECTORY}/{suite} {INTERFACE} {case}")])
}

/// What the suite says that its cases are: the end of its usage.
fn cases(scene: &mut Scene) -> Result<Vec<String>> {
    let [suite, _] = PROGRAMS;
    let usage =
        scene.guests[0].run(&["sh", "-c", &format!("/{DIRECTORY}/{suite} 2>&1 || true")])?;
    let (_, names) = usage.split_once("cases: ").with_context(|| usage.clone())?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// Lets the first guest fetch and unpack an archive.
fn take(scene: &mut Scene, archive: &str) -> Result<()> {
    let url = format!("http://{}:{PORT}/{archive}", Member::HOST.v4());
    let unpack = format!("busybox wget -q -O - {url} | busybox tar -x -C / -f -");
    let script = format!("export PATH=/bin; set -o pipefail; {unpack}");
    scene.guests[0].run(&["sh", "-c", &script]).with_context(|| archive.to_owned()).map(drop)
}

/// Archives for a guest, in a directory.
struct Kit(PathBuf);

impl Kit {
    const PROGRAMS: &str = "programs.tar";
    const LIBRARY: &str = "library.tar";

    /// Builds the programs, and fetches the packages unless they are there.
    ///
    /// **Errors**: [`Lacking`], if the packages cannot be had.
    fn gather(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let kit = Self(directory.to_owned());
        if !kit.0.join(Self::LIBRARY).exists() {
            let fetched = kit.fetch_library();
            fetched.map_err(|error| Lacking(format!("libibverbs for guests: {error:#}")))?;
        }
        kit.build_programs()?;
        Ok(kit)
    }

    fn fetch_library(&self) -> Result<()> {
        let root = self.empty("library")?;
        for package in PACKAGES {
            let scratch = self.empty("package")?;
            let file = debian::download(package, &scratch).or_else(|_| {
                debian::update()?;
                debian::download(package, &scratch)
            })?;
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("-x").arg(&file).arg(&root);
            launch::run(unpack, PATIENCE)?;
        }
        self.pack(&root, Self::LIBRARY)
    }

    /// The programs find the library when they run, so they are not linked statically as the guests'
    /// own one is, and bring their C library.
    fn build_programs(&self) -> Result<()> {
        let mut build = Command::new("cargo");
        build.args(["build", "--quiet", "--release"]);
        build.args(["--package", "sidestep-rdma", "--package", "sidestep-engine"]);
        build.args(PROGRAMS.iter().flat_map(|program| ["--example", program]));
        crate::run(&mut build)?;
        let examples = place::target_dir(&place::repo_root()?).join("release/examples");
        let root = self.empty("programs")?;
        for name in PROGRAMS {
            let program = examples.join(name);
            copy(&program, &root.join(DIRECTORY).join(name))?;
            for library in image::libraries(&program)? {
                copy(&library, &root.join(library.strip_prefix("/")?))?;
            }
        }
        self.pack(&root, Self::PROGRAMS)
    }

    /// A new directory.
    fn empty(&self, name: &str) -> Result<PathBuf> {
        let directory = self.0.join(name);
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir(&directory)?;
        Ok(directory)
    }

    /// Under another name until it is complete.
    fn pack(&self, root: &Path, archive: &str) -> Result<()> {
        let unfinished = self.0.join("unfinished.tar");
        let mut pack = Command::new("tar");
        pack.arg("-c").arg("-f").arg(&unfinished).arg("-C").arg(root).arg(".");
        launch::run(pack, PATIENCE)?;
        Ok(fs::rename(&unfinished, self.0.join(archive))?)
    }

    /// Serves the directory to guests, until dropped.
    fn hand_out(&self, scene: &Scene) -> Result<Program> {
        let mut command = Command::new("busybox");
        command.args(["httpd", "-f", "-p", &PORT.to_string(), "-h"]).arg(&self.0);
        scene.lan.enclose(&mut command);
        let mut program = Program::start(command, &self.0)?;
        program.await_listener(PORT)?;
        Ok(program)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file in a directory")?)?;
    // What a link leads to.
    fs::copy(from, to).with_context(|| from.display().to_string()).map(drop)
}
