//! `sidestep enable --all-of-user`: a user with a session, a manager of its own (`user@UID.service`) and services of both kinds.
//!
//! ```text
//!   systemd ──┬── echo.service, User=ann                 the library, by a drop-in of the unit
//!             ├── user@UID.service                       without
//!             │     ├── own.service, later.service       the library, by one drop-in for all
//!             │     └── hardened.service                 the library, which stays on TCP
//!             └── session of ann                         without
//! ```

use anyhow::{Context, Result, bail, ensure};

use super::super::stage::Stage;
use super::machine::{Machine, PORT, SCRIPTS, Unit};
use crate::suite::Lacking;

const USER: &str = "ann";
const SERVICE: &str = "echo.service";
const HOME: &str = "/home/ann";
const DROP_IN: &str = "/home/ann/.config/systemd/user/service.d/50-sidestep.conf";
/// Services of the user's own, their ports, and whether their connections move.
const OWN: [(&str, &str, &str, bool); 3] = [
    ("own", "7001", "", true),
    ("later", "7002", "", true),
    ("hardened", "7003", "SystemCallFilter=@system-service\nNoNewPrivileges=yes\n", false),
];

pub(crate) fn of_user(stage: &Stage<'_>) -> Result<String> {
    let machine = Machine::boot(stage)?;
    machine.have_user()?;
    let enable = ["sidestep", "enable", "--all-of-user", USER];
    machine.write_unit(SERVICE, USER, PORT, "")?;
    for (name, port, more, _) in OWN.iter().filter(|(name, ..)| *name != "later") {
        machine.write_own(name, port, more)?;
    }
    machine.run(&["systemctl", "start", SERVICE])?;
    machine.in_session("systemctl --user daemon-reload && systemctl --user start own hardened")?;

    let said = machine.run(&enable)?;
    for line in [
        "echo.service: enabled",
        "runs as before until: systemctl restart echo.service",
        "own services of ann: enabled",
        "those that run do so as before until: systemctl --user restart UNIT",
    ] {
        ensure!(said.contains(line), "{said}");
    }
    ensure!(machine.run(&["stat", "--format=%U", DROP_IN])?.trim() == USER, "of another user");
    // The manager has read it: nothing but a restart is needed.
    machine.in_session("systemctl --user restart own hardened")?;
    let said = machine.run(&[&enable[..], &["--restart"]].concat())?;
    let moved = format!("a connection of {USER} to 127.0.0.1:{PORT} has moved");
    ensure!(said.contains(&moved), "{said}");
    // One that comes after it is covered.
    let (later, port, more, _) = OWN[1];
    machine.write_own(later, port, more)?;
    machine.in_session("systemctl --user daemon-reload && systemctl --user start later")?;
    for (name, port, _, moves) in OWN {
        machine.must_talk(port, moves).with_context(|| name.to_owned())?;
    }
    machine.keeps_library_from_others()?;
    let status = machine.run(&["sidestep", "status"])?;
    ensure!(status.contains("own services of ann"), "{status}");

    // The user alone takes away the own ones, and leaves those of the system.
    let said = machine.in_session("sidestep disable --all-of-user ann 2>&1")?;
    ensure!(said.contains("own services of ann: disabled"), "{said}");
    ensure!(!said.contains("echo.service"), "{said}");
    machine.in_session("systemctl --user restart own")?;
    machine.must_have_library("own", false)?;
    let refused = machine.in_session("sidestep enable --all-of-user nobody 2>&1 || true")?;
    ensure!(refused.contains("need root or nobody"), "{refused}");
    machine.begins_again()?;
    let said = machine.run(&["sidestep", "disable", "--restart", "--all-of-user", USER])?;
    for line in ["echo.service: disabled", "own services of ann: disabled"] {
        ensure!(said.contains(line), "{said}");
    }
    let status = machine.run(&["sidestep", "status"])?;
    ensure!(status.contains("no service is enabled"), "{status}");
    Ok("a service of the system, three of the user's own, a session".to_owned())
}

impl Machine {
    /// A user that lingers: the manager runs without a session.
    fn have_user(&self) -> Result<()> {
        self.have_pam()?;
        self.run(&["useradd", "--create-home", "--user-group", "--shell", "/bin/sh", USER])?;
        if let Err(error) = self.run(&["loginctl", "enable-linger", USER]) {
            bail!(Lacking(format!("no users log in to a container here: {error:#}")));
        }
        let manager = format!("user@{}.service", self.uid()?);
        self.await_unit(&manager, Unit::is_active)?;
        Ok(())
    }

    fn uid(&self) -> Result<String> {
        Ok(self.run(&["id", "--user", USER])?.trim().to_owned())
    }

    /// An echo server as a service of the user's own manager.
    fn write_own(&self, name: &str, port: &str, more: &str) -> Result<()> {
        let path = format!("{HOME}/.config/systemd/user/{name}.service");
        let unit = format!(
            "[Service]\nExecStart=/usr/bin/python3 {SCRIPTS}/distant.py server 0.0.0.0 {port}\n{more}"
        );
        self.write(&path, &unit)?;
        self.run(&["chown", "--recursive", USER, &format!("{HOME}/.config")])?;
        Ok(())
    }

    /// What a shell says that the user has logged in to.
    fn in_session(&self, script: &str) -> Result<String> {
        self.run(&["su", "--login", USER, "--command", script])
    }

    /// A client of the user talks to a server, and their connections move or do not.
    fn must_talk(&self, port: &str, moves: bool) -> Result<()> {
        let script = format!(
            "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))'; do :; done 2> /dev/null; \
             echo '2 100' | sidestep run --promotion early -- python3 {SCRIPTS}/distant.py client 127.0.0.1 {port} {}",
            self.seed()
        );
        let said = self.in_session(&script)?;
        ensure!(said.contains("verified"), "{said}");
        let why = self.run(&["sidestep", "why", &format!(":{port}")])?;
        let (wanted, other) = ("SMC-D: python3", "filter of system calls");
        let (wanted, other) = if moves { (wanted, other) } else { (other, wanted) };
        ensure!(why.contains(wanted) && !why.contains(other), "{why}");
        Ok(())
    }

    /// Neither the manager has the library nor what a session begins.
    fn keeps_library_from_others(&self) -> Result<()> {
        for (name, has) in [("own", true), ("hardened", true)] {
            self.must_have_library(name, has)?;
        }
        let manager = self.unit(&format!("user@{}.service", self.uid()?))?;
        for maps in [
            self.run(&["cat", &format!("/proc/{}/maps", manager.main_pid)])?,
            self.in_session("cat /proc/self/maps")?,
        ] {
            ensure!(!maps.contains("libsidestep.so"), "what is no service has the library: {maps}");
        }
        Ok(())
    }

    fn must_have_library(&self, own: &str, has: bool) -> Result<()> {
        let script =
            format!("cat /proc/$(systemctl --user show --value --property MainPID {own})/maps");
        let maps = self.in_session(&script)?;
        ensure!(maps.contains("libsidestep.so") == has, "{own}: {maps}");
        Ok(())
    }

    /// Enabled while the user's manager does not run: it reads the drop-in when it starts.
    fn begins_again(&self) -> Result<()> {
        let manager = format!("user@{}.service", self.uid()?);
        self.run(&["systemctl", "stop", &manager])?;
        let said = self.run(&["sidestep", "enable", "--all-of-user", USER])?;
        ensure!(said.contains("own services of ann: enabled"), "{said}");
        self.run(&["systemctl", "start", &manager])?;
        self.in_session("systemctl --user start own")?;
        self.must_have_library("own", true)
    }
}
