//! `sidestep enable --all-of-user NAME`: all services of a user, those of the system and the user's own.
//!
//! A service of the system has `User=NAME`, and is enabled as any other. The user's own (`systemctl --user`) are started by a
//! manager of the user's. It could have the library in its environment and pass that on; then it, its generators and all that PAM
//! starts would have it too. So the library is given to *services* only, by a drop-in for that type of unit in the user's own directory:
//!
//! ```text
//!   ~/.config/systemd/user/service.d/50-sidestep.conf
//! ```
//!
//! `systemctl --user cat UNIT` shows it, and a unit's own `Environment=` goes before. As the directory is the user's, no other user
//! writes there: root becomes that user first.

use std::collections::{BTreeSet, HashMap};
use std::env;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::User;
use rustix::process::getuid;

use super::drop_in::DropIn;
use super::unit::systemctl;
use crate::commands::run;
use crate::library;

/// The users of whom the system itself has services; `systemd-journald` and the like are among them.
const ROOT: u32 = 0;

/// A user of this system.
pub(super) struct Account {
    pub(super) name: String,
    uid: u32,
    gid: u32,
    home: PathBuf,
}

impl Account {
    /// By name.
    ///
    /// # Errors
    ///
    /// There is none, it is root, or another one than may be asked for.
    pub(super) fn find(name: &str) -> Result<Self, String> {
        let found = User::from_name(name).map_err(|error| format!("{name}: {error}"))?;
        let found = found.ok_or_else(|| {
            format!("{name}: no such user; `getent passwd` lists those that are there")
        })?;
        let account = Self::of(found);
        if account.uid == ROOT {
            return Err("root's services are those of the system itself: name the units".to_owned());
        }
        match account.is_asking() || getuid().is_root() {
            true => Ok(account),
            false => Err(format!("services of {name} need root or {name}: sudo sidestep …")),
        }
    }

    /// Those for whom a manager runs.
    pub(super) fn with_managers() -> Vec<Self> {
        let directories = fs::read_dir("/run/user").into_iter().flatten().flatten();
        let numbers = directories.filter_map(|it| it.file_name().to_str()?.parse().ok());
        let mut uids: Vec<u32> = numbers.collect();
        uids.sort_unstable();
        let users = uids.into_iter().filter_map(|uid| User::from_uid(uid.into()).ok().flatten());
        users.map(Self::of).collect()
    }

    fn of(user: User) -> Self {
        Self { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw(), home: user.dir }
    }

    /// Whether a unit means this user, by name or number.
    pub(super) fn is_called(&self, user: &str) -> bool {
        user == self.name || user.parse() == Ok(self.uid)
    }

    pub(super) fn is_asking(&self) -> bool {
        getuid().as_raw() == self.uid
    }

    /// The services of the system that run as this user, those that do not run now included; instances of templates only if
    /// they are loaded.
    ///
    /// # Errors
    ///
    /// systemd cannot be asked.
    pub(super) fn units(&self) -> Result<Vec<String>, String> {
        let list = |verb: &str| {
            systemctl(&[verb, "--type=service", "--all", "--no-legend", "--no-pager", "--plain"])
        };
        let listed = list("list-units")? + &list("list-unit-files")?;
        let names: BTreeSet<&str> = listed.lines().filter_map(nameable).collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let asked = ["show", "--property", "Id,User,LoadState", "--"];
        let shown = systemctl(&asked.into_iter().chain(names).collect::<Vec<_>>())?;
        Ok(self.units_among(&shown))
    }

    /// The units in what systemd shows, a paragraph for each.
    fn units_among(&self, shown: &str) -> Vec<String> {
        let units: BTreeSet<&str> = shown
            .split("\n\n")
            .filter_map(|unit| {
                let fields: HashMap<&str, &str> =
                    unit.lines().filter_map(|line| line.split_once('=')).collect();
                let is_own = fields.get("User").is_some_and(|user| self.is_called(user));
                let is_loaded = fields.get("LoadState") == Some(&"loaded");
                let id = *fields.get("Id")?;
                // The user's manager is none of the services, and passes on what it is given.
                (is_own && is_loaded && !id.starts_with("user@")).then_some(id)
            })
            .collect();
        units.into_iter().map(str::to_owned).collect()
    }

