//! What systemd knows of a unit, asked by `systemctl show`.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use procfs::process::Process;
use thiserror::Error;

use super::hardening::Hardening;
use super::view::View;
use crate::accounts;

/// What is asked.
const PROPERTIES: &str = "Id,LoadState,ActiveState,MainPID,User,DynamicUser,Environment,ExecStart,SystemCallFilter,\
                          RestrictAddressFamilies,MemoryDenyWriteExecute,RestrictRealtime,RestrictNamespaces,\
                          RestrictSUIDSGID,LockPersonality,ProtectClock,ProtectHostname,ProtectKernelLogs,\
                          ProtectKernelModules,ProtectKernelTunables,SystemCallLog,PrivateDevices,SystemCallArchitectures,PrivateNetwork,NoExecPaths,\
                          ExecPaths,ProtectHome,PrivateTmp,InaccessiblePaths,TemporaryFileSystem,BindPaths,\
                          BindReadOnlyPaths,RootDirectory,RootImage";

/// Why a unit cannot be enabled or shown.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum UnitError {
    #[error("systemctl cannot be asked: {0}; without systemd, start the program by `sidestep run`")]
    NoSystemd(String),
    #[error("{0}: only services run programs; name the service that it starts")]
    NoService(String),
    #[error(
        "{0}: no such unit; `systemctl list-unit-files --type=service` lists those that are there"
    )]
    NotFound(String),
    #[error("{0}: it is masked, so it never starts; first: systemctl unmask {0}")]
    Masked(String),
    #[error("{unit}: systemd cannot read it ({state}); see: systemctl status {unit}")]
    Broken { unit: String, state: String },
    #[error("{0}: it starts no program")]
    NoProgram(String),
}

/// A service.
#[derive(Debug)]
pub(super) struct Unit {
    /// With its suffix.
    pub(super) name: String,
    pub(super) active_state: String,
    main_pid: u32,
    /// `User=`; `root` where the unit says none.
    pub(super) user: String,
    pub(super) is_dynamic_user: bool,
    /// What it starts.
    pub(super) program: PathBuf,
    /// `LD_PRELOAD` of the unit itself, without a library of ours.
    pub(super) preload: Option<String>,
    pub(super) hardening: Hardening,
    pub(super) view: View,
}

impl Unit {
    /// Asks systemd.
    ///
    /// # Errors
    ///
    /// See [`UnitError`].
    pub(super) fn load(name: &str) -> Result<Self, UnitError> {
        let name = with_suffix(name)?;
        let said = systemctl(&["show", "--property", PROPERTIES, "--", &name])
            .map_err(UnitError::NoSystemd)?;
        Self::parse(&name, &said)
    }

    fn parse(name: &str, said: &str) -> Result<Self, UnitError> {
        let fields: HashMap<&str, &str> =
            said.lines().filter_map(|line| line.split_once('=')).collect();
        let field = |name: &str| fields.get(name).copied().unwrap_or_default();
        match field("LoadState") {
            "loaded" => {}
            "not-found" => return Err(UnitError::NotFound(name.to_owned())),
            "masked" => return Err(UnitError::Masked(name.to_owned())),
            state => {
                return Err(UnitError::Broken { unit: name.to_owned(), state: state.to_owned() });
            }
        }
        let program =
            program_of(field("ExecStart")).ok_or_else(|| UnitError::NoProgram(name.to_owned()))?;
        let user = Some(field("User")).filter(|user| !user.is_empty()).unwrap_or("root");
        Ok(Self {
            name: name.to_owned(),
            active_state: field("ActiveState").to_owned(),
            main_pid: field("MainPID").parse().unwrap_or(0),
            user: user.to_owned(),
            is_dynamic_user: field("DynamicUser") == "yes",
            program,
            preload: preload_of(field("Environment")),
            hardening: Hardening::of(&fields),
            view: View::of(&fields),
        })
    }

    pub(super) fn is_running(&self) -> bool {
        self.main_pid != 0
    }

