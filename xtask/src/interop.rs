//! `cargo xtask interop`: a stock Linux kernel is the peer.
//!
//! ```text
//!   namespace of our own                     QEMU, all in software       QEMU
//!   +------------------------------+        +--------------------+     +---------+
//!   | programs of the host         |        | Debian's kernel    |     | guest 3 |
//!   |   plain, or under Sidestep   |  tap2  |   rdma_rxe, smc    |     |         |
//!   | bridge ----------------------+--------+ virtio-net         |     |         |
//!   |        ----------------------+----------------- tap3 ------+-----+         |
//!   | tcpdump                      |  pipe  | sidestep-guest     |     |         |
//!   +------------------------------+--------+   is process 1     |     +---------+
//!                                           +--------------------+
//! ```
//!
//! No hardware, no KVM and no module of this machine's kernel is needed: a guest's processor is
//! emulated, and so is its RDMA device, in the guest, by Linux. Nothing is installed in a guest
//! either; it has no disk. What the host needs is root, for the namespace, and some packages.
//!
//! The first cases ([`ground`]) have Linux on both sides; [`verbs`] runs our own code in a guest, on the
//! kernel's RDMA device, and [`over_verbs`] all of Sidestep, with Linux as the peer. The last
//! ([`mod@sidestep`]) have Sidestep on the host. The short half, which every change has to pass, has one
//! guest: Sidestep is on the host, and streams and silence are shorter.

mod ground;
mod guest;
mod host;
pub(crate) mod image;
pub(crate) mod kernel;
mod kit;
mod lan;
mod over_verbs;
mod sidestep;
mod strict_memory;
mod talk;
mod two_adapters;
mod verbs;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use sidestep_guest::{LinkGroup, Play, Report, SocketKind, Talk};

use crate::bench::launch::{LaunchOptions, Launcher, Transport};
use crate::bench::place::{self, find_command};
use crate::debian;
use crate::leftovers::Leftovers;
use crate::suite::{self, Lacking, Outcome, Summary};
use crate::user;
use ground::Case;
use guest::{Boot, Guest};
use host::{Host, Network};
use kernel::Kernel;
use lan::{Capture, Captured, Lan, Member};
use talk::{HostTalk, Place};

/// Packages without which there are no guests.
const PACKAGES: [&str; 5] =
    ["qemu-system-x86", "busybox-static", "iproute2", "tcpdump", "xz-utils"];

/// The guests.
const GUESTS: [Member; 2] = [Member(2), Member(3)];

/// What all guests have in common, unless a case wants it otherwise.
const PNET_ID: &str = "PNET1";
const UEID: &str = "SMCV2-EID-1";

/// Options of `cargo xtask interop`; without any, it is the long half.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only cases with this text in their name
    #[arg(value_name = "FILTER")]
    filter: Option<String>,

    /// Bytes of the longest packet; RDMA's have 1024 bytes of data with 1500, and 4096 with 9000
    #[arg(long, default_value_t = MTU, value_parser = clap::value_parser!(u32).range(1280..=9000))]
    mtu: u32,

    /// Only cases with Sidestep on one side, each as short as it can be: two minutes
    #[arg(long)]
    short: bool,
}

/// Ethernet's.
const MTU: u32 = 1500;

impl Options {
    fn cases(&self) -> Vec<&'static Case> {
        let wanted = |name: &str| self.filter.as_ref().is_none_or(|it| name.contains(it.as_str()));
        // Guest 2 does not live to see the end of Sidestep's cases.
        let all: [&[Case]; 6] = [
            &ground::CASES,
            &verbs::CASES,
            &over_verbs::CASES,
            &two_adapters::CASES,
            &strict_memory::CASES,
            &sidestep::CASES,
        ];
        let of_half: &[&[Case]] = if self.short { &all[4..] } else { &all };
        let all = of_half.iter().flat_map(|cases| cases.iter());
        all.filter(|(name, _)| wanted(name)).collect()
    }

    fn guests(&self) -> &'static [Member] {
        if self.short { &GUESTS[..1] } else { &GUESTS }
    }
}

/// Plays the cases; the last line is `N passed, N failed, N skipped`.
///
/// **Errors**: a case failed, or nothing matched.
pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen = options.cases();
    ensure!(!chosen.is_empty(), "no case has that name");
    let leftovers = Leftovers::note();
    let mut summary = Summary::default();
    let start = Instant::now();
    match Scene::set(options) {
        Ok((mut scene, about)) => {
            summary.add("guests start", "", Outcome::Passed(about, start.elapsed()));
            for (name, case) in chosen {
                summary.add(name, "", suite::play(&[], || scene.play(name, *case)));
            }
            summary.add("guests end", "", suite::play(&[], || scene.clear()));
        }
        Err(error) => summary.add("guests start", "", Outcome::of(Err(error), start.elapsed())),
    }
    let nothing_left = || leftovers.check().map(|()| String::new());
    summary.add("nothing left behind", "", suite::play(&[], nothing_left));
    summary.conclude("interop", None)
}

