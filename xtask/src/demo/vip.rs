//! Three redis behind one address, in a network namespace: connections are spread and move to shared
//! memory, and one target is drained under load.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::bench::launch::{self, Dialogue, Launcher, Program, Transport};
use crate::debian;
use crate::enclosure::Namespace;
use crate::suite::{HANG, Lacking};
use crate::user;

const VIP: &str = "127.0.0.10";

const CONFIG: &str = "[vip.redis]
address = \"127.0.0.10:6379\"
[vip.redis.targets]
a = { address = \"127.0.0.1:7001\", weight = 4 }
b = { address = \"127.0.0.1:7002\", weight = 2 }
c = { address = \"127.0.0.1:7003\", weight = 1 }
";

/// Of what a command says.
const LINES_SHOWN: usize = 6;

/// Connections of the load.
const CLIENTS: &str = "50";

/// **Errors**: something it needs cannot be had, a program failed, or nothing moved to shared memory.
pub(super) fn run(launcher: &Launcher, scratch: &Path) -> Result<()> {
    debian::ensure(&["iproute2"])?;
    if !user::is_root() {
        bail!(Lacking("a network namespace and a VIP need root".to_owned()));
    }
    let sidestep = launcher.observer().context("there is no `sidestep`")?.to_owned();
    let demo = Demo { launcher, scratch, sidestep, namespace: Namespace::make("demo")? };
    let _servers: Vec<Program> =
        [7001, 7002, 7003].into_iter().map(|port| demo.redis(port)).collect::<Result<_>>()?;
    println!(
        "\nthree redis listen at 127.0.0.1, ports 7001 to 7003; in front of them:\n\n{CONFIG}"
    );
    let _vips = demo.vips()?;
    demo.await_marker()?;
    demo.load(&["vip", "drain", "redis/a"])?;
    println!("\nredis/a was drained under load, and no connection was broken; once more:");
    demo.load(&["vip", "connections"])?;
    println!("\nredis/a was given no more");
    Ok(())
}

struct Demo<'a> {
    launcher: &'a Launcher,
    scratch: &'a Path,
    sidestep: PathBuf,
    namespace: Namespace,
}

impl Demo<'_> {
    fn redis(&self, port: u16) -> Result<Program> {
        let text = port.to_string();
        let words = ["--bind", "127.0.0.1", "--port", &text, "--save", "", "--appendonly", "no"];
        let mut command = self.launcher.launch(Transport::Smc, "redis-server", words);
        self.namespace.enclose(&mut command);
        let mut server = Program::start(command, self.scratch)?;
        server.await_listener(port)?;
        Ok(server)
    }

    fn sidestep(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.sidestep);
        command.args(words);
        self.namespace.enclose(&mut command);
        command
    }

    fn vips(&self) -> Result<Dialogue> {
        let config = self.scratch.join("vip.toml");
        fs::write(&config, CONFIG)?;
        println!("# sidestep vip run");
        let config = config.display().to_string();
        let mut vips = Dialogue::start(self.sidestep(&["vip", "run", "--config", &config]))?;
        println!("{}", vips.await_line("sidestep vip: redis", HANG)?);
        Ok(vips)
    }

    /// Until then clients do not know that the targets run under Sidestep.
    fn await_marker(&self) -> Result<()> {
        let deadline = Instant::now() + HANG;
        while !launch::run(self.sidestep(&["vip", "list"]), HANG)?.contains("may move") {
            ensure!(Instant::now() < deadline, "the VIP has no marker");
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// redis-benchmark, with a look at targets and connections while it runs, and another command. An error
    /// of a connection would end it.
    fn load(&self, meanwhile: &[&str]) -> Result<()> {
        let words = ["-h", VIP, "-p", "6379", "-c", CLIENTS, "-n", "2000000", "-t", "set", "-q"];
        println!("\n$ sidestep run redis-benchmark {}", words.join(" "));
        let mut command = self.launcher.launch(Transport::Smc, "redis-benchmark", words);
        self.namespace.enclose(&mut command);
        let mut load = Dialogue::start(command)?;
        thread::sleep(Duration::from_secs(1));
        self.show(&["vip", "targets"])?;
        let connections = launch::run(self.sidestep(&["ss"]), HANG)?;
        let moved: Vec<&str> = connections
            .lines()
            .filter(|line| line.starts_with("SMC-D") && line.contains("by VIP: redis/"))
            .collect();
        ensure!(!moved.is_empty(), "nothing moved to shared memory:\n{connections}");
        println!("\n# sidestep ss: {} ends of connections in shared memory, such as", moved.len());
        moved.iter().take(3).for_each(|line| println!("{line}"));
        self.show(meanwhile)?;
        load.program().must_be_alive()?;
        load.finish(HANG)?;
        Ok(())
    }

    fn show(&self, words: &[&str]) -> Result<()> {
        println!("\n# sidestep {}", words.join(" "));
        let said = launch::run(self.sidestep(words), HANG)?;
        let (lines, rest) = (said.lines().take(LINES_SHOWN), said.lines().count());
        lines.for_each(|line| println!("{line}"));
        if rest > LINES_SHOWN {
            println!("... {} more lines", rest - LINES_SHOWN);
        }
        Ok(())
    }
}