    /// Whether systemd runs services of this user's own, or will.
    pub(super) fn has_manager(&self) -> bool {
        let places = [
            format!("/run/user/{}/systemd", self.uid).into(),
            Path::new("/var/lib/systemd/linger").join(&self.name),
            self.home.join(".config/systemd/user"),
        ];
        places.iter().any(|place| place.exists())
    }

    /// The drop-in of the user's own services.
    pub(super) fn drop_in(&self) -> DropIn {
        DropIn::of_own_services(&self.home)
    }

    /// Writes it, as the user that asks.
    ///
    /// # Errors
    ///
    /// The reason, and what to do about it.
    pub(super) fn enable_own(&self) -> Result<(), String> {
        let library = library::find().map_err(|error| format!("{error}; {}", error.advice()))?;
        // Whether a unit has a filter is not known here, so none is trusted: under one, connections stay on TCP.
        let variables = run::variables_for_service(false).map_err(|error| error.to_string())?;
        self.drop_in().write(&library, None, &variables)?;
        reload_own()
    }

    /// Takes it away, as the user that asks.
    ///
    /// # Errors
    ///
    /// The reason, and what to do about it.
    pub(super) fn disable_own(&self) -> Result<(), String> {
        self.drop_in().remove()?;
        reload_own()
    }

    /// Has `sidestep COMMAND --all-of-user NAME` run as this user, for the user's own services only.
    ///
    /// # Errors
    ///
    /// It cannot be started; it has said what else is wrong.
    pub(super) fn become_and(&self, command: &str) -> Result<bool, String> {
        let failed = |error| format!("cannot run sidestep as {}: {error}", self.name);
        let mut own = Command::new(env::current_exe().map_err(failed)?);
        own.args([command, "--all-of-user", &self.name]).uid(self.uid).gid(self.gid);
        own.env("HOME", &self.home).env("XDG_RUNTIME_DIR", format!("/run/user/{}", self.uid));
        own.env_remove("XDG_CONFIG_HOME").env_remove("DBUS_SESSION_BUS_ADDRESS");
        own.current_dir("/").stdin(Stdio::null());
        own.status().map(|status| status.success()).map_err(failed)
    }
}

/// A manager that does not run reads its units when it starts.
fn reload_own() -> Result<(), String> {
    let directory = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match directory.is_some_and(|it| it.join("systemd").exists()) {
        true => systemctl(&["--user", "daemon-reload"]).map(drop),
        false => Ok(()),
    }
}

/// The unit of a line, unless it is a template, of which only instances run.
fn nameable(line: &str) -> Option<&str> {
    let name = line.split_whitespace().next()?;
    (name.ends_with(".service") && !name.ends_with("@.service")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Account {
        Account { name: "ann".to_owned(), uid: 1000, gid: 1000, home: "/nowhere".into() }
    }

    #[test]
    fn services_of_the_user_are_found_by_name_and_number() {
        let shown = "Id=a.service\nUser=ann\nLoadState=loaded\n\nId=b.service\nUser=1000\nLoadState=loaded\n\n\
                     Id=b.service\nUser=1000\nLoadState=loaded\n\nId=c.service\nUser=bob\nLoadState=loaded\n\n\
                     Id=d.service\nUser=ann\nLoadState=masked\n\nId=user@1000.service\nUser=1000\nLoadState=loaded\n\n\
                     Id=e.service\nUser=\nLoadState=loaded\n";
        assert_eq!(account().units_among(shown), ["a.service", "b.service"]);
    }

    #[test]
    fn templates_cannot_be_asked_about() {
        assert_eq!(nameable("a@.service enabled enabled"), None);
        assert_eq!(nameable("a@1.service loaded active running A"), Some("a@1.service"));
        assert_eq!(nameable(""), None);
    }

    #[test]
    fn who_is_not_there_and_root_are_refused() {
        let error = |name| Account::find(name).err().unwrap();
        assert!(error("nobody-of-this-name").contains("no such user"));
        assert!(error("root").contains("name the units"));
    }
}