/// Guests on a network, and what the host has beside them.
struct Scene {
    /// One in the short half, and two otherwise.
    guests: Vec<Guest>,
    /// What lets programs of the host speak SMC-R, once a case has asked for it.
    host: Option<Host>,
    lan: Lan,
    /// Starts programs of the host, plain or under Sidestep.
    launcher: Launcher,
    /// What plays the host's ends of talks.
    talker: PathBuf,
    is_short: bool,
    /// Where consoles, kernels' logs and captures of what failed are.
    logs: PathBuf,
}

impl Scene {
    /// Starts everything; what it is, for the report.
    ///
    /// **Errors**: [`Lacking`], if this machine cannot; or a guest does not start.
    fn set(options: &Options) -> Result<(Self, String)> {
        let (logs, kernel) = fetch()?;
        let repo = place::repo_root()?;
        let talker = build_program(&repo)?;
        let boot = Boot { kernel: kernel.image.clone(), initramfs: image::place(&logs), logs };
        let busybox = find_command("busybox").context("busybox")?;
        image::write(&boot.initramfs, &kernel, &talker, &busybox)?;
        let members = options.guests();
        let lan = Lan::make(members, options.mtu)?;
        let mut guests = members
            .iter()
            .map(|member| Guest::turn_on(&boot, &lan, *member))
            .collect::<Result<Vec<_>>>()?;
        for guest in &mut guests {
            guest.await_ready()?;
            guest.equip(&lan, PNET_ID, UEID)?;
        }
        let launcher = Launcher::new(&LaunchOptions::default(), &repo)?.eager();
        let about = format!("{}, MTU {}", kernel.package, options.mtu);
        let (is_short, logs) = (options.short, boot.logs);
        Ok((Self { guests, host: None, lan, launcher, talker, is_short, logs }, about))
    }

    /// Plays a case while its packets are written to a file. When it fails, the file stays, with both
    /// kernels' logs beside it.
    fn play(&mut self, name: &str, case: fn(&mut Self) -> Result<String>) -> Result<String> {
        self.guests.iter_mut().try_for_each(|guest| guest.note(&mark_of(name)))?;
        let directory = self.logs.join(name);
        let capture = Capture::start(&self.lan, self.guests[0].member(), directory.clone())?;
        let failed = match case(self) {
            Ok(remark) => {
                // Who wants to look into it has one of their own; this may lack some of a stream.
                capture.end()?.forget()?;
                return Ok(remark);
            }
            Err(error) if error.is::<Lacking>() => return Err(error),
            Err(error) => error,
        };
        let mut remark = format!("see {}", directory.display());
        for guest in &mut self.guests {
            if let Err(error) = guest.save_kernel_log(&directory) {
                remark.push_str(&format!("; {error:#}"));
            }
        }
        for line in self.host.iter().flat_map(Host::warnings) {
            remark.push_str(&format!("; {line}"));
        }
        bail!("{failed:#} ({remark})")
    }

