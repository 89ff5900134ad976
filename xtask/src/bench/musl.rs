//! Redis built with musl, as Alpine has it, beside Redis built with glibc: does Sidestep gain as much?
//!
//! Both are of one source and of one set of options, server and client, so that only the C library differs.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::lab::Lab;
use super::launch::{self, Transport};
use super::{place, workloads};
use crate::debian;
use crate::suite::{HANG, Lacking};
use crate::suites;

/// Programs of Redis, by the C library they were built with.
struct Build {
    server: String,
    benchmark: String,
}

/// The rate by SMC over that by TCP, of GETs of 2 KiB by ten clients: in the column of TCP of the build with glibc, in that of
/// SMC of the build with musl.
pub(super) fn gain(lab: &Lab, transport: Transport) -> Result<Vec<f64>> {
    let build = match transport {
        Transport::Tcp => Build::with("gcc", &[])?,
        // Headers of the kernel, of which musl has none, come after its own.
        Transport::Smc => Build::with(
            "musl-gcc",
            &["-idirafter /usr/include", "-idirafter /usr/include/x86_64-linux-gnu"],
        )?,
    };
    let [tcp, smc] = [Transport::Tcp, Transport::Smc].map(|it| build.rate(lab, it));
    Ok(vec![smc? / tcp?])
}

impl Build {
    /// Builds it once; it stays in the target directory.
    ///
    /// **Errors**: [`Lacking`], if source or compiler cannot be had.
    fn with(compiler: &str, flags: &[&str]) -> Result<Self> {
        debian::ensure(&["musl-tools", "dpkg-dev", "make"])
            .map_err(|it| Lacking(format!("{it:#}")))?;
        let target = place::target_dir(&place::repo_root()?);
        let tree = target.join("redis").join(compiler);
        if !tree.join("src/redis-benchmark").exists() {
            make(&target, &tree, compiler, flags)?;
        }
        let program = |name: &str| tree.join("src").join(name).display().to_string();
        Ok(Self { server: program("redis-server"), benchmark: program("redis-benchmark") })
    }

    /// GETs per second.
    fn rate(&self, lab: &Lab, transport: Transport) -> Result<f64> {
        let port = launch::free_port()?;
        let text = port.to_string();
        let server = [
            &self.server,
            "--port",
            &text,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ];
        let mut server = lab.serve(port, lab.command(transport, &server)?)?;
        let mut requests = 20_000;
        let mut rate = 0.0;
        // The second time for as long as a run is to take.
        for _ in 0..2 {
            let count = requests.to_string();
            let client = [&self.benchmark, "-p", &text, "-t", "set,get", "-d", "2048", "-c", "10"];
            let said = lab.run(transport, &[&client[..], &["-n", &count, "--csv"]].concat())?;
            rate =
                workloads::redis_rate(&said, "GET").context("redis-benchmark printed no rate")?;
            requests = (rate * lab.seconds) as u64;
        }
        server.must_be_alive()?;
        Ok(rate)
    }
}

fn make(target: &Path, tree: &Path, compiler: &str, flags: &[&str]) -> Result<()> {
    let source = suites::redis_source(target)?;
    println!("building redis by {compiler} ...");
    fs::create_dir_all(target.join("redis"))?;
    let mut copy = Command::new("cp");
    copy.arg("--archive").arg(source).arg(tree);
    launch::run(copy, HANG)?;
    let compiler = [&[compiler], flags].concat().join(" ");
    let mut make = Command::new("make");
    make.args(["--jobs=2", "--directory"]).arg(tree).arg(format!("CC={compiler}"));
    make.args(["MALLOC=libc", "BUILD_TLS=no", "USE_SYSTEMD=no", "OPT=-O2"]);
    launch::run(make, HANG).map(drop)
}
