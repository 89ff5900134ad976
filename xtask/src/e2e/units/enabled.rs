//! `sidestep enable`: a service, hardened as distributions harden theirs, runs under Sidestep.

use anyhow::{Context, Result, ensure};

use super::super::stage::Stage;
use super::machine::{Machine, PORT, SCRIPTS};
use crate::suite::HANG;

const SERVICE: &str = "echo.service";

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
    machine.must_move().context("under all restrictions")?;
    for restriction in RESTRICTIONS {
        machine.write_service(&[restriction])?;
        sidestep(&["enable", "--restart", "echo"])?;
        machine.must_move().context(restriction)?;
    }

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

    sidestep(&["disable", "--restart", "echo"])?;
    ensure!(machine.run(&["test", "!", "-e", &drop_in]).is_ok(), "the drop-in is still there");
    let said = sidestep(&["status"])?;
    ensure!(said.contains("no service is enabled"), "{said}");
    Ok(format!("under {} restrictions, by each and by all", RESTRICTIONS.len()))
}

impl Machine {
    /// A server at all addresses, as a service of user 65534.
    fn write_service(&self, restrictions: &[&str]) -> Result<()> {
        let unit = format!(
            "[Service]\nUser=nobody\nExecStart=/usr/bin/python3 {SCRIPTS}/distant.py server 0.0.0.0 {PORT}\n{}\n",
            restrictions.join("\n")
        );
        let path = format!("/run/systemd/system/{SERVICE}");
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