    /// Has something done while the packets of the first guest are written to a file.
    fn captured<T>(
        &mut self,
        name: &str,
        action: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(Captured, T)> {
        let directory = self.logs.join(name);
        let capture = Capture::start(&self.lan, self.guests[0].member(), directory)?;
        let done = action(self)?;
        Ok((capture.finish()?, done))
    }

    /// Both ends of a talk whose server is the first guest.
    fn talks(&self, socket: SocketKind, connections: u16, play: Play) -> [Talk; 2] {
        let address = (self.guests[0].member().v4(), PORT).into();
        talk::both_ends(address, connections, &play, [socket; 2])
    }

    /// Lets the guests talk, and compares what they say of it: the server's report first.
    fn between_guests(
        &mut self,
        socket: SocketKind,
        connections: u16,
        play: Play,
    ) -> Result<[Report; 2]> {
        self.between(Place::Guest(0), Place::Guest(1), socket, connections, play)
    }

    /// The same for any two places. `socket`: the guests'; the host has TCP.
    fn between(
        &mut self,
        server: Place,
        client: Place,
        socket: SocketKind,
        connections: u16,
        play: Play,
    ) -> Result<[Report; 2]> {
        let address = (self.member(server).v4(), PORT).into();
        self.between_at(address, [server, client], socket, connections, play)
    }

    /// The same at any address of the server's.
    fn between_at(
        &mut self,
        address: SocketAddr,
        [server, client]: [Place; 2],
        socket: SocketKind,
        connections: u16,
        play: Play,
    ) -> Result<[Report; 2]> {
        let sockets = [server, client].map(|place| place.socket(socket));
        let [servers, clients] = talk::both_ends(address, connections, &play, sockets);
        let server = self.begin(server, servers)?;
        let client = self.begin(client, clients).and_then(|client| self.report(client));
        let [server, client] = talk::both(self.report(server), client)?;
        if !matches!(play, Play::CloseUnread { .. }) {
            talk::must_agree(&server, &client)?;
        }
        Ok([server, client])
    }

    fn member(&self, place: Place) -> Member {
        match place {
            Place::Guest(nth) => self.guests[nth].member(),
            Place::Host | Place::Sidestep => Member::HOST,
        }
    }

    fn begin(&mut self, place: Place, talk: Talk) -> Result<Begun> {
        let patience = talk::patience(&talk.play);
        let transport = match place {
            Place::Guest(nth) => {
                return Ok(Begun::InGuest(nth, self.guests[nth].begin(talk)?, patience));
            }
            Place::Host => Transport::Tcp,
            Place::Sidestep => Transport::Smc,
        };
        let mut program = self.launcher.launch(transport, &self.talker, [] as [&str; 0]);
        if let Some(host) = self.host.as_ref().filter(|_| place == Place::Sidestep) {
            host.enclose(&mut program);
        }
        Ok(Begun::OnHost(HostTalk::begin(&self.lan, program, &talk)?))
    }

    fn report(&mut self, begun: Begun) -> Result<Report> {
        match begun {
            Begun::InGuest(nth, job, patience) => self.guests[nth].report(job, patience),
            Begun::OnHost(talk) => talk.report(),
        }
    }

    /// Lets programs of the host speak SMC-R from now on.
    fn equip_host(&mut self) -> Result<&mut Host> {
        if self.host.is_none() {
            let sidestep = self.launcher.observer().context("there is no `sidestep` command")?;
            self.host = Some(Host::equip(sidestep, &self.lan, self.logs.join("host"))?);
        }
        self.host.as_mut().context("the host was equipped")
    }

    /// Lets the host and the first guest meet for the first time.
    fn forget_link_groups(&mut self) -> Result<()> {
        self.meet_anew(Network::default())
    }

    /// The same in another network.
    fn meet_anew(&mut self, network: Network) -> Result<()> {
        self.equip_host()?;
        if let Some(host) = &mut self.host {
            host.restart_gateway(&self.lan, network)?;
        }
        let deadline = Instant::now() + talk::PATIENCE;
        loop {
            let groups = self.link_groups()?;
            if groups.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the guest keeps {groups:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The link groups of the first guest with the host.
    fn link_groups(&mut self) -> Result<Vec<LinkGroup>> {
        let gids = [Member::HOST, Member::HOST.second()].map(Member::gid);
        let mut groups = self.guests[0].link_groups()?;
        groups.retain(|group| group.links.iter().any(|link| gids.contains(&link.peer_gid)));
        Ok(groups)
    }

    /// Kills an end of a talk of which nothing is expected any more: the next one needs the port.
    fn kill(&mut self, begun: Begun) {
        match begun {
            // Fails only if it has ended.
            Begun::InGuest(nth, job, _) => drop(self.guests[nth].kill(job)),
            Begun::OnHost(talk) => drop(talk),
        }
    }

    /// Turns the guests off.
    fn clear(mut self) -> Result<String> {
        self.host = None;
        self.guests.into_iter().try_for_each(Guest::turn_off)?;
        Ok(String::new())
    }
}

/// What is in kernels' logs where a case begins.
fn mark_of(case: &str) -> String {
    format!("case {case}")
}

/// Where the servers of talks listen.
const PORT: u16 = 5_000;

/// An end of a talk that goes on.
enum Begun {
    /// The guest, its job, and how long that may take.
    InGuest(usize, guest::Job, Duration),
    OnHost(HostTalk),
}

/// Gets what guests need and is not built here, unless it is there. Returns where to work, and the kernel.
///
/// **Errors**: [`Lacking`], with what cannot be had.
pub(crate) fn fetch() -> Result<(PathBuf, Kernel)> {
    must_be_possible()?;
    let scratch = place::scratch_dir(&place::repo_root()?, "sidestep-interop")?;
    let kernel = Kernel::get(kernel::SMC_SERIES, &scratch)?;
    Ok((scratch, kernel))
}

/// **Errors**: [`Lacking`], with what it is that this machine does not have.
fn must_be_possible() -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        bail!(Lacking("the guests' program is built on x86_64".to_owned()));
    }
    if !user::is_root() {
        bail!(Lacking("a network namespace with tap devices needs root".to_owned()));
    }
    if !Path::new("/dev/net/tun").exists() {
        bail!(Lacking("this kernel has no tap devices".to_owned()));
    }
    debian::ensure(&PACKAGES).map_err(|error| Lacking(format!("{error:#}")).into())
}

/// Builds the program of guests, which plays the host's ends of talks as well. It finds its libraries
/// in a guest, too ([`image`]); to bring them along costs less than to build it a second time.
fn build_program(repo: &Path) -> Result<PathBuf> {
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--package", "sidestep-guest"]);
    crate::run(&mut build)?;
    Ok(place::target_dir(repo).join("debug/sidestep-guest"))
}