    /// The users whose connections it makes and accepts, by name or, without one, number. While it runs these are the users of its
    /// processes, as many a program begins as root and goes on as another user; one of them is root only if all are.
    pub(super) fn users(&self) -> BTreeSet<String> {
        let pids = if self.is_running() { self.pids() } else { Vec::new() };
        users_among(pids.into_iter().filter_map(user_of), &self.user)
    }

    /// Those of them that a configuration can name.
    pub(super) fn lasting_users(&self) -> BTreeSet<String> {
        let users = self.users().into_iter();
        users.filter(|user| !self.is_dynamic_user && user.parse::<u32>().is_err()).collect()
    }

    /// Its processes: the first one, and those of its control group.
    pub(super) fn pids(&self) -> Vec<u32> {
        let group = fs::read_to_string(format!("/proc/{}/cgroup", self.main_pid));
        let path = group.ok().and_then(|text| {
            text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
        });
        let members = path
            .and_then(|path| fs::read_to_string(format!("/sys/fs/cgroup{path}/cgroup.procs")).ok());
        let members = members.unwrap_or_default();
        let members = members.lines().filter_map(|line| line.parse().ok());
        let mut pids: Vec<u32> = std::iter::once(self.main_pid).chain(members).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// With which library its first process runs.
    pub(super) fn library(&self) -> Loaded {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.main_pid)).unwrap_or_default();
        maps.lines().find_map(library_of).unwrap_or(Loaded::None)
    }

    pub(super) fn has_library(&self) -> bool {
        self.library() != Loaded::None
    }
}

/// The library of a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Loaded {
    None,
    Of(PathBuf),
    /// The file was replaced or removed since.
    Replaced,
}

/// The library, if the line is of its code: one that may not be run is mapped as well, as the loader leaves what it has read.
fn library_of(line: &str) -> Option<Loaded> {
    const NAME: &str = "/libsidestep.so";
    let permissions = line.split(' ').nth(1)?;
    let path = &line[line.find('/')?..];
    match path.strip_suffix(" (deleted)") {
        _ if !permissions.contains('x') => None,
        Some(path) if path.ends_with(NAME) => Some(Loaded::Replaced),
        None if path.ends_with(NAME) => Some(Loaded::Of(path.into())),
        _ => None,
    }
}

/// The user that a process acts as.
fn user_of(pid: u32) -> Option<u32> {
    Some(Process::new(pid.cast_signed()).ok()?.status().ok()?.euid)
}

/// The names of users that processes have; of `User=` if there are no processes.
fn users_among(uids: impl Iterator<Item = u32>, of_unit: &str) -> BTreeSet<String> {
    const ROOT: u32 = 0;
    let mut uids: BTreeSet<u32> = uids.collect();
    if uids.len() > 1 {
        uids.remove(&ROOT);
    }
    if uids.is_empty() {
        return BTreeSet::from([of_unit.to_owned()]);
    }
    let name = |uid| accounts::known_name_of(uid).unwrap_or_else(|| uid.to_string());
    uids.into_iter().map(name).collect()
}

pub(super) fn with_suffix(name: &str) -> Result<String, UnitError> {
    const OTHER_KINDS: [&str; 10] = [
        "socket",
        "timer",
        "path",
        "target",
        "mount",
        "automount",
        "swap",
        "slice",
        "scope",
        "device",
    ];
    match name.rsplit_once('.') {
        Some((_, "service")) => Ok(name.to_owned()),
        Some((_, kind)) if OTHER_KINDS.contains(&kind) => {
            Err(UnitError::NoService(name.to_owned()))
        }
        _ => Ok(format!("{name}.service")),
    }
}

/// `{ path=/usr/bin/redis-server ; argv[]=… }`, as systemd shows a command.
fn program_of(command: &str) -> Option<PathBuf> {
    let path = command.strip_prefix("{ path=")?.split(" ; ").next()?;
    (!path.is_empty()).then(|| PathBuf::from(path))
}

