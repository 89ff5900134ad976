//! `sidestep enable`: a service, hardened as distributions harden theirs, runs under Sidestep.

use anyhow::{Context, Result, ensure};

use super::super::stage::Stage;
use super::machine::{AGENT, ENTER, Machine, PORT, SCRIPTS};
use crate::suite::HANG;

const SERVICE: &str = "echo.service";

/// A service of another user.
const OTHER: &str = "other.service";
const OTHER_PORT: &str = "7001";

/// Restrictions of a service, by themselves; all of them let connections move.
const RESTRICTIONS: [&str; 15] = [
    "MemoryDenyWriteExecute=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged @mount @debug",
    "ProtectProc=invisible",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "ProtectKernelTunables=yes",
    "NoNewPrivileges=yes",
];

/// Enabled, seen, disabled; under each restriction and under all; and what cannot be enabled is said.
pub(crate) fn enabled(stage: &Stage<'_>) -> Result<String> {
    let machine = Machine::boot(stage)?;
    let sidestep = |words: &[&str]| machine.run(&[&["sidestep"], words].concat());
    machine.write_service(&RESTRICTIONS)?;
    machine.run(&["systemctl", "start", SERVICE])?;

    let said = sidestep(&["enable", "echo"])?;
    ensure!(said.contains("echo.service: enabled"), "{said}");
    ensure!(said.contains("runs as before until: systemctl restart echo.service"), "{said}");
    let said = sidestep(&["status"])?;
    ensure!(said.contains("runs as before until"), "{said}");
    let said = sidestep(&["enable", "--restart", "echo"])?;
    ensure!(!said.contains("runs as before"), "{said}");
    ensure!(said.contains(&moved("nobody")), "{said}");
    machine.must_move().context("under all restrictions")?;
    for restriction in RESTRICTIONS {
        machine.write_service(&[restriction])?;
        sidestep(&["enable", "--restart", "echo"])?;
        machine.must_move().context(restriction)?;
    }

    machine.write_service(&[])?;
    machine.share_between_users()?;

    machine.must_refuse(&["RestrictAddressFamilies=AF_INET"], "forbids AF_UNIX")?;
    machine.must_refuse(
        &["SystemCallFilter=~memfd_create"],
        "can add: SystemCallFilter=memfd_create",
    )?;
    machine.write_service(&[])?;
    let refused =
        machine.run(&["sh", "-c", "sidestep enable nothing-of-this-name 2>&1 || true"])?;
    ensure!(refused.contains("no such unit"), "{refused}");
    let refused = machine.run(&["sh", "-c", "sidestep enable ssh.socket 2>&1 || true"])?;
    ensure!(refused.contains("only services run programs"), "{refused}");

    // The library goes: the service starts, and its status tells.
    let drop_in = format!("/etc/systemd/system/{SERVICE}.d/50-sidestep.conf");
    machine.run(&[
        "sed",
        "--in-place",
        "s,LD_PRELOAD=[^\"]*,LD_PRELOAD=/gone/libsidestep.so,",
        &drop_in,
    ])?;
    machine.run(&["systemctl", "daemon-reload"])?;
    machine.run(&["systemctl", "restart", SERVICE])?;
    let said = sidestep(&["status"])?;
    ensure!(said.contains("/gone/libsidestep.so is gone"), "{said}");

    sidestep(&["disable", "--restart", "echo", OTHER])?;
    ensure!(machine.run(&["test", "!", "-e", &drop_in]).is_ok(), "the drop-in is still there");
    let said = sidestep(&["status"])?;
    ensure!(said.contains("no service is enabled"), "{said}");
    Ok(format!("under {} restrictions, by each and by all", RESTRICTIONS.len()))
}

/// What `enable` says of a connection to the service that has moved.
fn moved(user: &str) -> String {
    format!("a connection of {user} to 127.0.0.1:{PORT} has moved to shared memory")
}

impl Machine {
    /// A server at all addresses, as a service of user 65534.
    fn write_service(&self, restrictions: &[&str]) -> Result<()> {
        self.write_unit(SERVICE, "nobody", PORT, &restrictions.join("\n"))
    }

    /// Two services of two users are enabled: without an agent both users are listed, with one they become a pair, and a
    /// connection of either moves.
    fn share_between_users(&self) -> Result<()> {
        // The one that is mounted there cannot be replaced.
        self.run(&["umount", "/etc/sidestep/sidestep.toml"])?;
        self.write_unit(OTHER, "daemon", OTHER_PORT, "")?;
        let said = self.run(&["sidestep", "enable", OTHER])?;
        for user in ["daemon", "nobody"] {
            let listed = format!("{user} was added to policy.share_with_users");
            ensure!(said.contains(&listed), "{said}");
        }
        // So that nothing but the pair lets them in.
        self.run(&["sh", "-c", "rm /etc/sidestep/sidestep.toml*"])?;
        self.run(&["systemctl", "start", AGENT])?;
        let enable = ["sidestep", "enable", "--restart", "echo", OTHER];
        let said = self.run(&[&["sh", "-c", ENTER, "sh"], &enable[..]].concat())?;
        ensure!(said.contains("daemon with nobody was added to share.pairs"), "{said}");
        for user in ["nobody", "daemon"] {
            ensure!(said.contains(&moved(user)), "{said}");
        }
        self.run(&["systemctl", "stop", AGENT, OTHER])?;
        Ok(())
    }

    /// An echo server as a service of a user.
    fn write_unit(&self, name: &str, user: &str, port: &str, more: &str) -> Result<()> {
        let unit = format!(
            "[Service]\nUser={user}\nExecStart=/usr/bin/python3 {SCRIPTS}/distant.py server 0.0.0.0 {port}\n{more}\n"
        );
        let path = format!("/run/systemd/system/{name}");
        self.run(&[
            "sh",
            "-c",
            "printf '%s' \"$1\" > \"$2\" && systemctl daemon-reload",
            "sh",
            &unit,
            &path,
        ])?;
        Ok(())
    }

    /// A client's connection to the service moves.
    fn must_move(&self) -> Result<()> {
        self.await_listener()?;
        let mut client = self.client("127.0.0.1")?;
        client.say("2 100")?;
        client.await_line("verified", HANG)?;
        let moved = self.moved_connections_of_server()?;
        ensure!(moved > 0, "no connection moves: {}", self.run(&["sidestep", "why", ":7000"])?);
        Ok(())
    }

    /// It cannot be enabled with these restrictions, for a reason with these words.
    fn must_refuse(&self, restrictions: &[&str], words: &str) -> Result<()> {
        self.write_service(restrictions)?;
        let said = self.run(&["sh", "-c", "sidestep enable echo 2>&1 || true"])?;
        ensure!(said.contains(words), "{restrictions:?}: {said}");
        Ok(())
    }
}
