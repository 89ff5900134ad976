//! Netty's own tests of its sockets, by Java's NIO and by threads that block, in all four pairs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::{Part, Suite, Verdicts, junit};
use crate::bench::place;
use crate::debian;
use crate::maven::{self, Artifact};
use crate::suite::Lacking;

pub(super) const NAME: &str = "netty";

const VERSION: &str = "4.1.100.Final";

/// The tests, what runs them, and what makes certificates for those with TLS.
const ARTIFACTS: [Artifact; 3] = [
    Artifact { group: "io.netty", name: "netty-testsuite", version: VERSION },
    Artifact {
        group: "org.junit.platform",
        name: "junit-platform-console-standalone",
        version: "1.9.0",
    },
    Artifact { group: "org.bouncycastle", name: "bcpkix-jdk15on", version: "1.69" },
];

const RUNNER: &str = "org.junit.platform.console.ConsoleLauncher";
const PACKAGE: &str = "io.netty.testsuite.transport.socket";

/// Datagrams; a test that needs an address without an answer; and one that encrypts for ten minutes.
const NOT_THESE: &str = r".*\.(Datagram|Abstract|SocketConnectionAttempt|SocketSslEcho).*";

/// Without it each byte that passes is a line.
const SILENCE: &str = "<configuration><root level=\"OFF\"/></configuration>\n";

const RESULTS: &str = "TEST-junit-jupiter.xml";

pub(super) fn suite(scratch: &Path, short: bool) -> Result<Suite> {
    let (name, version) = ("Netty", VERSION.to_owned());
    if short {
        return Ok(Suite { name, version, parts: Vec::new() });
    }
    debian::ensure(&["openjdk-17-jdk-headless", "maven"])?;
    let cannot = |error: anyhow::Error| Lacking(format!("Maven cannot fetch it: {error:#}"));
    let class_path = maven::class_path(&ARTIFACTS, scratch).map_err(cannot)?;
    let silence = scratch.join("logback.xml");
    fs::write(&silence, SILENCE)?;
    let silence = format!("-Dlogback.configurationFile={}", silence.display());
    let words = [&silence, "-cp", &class_path, RUNNER, "--disable-banner", "--details=none"];
    let which = ["-p", PACKAGE, "--include-classname=.*", "--exclude-classname", NOT_THESE];
    let part = Part {
        name: "transport.socket".to_owned(),
        program: place::find_command("java").context("no java")?,
        arguments: words.into_iter().chain(which).map(str::to_owned).collect(),
        directory: scratch.to_owned(),
        user: None,
        read: |_, directory| read(directory),
        results: Some(|directory| vec![format!("--reports-dir={}", directory.display())]),
    };
    Ok(Suite { name, version, parts: vec![part] })
}

fn read(directory: &Path) -> Verdicts {
    // Absent if Java died: then no test has a result.
    junit::parse(&fs::read_to_string(directory.join(RESULTS)).unwrap_or_default())
}