/// The libraries that the unit preloads by itself.
fn preload_of(environment: &str) -> Option<String> {
    let value = environment
        .split(' ')
        .find_map(|entry| entry.trim_matches('"').strip_prefix("LD_PRELOAD="))?;
    let others: Vec<&str> =
        value.split(':').filter(|entry| !entry.ends_with("/libsidestep.so")).collect();
    let others = others.join(":");
    (!others.is_empty()).then_some(others)
}

/// What `systemctl` prints.
///
/// # Errors
///
/// It cannot be started, or what it says.
pub(in crate::commands) fn systemctl(arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new("systemctl").args(arguments).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("systemctl {}: {}", arguments[0], errors.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDIS: &str = "Id=redis-server.service\nLoadState=loaded\nActiveState=active\nMainPID=77\nUser=redis\n\
                         DynamicUser=no\nEnvironment=LANG=C LD_PRELOAD=/usr/lib/libjemalloc.so.2:/usr/lib/sidestep/libsidestep.so\n\
                         ExecStart={ path=/usr/bin/redis-server ; argv[]=/usr/bin/redis-server /etc/redis.conf ; pid=77 }\n";

    #[test]
    fn a_service_is_told_by_its_properties() {
        let unit = Unit::parse("redis-server.service", REDIS).unwrap();
        assert_eq!(unit.program, PathBuf::from("/usr/bin/redis-server"));
        assert_eq!((unit.user.as_str(), unit.is_running()), ("redis", true));
        assert_eq!(unit.preload.as_deref(), Some("/usr/lib/libjemalloc.so.2"));
    }

    #[test]
    fn a_service_without_a_user_is_roots() {
        let said = REDIS.replace("User=redis", "User=").replace("MainPID=77", "MainPID=0");
        let unit = Unit::parse("a.service", &said).unwrap();
        assert_eq!((unit.user.as_str(), unit.is_running()), ("root", false));
    }

    #[test]
    fn users_are_those_of_processes_and_root_only_where_it_is_alone() {
        let users = |uids: &[u32]| {
            let users = users_among(uids.iter().copied(), "redis");
            users.into_iter().collect::<Vec<_>>().join(" ")
        };
        let me = accounts::known_name_of(1).unwrap();
        assert_eq!([users(&[]), users(&[0, 0]), users(&[0, 1, 1])], ["redis", "root", &me]);
        assert_eq!(users(&[4_000_000_000]), "4000000000");
        let own = user_of(std::process::id());
        assert_eq!(own, Some(rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn a_library_is_had_if_its_code_is() {
        let of = |permissions: &str, path: &str| {
            library_of(&format!("7f9-7fa {permissions} 0004c000 fe:00 9       {path}"))
        };
        let library = "/l m/libsidestep.so";
        assert_eq!(of("r-xp", library), Some(Loaded::Of(library.into())));
        assert_eq!(of("r-xp", &format!("{library} (deleted)")), Some(Loaded::Replaced));
        assert_eq!([of("r--p", library), of("r-xp", "/lib/libc.so.6")], [None, None]);
        assert_eq!(library_of("7f9-7fa rw-p 0004c000 00:00 0"), None);
    }

    #[test]
    fn what_cannot_be_enabled_is_said() {
        let error = |said: &str| Unit::parse("a.service", said).unwrap_err();
        assert_eq!(error("LoadState=not-found\n"), UnitError::NotFound("a.service".into()));
        assert_eq!(error("LoadState=masked\n"), UnitError::Masked("a.service".into()));
        assert_eq!(
            error("LoadState=loaded\nExecStart=\n"),
            UnitError::NoProgram("a.service".into())
        );
        let broken = UnitError::Broken { unit: "a.service".into(), state: "bad-setting".into() };
        assert_eq!(error("LoadState=bad-setting\n"), broken);
    }

    #[test]
    fn names_without_a_suffix_are_services() {
        assert_eq!(with_suffix("postgresql@15-main").unwrap(), "postgresql@15-main.service");
        assert_eq!(with_suffix("a.b").unwrap(), "a.b.service");
        assert_eq!(with_suffix("ssh.socket"), Err(UnitError::NoService("ssh.socket".into())));
    }
}
