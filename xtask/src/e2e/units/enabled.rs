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
const RESTRICTIONS: [&str; 28] = [
    "MemoryDenyWriteExecute=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "PrivateUsers=yes",
    "PrivateIPC=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged @resources @mount @debug",
    "SystemCallErrorNumber=EPERM",
    "SystemCallArchitectures=native",
    "ProtectProc=invisible",
    "ProcSubset=pid",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "ProtectClock=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "RemoveIPC=yes",
    "NoExecPaths=/\nExecPaths=/usr /lib /lib64",
];

/// What keeps a service from being enabled, and what is said of it.
const OBSTACLES: [(&str, &str); 7] = [
    ("RestrictAddressFamilies=AF_INET", "forbids AF_UNIX"),
    ("SystemCallFilter=~memfd_create", "can add: SystemCallFilter=memfd_create"),
    (
        "NoExecPaths=/\nExecPaths=/usr/bin /usr/lib /lib",
        "can add: ExecPaths=/usr/local/lib/sidestep",
    ),
    ("InaccessiblePaths=/usr/local", "InaccessiblePaths= hides /usr/local/lib/sidestep"),
    ("TemporaryFileSystem=/usr/local", "can add: BindReadOnlyPaths=/usr/local/lib/sidestep"),
    ("RootDirectory=/srv", "has a root directory of its own"),
    // A static program that each machine has.
    ("ExecStart=\nExecStart=/sbin/ldconfig", "/sbin/ldconfig would stay on TCP"),
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
        let said = sidestep(&["enable", "--restart", "echo"]).context(restriction)?;
        ensure!(said.contains(&moved("nobody")), "{restriction}: {said}");
    }

    machine.write_service(&[])?;
    machine.share_between_users()?;
    machine.have_networks_and_users_of_their_own()?;

    for (restriction, words) in OBSTACLES {
        machine.must_refuse(restriction, words)?;
    }
    machine.write_service(&[])?;
    for (unit, words) in
        [("nothing-of-this-name", "no such unit"), ("ssh.socket", "only services run programs")]
    {
        let refused = machine.refused(&["enable", unit])?;
        ensure!(refused.contains(words), "{refused}");
    }

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

    machine.tells_two_libraries_apart()?;
    machine.leaves_what_it_cannot_change()?;
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
        let enable = ["enable", "--restart", "echo", OTHER];
        let said = self.enter_and_ask(&enable)?;
        ensure!(said.contains("daemon with nobody was added to share.pairs"), "{said}");
        for user in ["nobody", "daemon"] {
            ensure!(said.contains(&moved(user)), "{said}");
        }
        // A user namespace in which the other user has no number.
        self.write_unit(OTHER, "daemon", OTHER_PORT, "PrivateUsers=yes")?;
        self.run(&["systemctl", "start", OTHER])?;
        let said = self.enter_and_ask(&["enable", "--restart", OTHER])?;
        let moved = format!("a connection of nobody to 127.0.0.1:{OTHER_PORT} has moved");
        ensure!(said.contains(&moved), "PrivateUsers=: {said}");
        self.run(&["systemctl", "stop", AGENT, OTHER])?;
        Ok(())
    }

    /// `PrivateNetwork=` and `DynamicUser=`: enabled, and what is in the same network or of the same user moves.
    fn have_networks_and_users_of_their_own(&self) -> Result<()> {
        self.write_service(&["PrivateNetwork=yes"])?;
        let said = self.run(&["sidestep", "enable", "--restart", "echo"])?;
        ensure!(said.contains("connections to other services need `sidestep agent`"), "{said}");
        ensure!(said.contains("it has a network of its own, so no connection was tried"), "{said}");
        let unit = self.unit(SERVICE)?;
        let net = format!("--net=/proc/{}/ns/net", unit.main_pid);
        let talk = format!("ip link set lo up && {}", self.talk("127.0.0.1", "2 100"));
        self.run(&["nsenter", &net, "sh", "-c", &talk])?;
        ensure!(self.moved_connections_of_server()? > 0, "no connection moves: PrivateNetwork=");

        self.write_unit(SERVICE, "", PORT, "DynamicUser=yes")?;
        let said = self.run(&["sidestep", "enable", "--restart", "echo"])?;
        ensure!(said.contains("it shares memory with itself only"), "{said}");
        let is_it =
            |line: &str| line.ends_with(&format!("127.0.0.1:{PORT} has moved to shared memory"));
        ensure!(said.lines().any(is_it), "{said}");
        Ok(())
    }

    /// Two versions are installed, and one is replaced while a service runs with it.
    fn tells_two_libraries_apart(&self) -> Result<()> {
        let enable = "mkdir -p /srv/other && cp /usr/local/lib/sidestep/libsidestep.so /srv/other && \
                      SIDESTEP_LIBRARY=/srv/other/libsidestep.so sidestep enable --restart echo";
        self.run(&["sh", "-c", enable])?;
        let status = || self.run(&["sidestep", "status"]);
        let two = "is given /srv/other/libsidestep.so, and this sidestep has /usr/local/lib/sidestep/libsidestep.so";
        ensure!(status()?.contains(two), "{}", status()?);
        self.run(&["sidestep", "enable", "echo"])?;
        ensure!(status()?.contains("runs with /srv/other/libsidestep.so until"), "{}", status()?);
        self.run(&["rm", "/srv/other/libsidestep.so"])?;
        ensure!(status()?.contains("library that was replaced since, until"), "{}", status()?);
        self.run(&["sidestep", "enable", "--restart", "echo"])?;
        ensure!(!status()?.contains("library"), "{}", status()?);
        Ok(())
    }

    /// `/etc` cannot be written, and a unit is masked: that is said, and what runs goes on.
    fn leaves_what_it_cannot_change(&self) -> Result<()> {
        let before = self.unit(SERVICE)?;
        self.run(&["sh", "-c", "mount --bind /etc /etc && mount -o remount,ro,bind /etc"])?;
        for words in [&["enable", OTHER][..], &["disable", "echo"]] {
            let refused = self.refused(words)?;
            ensure!(refused.contains("/etc is read-only here"), "{words:?}: {refused}");
        }
        self.run(&["umount", "/etc"])?;
        self.run(&["systemctl", "mask", "--runtime", "masked.service"])?;
        let refused = self.refused(&["enable", "--restart", "masked"])?;
        ensure!(refused.contains("first: systemctl unmask masked.service"), "{refused}");
        let after = self.unit(SERVICE)?;
        ensure!(after.is_active() && after.main_pid == before.main_pid, "{SERVICE}: {after:?}");
        Ok(())
    }

    /// What `sidestep` says, begun where the agent has attached its programs.
    pub(super) fn enter_and_ask(&self, words: &[&str]) -> Result<String> {
        self.run(&[&["sh", "-c", ENTER, "sh", "sidestep"], words].concat())
    }

    /// What `sidestep` says that it does not do, and why.
    fn refused(&self, words: &[&str]) -> Result<String> {
        self.be_refused(&[], words)
    }

    /// The same, begun where the agent has attached its programs.
    pub(super) fn enter_and_be_refused(&self, words: &[&str]) -> Result<String> {
        self.be_refused(&["sh", "-c", ENTER, "sh"], words)
    }

    fn be_refused(&self, by: &[&str], words: &[&str]) -> Result<String> {
        let script = "sidestep \"$@\" 2>&1 && echo 'it was done'; true";
        let said = self.run(&[by, &["sh", "-c", script, "sh"], words].concat())?;
        ensure!(!said.contains("it was done"), "{words:?} was done: {said}");
        Ok(said)
    }

    /// An echo server as a service of a user.
    pub(super) fn write_unit(&self, name: &str, user: &str, port: &str, more: &str) -> Result<()> {
        let unit = format!(
            "[Service]\nUser={user}\nExecStart=/usr/bin/python3 {SCRIPTS}/distant.py server 0.0.0.0 {port}\n{more}\n"
        );
        self.write(&format!("/run/systemd/system/{name}"), &unit)?;
        self.run(&["systemctl", "daemon-reload"])?;
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

    /// It cannot be enabled with this restriction, for a reason with these words.
    fn must_refuse(&self, restriction: &str, words: &str) -> Result<()> {
        self.write_service(&[restriction])?;
        let said = self.refused(&["enable", "echo"])?;
        ensure!(said.contains(words), "{restriction}: {said}");
        Ok(())
    }
}
