//! `sidestep enable`, `disable`, `status`: services of systemd whose programs run under Sidestep.
//!
//! ```text
//!   enable ──> unit.rs      what systemd knows of the unit: is it there, which program, which user
//!          ──> hardening.rs what its restrictions forbid the library
//!          ──> view.rs      whether it sees the library
//!          ──> drop_in.rs   /etc/systemd/system/UNIT.d/50-sidestep.conf: LD_PRELOAD and the options
//!          ──> sharing.rs   share.pairs of the machine, when services of several users are enabled; without an agent
//!                           policy.share_with_users
//!          ──> systemctl daemon-reload; restart only if told
//!          ──> trial.rs     after a restart: do connections move?
//! ```
//!
//! A drop-in is all that is left in the system. A service whose drop-in names a library that is gone starts as
//! ever: the loader says so and goes on.

mod containers;
mod drop_in;
mod hardening;
mod of_user;
mod sharing;
mod trial;
mod unit;
mod view;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde::Serialize;

use super::{agent_line, run};
use crate::args::{ServiceArgs, ServiceStatusArgs};
use crate::library;
use crate::output;
use crate::preloadable::{self, Caller};
use drop_in::{DropIn, NOT_ENABLED};
use of_user::Account;
use sharing::{Key, Sharing};
pub(super) use trial::execute as call;
use trial::{Shown, Trial};
pub(super) use unit::systemctl;
use unit::{Loaded, Unit};

/// How long a service that was restarted may take to begin its program.
const BEGINNING: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Enables what the arguments name; 1 if one of it could not be.
pub(crate) fn enable(args: &ServiceArgs) -> i32 {
    const ENABLE: Verb = Verb {
        name: "enable",
        unit: enable_one,
        units_of: Account::units,
        has_own: Account::has_manager,
        own: Account::enable_own,
        containers: containers::enable,
    };
    carry_out(&ENABLE, args)
}

/// Takes away what `enable` has written; 1 if one of it could not be.
pub(crate) fn disable(args: &ServiceArgs) -> i32 {
    const DISABLE: Verb = Verb {
        name: "disable",
        unit: disable_one,
        units_of: enabled_units_of,
        has_own: |account| account.drop_in().exists(),
        own: Account::disable_own,
        containers: containers::disable,
    };
    carry_out(&DISABLE, args)
}

/// One of the two commands: what it does to each kind of thing, and returns what else there is to know.
struct Verb {
    name: &'static str,
    unit: fn(&Unit) -> Result<Vec<String>, String>,
    /// The services of the system that are meant by a user.
    units_of: fn(&Account) -> Result<Vec<String>, String>,
    /// Whether a user's own services are meant as well.
    has_own: fn(&Account) -> bool,
    own: fn(&Account) -> Result<(), String>,
    containers: fn() -> Result<Vec<String>, String>,
}

fn carry_out(verb: &Verb, args: &ServiceArgs) -> i32 {
    let outcome = match &args.all_of_user {
        Some(name) => for_user(verb, name, args.restart),
        None if args.container_runtime => for_containers(verb),
        None => Ok(for_units(verb, &args.units, args.restart)),
    };
    let is_whole = outcome.unwrap_or_else(|error| {
        output::complain(verb.name, error);
        false
    });
    i32::from(!is_whole)
}

fn for_containers(verb: &Verb) -> Result<bool, String> {
    let remarks = (verb.containers)()?;
    say_done(verb, "containers of podman", &remarks);
    Ok(true)
}

/// Root does it for the services of the system and, as that user, for the user's own. The user does it for the latter only.
fn for_user(verb: &Verb, name: &str, restart: bool) -> Result<bool, String> {
    let account = Account::find(name)?;
    if account.is_asking() {
        return for_own(verb, &account);
    }
    let (units, has_own) = ((verb.units_of)(&account)?, (verb.has_own)(&account));
    if units.is_empty() && !has_own {
        if verb.name == "disable" {
            say_done(verb, &format!("services of {name}"), &[NOT_ENABLED.to_owned()]);
            return Ok(true);
        }
        return Err(format!(
            "{name} has no services: `systemctl list-units --type=service` lists those of the system, and `loginctl \
             enable-linger {name}` lets {name} have services of its own"
        ));
    }
    let of_system = units.is_empty() || for_units(verb, &units, restart);
    let own = !has_own || account.become_and(verb.name)?;
    Ok(of_system && own)
}

fn for_own(verb: &Verb, account: &Account) -> Result<bool, String> {
    let drop_in = account.drop_in();
    if verb.name == "disable" && !drop_in.exists() {
        say_done(verb, &own_name(account), &[NOT_ENABLED.to_owned()]);
        return Ok(true);
    }
    (verb.own)(account)?;
    let remarks = [
        format!("by {}", drop_in.path().display()),
        "those that run do so as before until: systemctl --user restart UNIT".to_owned(),
    ];
    say_done(verb, &own_name(account), &remarks);
    Ok(true)
}

fn own_name(account: &Account) -> String {
    format!("own services of {}", account.name)
}

fn say_done(verb: &Verb, what: &str, remarks: &[String]) {
    say(&format!("{what}: {}d\n", verb.name));
    remarks.iter().for_each(|remark| say(&format!("  {remark}\n")));
}

/// Does it for each unit, has systemd read the drop-ins, and restarts if that was asked for. False: one is left.
fn for_units(verb: &Verb, names: &[String], restart: bool) -> bool {
    let command = verb.name;
    let (mut done, mut orphans) = (Vec::new(), 0);
    for name in names {
        let outcome = Unit::load(name).map_err(|error| error.to_string()).and_then(|unit| {
            (verb.unit)(&unit)
                .map(|remarks| (unit, remarks))
                .map_err(|error| format!("{name}: {error}"))
        });
        match outcome {
            Ok((unit, remarks)) => {
                say_done(verb, &unit.name, &remarks);
                done.push(unit);
            }
            Err(_) if command == "disable" && is_orphan_removed(name) => {
                say_done(verb, name, &["systemd does not know it any more".to_owned()]);
                orphans += 1;
            }
            Err(error) => output::complain(command, error),
        }
    }
    let mut is_whole = done.len() + orphans == names.len();
    if !done.is_empty()
        && let Err(error) = systemctl(&["daemon-reload"])
    {
        output::complain(command, error);
        return false;
    }
    for unit in &done {
        match (unit.is_running(), restart) {
            (true, true) => {
                is_whole &= restarted(command, unit) && (command != "enable" || tried(unit));
            }
            (true, false) => say(&format!(
                "{}: runs as before until: systemctl restart {}\n",
                unit.name, unit.name
            )),
            (false, true) => {
                say(&format!("{}: is {}, and was not started\n", unit.name, unit.active_state))
            }
            (false, false) => {}
        }
    }
    is_whole
}

/// Removes the drop-in of a unit that has been uninstalled since it was enabled.
fn is_orphan_removed(name: &str) -> bool {
    let drop_in = unit::with_suffix(name).map(|name| DropIn::of(&name));
    drop_in.is_ok_and(|it| it.exists() && it.remove().is_ok())
}

/// Whether the unit runs again, and as its drop-in says.
fn restarted(command: &str, unit: &Unit) -> bool {
    if let Err(error) = systemctl(&["restart", &unit.name]) {
        output::complain(command, format_args!("{}: {error}; see: journalctl -u {0}", unit.name));
        return false;
    }
    let expected = command == "enable";
    let is_so = runs_soon(unit, expected);
    if !is_so {
        let what =
            if expected { "runs without the library" } else { "still runs with the library" };
        output::complain(command, format_args!("{}: was restarted, and {what}", unit.name));
    }
    is_so
}

/// Makes connections to a unit that runs with the library, as the users of all enabled services, and says what has become of
/// each. False: one stayed on TCP.
fn tried(unit: &Unit) -> bool {
    let now = match Unit::load(&unit.name) {
        Ok(now) => now,
        Err(error) => {
            output::complain("enable", error);
            return false;
        }
    };
    match trial::of(&now, users_to_try) {
        // Each is said, whatever became of the one before.
        Ok(trials) => trials.iter().filter(|trial| !said(trial)).count() == 0,
        Err(reason) => {
            say(&format!("  {reason}\n"));
            true
        }
    }
}

/// A unit's own users first, then those of the other enabled services, with whom a user that comes and goes shares nothing.
fn users_to_try(unit: &Unit) -> Vec<String> {
    let own = unit.users();
    if unit.is_dynamic_user {
        return own.into_iter().collect();
    }
    let others = users_of_enabled().into_iter().filter(|user| !own.contains(user));
    own.iter().cloned().chain(others).collect()
}

/// False: it stayed on TCP.
fn said(trial: &Trial) -> bool {
    let Trial { user, address, shown } = trial;
    let whose = format!("a connection of {user} to {address}");
    match shown {
        Shown::Moved => say(&format!("  {whose} has moved to shared memory\n")),
        Shown::Nothing(reason) => say(&format!("  {whose} shows nothing: {reason}\n")),
        Shown::Stayed(reason) => {
            let port = address.port();
            let advice = format_args!("{whose} stayed on TCP: {reason}; see: sidestep why {port}");
            output::complain("enable", advice);
        }
    }
    !matches!(shown, Shown::Stayed(_))
}

/// Whether the unit runs with the library, or without. A service of `Type=simple` counts as started before its program
/// has begun.
fn runs_soon(unit: &Unit, with_library: bool) -> bool {
    let deadline = Instant::now() + BEGINNING;
    loop {
        let now = Unit::load(&unit.name);
        if now.is_ok_and(|now| now.is_running() && now.has_library() == with_library) {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Writes the drop-in of a unit and says what else there is to know.
fn enable_one(unit: &Unit) -> Result<Vec<String>, String> {
    let library = library::find().map_err(|error| format!("{error}; {}", error.advice()))?;
    let mut remarks = examined(unit)?;
    let findings = unit.hardening.examine();
    if let Some(obstacle) = findings.obstacle.or_else(|| unit.view.obstacle(&library)) {
        return Err(obstacle);
    }
    remarks.extend(findings.remarks);
    let has_filter = findings.has_filter || hardening::is_system_filtered();
    let variables = run::variables_for_service(has_filter).map_err(|error| error.to_string())?;
    let drop_in = DropIn::of(&unit.name);
    let was_there = drop_in.exists();
    drop_in.write(&library, unit.preload.as_deref(), &variables)?;
    match share(unit) {
        Ok(shared) => remarks.extend(shared),
        Err(error) => {
            // What is said to have failed is not half done.
            if !was_there {
                drop_in.remove()?;
            }
            return Err(error);
        }
    }
    Ok(remarks)
}

/// Whether the program of the unit takes the library.
fn examined(unit: &Unit) -> Result<Vec<String>, String> {
    let path = std::env::var_os("PATH");
    let examination = match preloadable::examine(&unit.program, Caller::current(), path.as_deref())
    {
        Ok(examination) => examination,
        Err(error) => {
            return Ok(vec![format!("{} cannot be examined: {error}", unit.program.display())]);
        }
    };
    if let Some(obstacle) = examination.obstacle {
        return Err(format!(
            "{} would stay on TCP: {obstacle}; {}",
            unit.program.display(),
            obstacle.advice()
        ));
    }
    let remarks = [
        (
            examination.uses_seccomp,
            "may install a filter of system calls of its own, and its connections stay on TCP then",
        ),
        (examination.uses_io_uring, "can use io_uring, and sockets that it uses so stay on TCP"),
    ];
    let remarks = remarks.into_iter().filter(|(is_so, _)| *is_so);
    Ok(remarks.map(|(_, remark)| format!("{} {remark}", unit.program.display())).collect())
}

/// A service that is enabled, as its drop-in says.
pub(super) struct EnabledUnit {
    pub(super) unit: String,
    /// It starts on TCP then.
    pub(super) is_library_gone: bool,
}

/// Those that there are, whatever systemd knows of them.
pub(super) fn enabled_units() -> Vec<EnabledUnit> {
    let drop_ins = DropIn::all().into_iter();
    drop_ins
        .map(|it| EnabledUnit { is_library_gone: it.is_library_gone(), unit: it.unit })
        .collect()
}

/// Where the drop-in of a unit is.
pub(super) fn drop_in_of(unit: &str) -> PathBuf {
    DropIn::of(unit).path().to_owned()
}

/// Writes the drop-in of an enabled unit again, for its next start.
///
/// # Errors
///
/// The reason, and what to do about it.
pub(super) fn enable_again(name: &str) -> Result<(), String> {
    let unit = Unit::load(name).map_err(|error| error.to_string())?;
    enable_one(&unit).map_err(|error| format!("{name}: {error}"))?;
    systemctl(&["daemon-reload"]).map(drop)
}

/// Lets the users of enabled services share memory, when there are several.
fn share(unit: &Unit) -> Result<Vec<String>, String> {
    if unit.is_dynamic_user {
        return Ok(vec![
            "its user comes and goes (DynamicUser=), so it shares memory with itself only"
                .to_owned(),
        ]);
    }
    let users = users_of_enabled();
    if users.len() < 2 {
        return Ok(unknown_users(unit));
    }
    let (key, place, lack) = match has_agent() {
        true => (Key::Pairs, "share.pairs", unit.hardening.lack_between_users()),
        false => (Key::List, "policy.share_with_users", None),
    };
    let added = Sharing::of_machine().add(key, &users)?;
    let remark = |it: &String| format!("{it} was added to {place} of {}", sharing::MACHINE_FILE);
    Ok(added.iter().map(remark).chain(lack).chain(unknown_users(unit)).collect())
}

/// A program that begins as root may go on as another user, who is known once it does.
fn unknown_users(unit: &Unit) -> Vec<String> {
    let is_known = unit.is_running() || unit.user != "root";
    let remark = "it does not run, so if it begins as root and goes on as another user, who that is is not known: enable it \
                  again once it runs";
    if is_known { Vec::new() } else { vec![remark.to_owned()] }
}

/// The users of all services that are enabled, but for those that come and go.
fn users_of_enabled() -> BTreeSet<String> {
    let enabled = DropIn::all().into_iter().filter_map(|it| Unit::load(&it.unit).ok());
    enabled.flat_map(|it| it.lasting_users()).collect()
}

/// Whether an agent answers where programs of this machine look for it.
fn has_agent() -> bool {
    run::agent_of_machine().is_ok_and(|socket| agent_line::call(&socket).is_ok())
}

/// The services of a user that are enabled.
fn enabled_units_of(account: &Account) -> Result<Vec<String>, String> {
    let enabled = DropIn::all().into_iter().filter_map(|it| Unit::load(&it.unit).ok());
    Ok(enabled.filter(|unit| account.is_called(&unit.user)).map(|unit| unit.name).collect())
}

fn disable_one(unit: &Unit) -> Result<Vec<String>, String> {
    let drop_in = DropIn::of(&unit.name);
    if !drop_in.exists() {
        return Ok(vec![NOT_ENABLED.to_owned()]);
    }
    drop_in.remove()?;
    let sharing = Sharing::of_machine();
    let remarks = unit.lasting_users().into_iter().flat_map(|user| {
        let places = sharing.that_name(&user).into_iter();
        places.map(move |place| format!("{place} of {} still names {user}", sharing::MACHINE_FILE))
    });
    Ok(remarks.collect())
}

/// A line of `sidestep status`, and an object of its JSON.
#[derive(Serialize)]
struct Line {
    unit: String,
    /// What systemd says: active, inactive, failed, or not-found.
    state: String,
    program: String,
    /// Those of its processes, while it runs.
    user: String,
    /// What there is to do, if anything is.
    remark: Option<String>,
}

/// Shows the services that are enabled.
pub(crate) fn status(args: &ServiceStatusArgs) -> i32 {
    let own = Account::with_managers().into_iter().filter_map(|account| own_line(&account));
    let units: Vec<Line> = DropIn::all().iter().map(line_of).collect();
    let lines: Vec<Line> = units.into_iter().chain(own).chain(containers_line()).collect();
    let text = if args.json {
        serde_json::to_string_pretty(&lines).unwrap_or_default() + "\n"
    } else {
        table(&lines)
    };
    match output::print_as(args.json, &text) {
        Ok(_) => 0,
        Err(error) => {
            output::complain("status", error);
            1
        }
    }
}

fn line_of(drop_in: &DropIn) -> Line {
    match Unit::load(&drop_in.unit) {
        Ok(unit) => {
            let users: Vec<String> = unit.users().into_iter().collect();
            Line {
                remark: remark_on(&unit, drop_in),
                program: unit.program.display().to_string(),
                user: users.join(", "),
                unit: unit.name,
                state: unit.active_state,
            }
        }
        Err(error) => Line {
            unit: drop_in.unit.clone(),
            state: "not-found".to_owned(),
            program: String::new(),
            user: String::new(),
            remark: Some(error.to_string()),
        },
    }
}

/// What there is to do about a unit that is enabled.
fn remark_on(unit: &Unit, drop_in: &DropIn) -> Option<String> {
    let given = drop_in.library().unwrap_or_else(|| PathBuf::from("the library"));
    if drop_in.is_library_gone() {
        return Some(format!(
            "{} is gone: starts on TCP; enable it again, or disable it",
            given.display()
        ));
    }
    let until = format!("until: systemctl restart {}", unit.name);
    match unit.library() {
        _ if !unit.is_running() => {}
        Loaded::None => return Some(format!("runs as before {until}")),
        Loaded::Replaced => {
            return Some(format!("runs with a library that was replaced since, {until}"));
        }
        Loaded::Of(path) if !is_same_file(&path, &given) => {
            return Some(format!("runs with {} {until}", path.display()));
        }
        Loaded::Of(_) => {}
    }
    let own = library::find().ok().filter(|own| !is_same_file(own, &given))?;
    Some(format!(
        "is given {}, and this sidestep has {}: programs of two versions stay on TCP with each other; enable it again for this one",
        given.display(),
        own.display()
    ))
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}

/// The user's own services, as one line. What the drop-in says is not read: it is the user's, and could be a file that never ends.
fn own_line(account: &Account) -> Option<Line> {
    account.drop_in().exists().then(|| Line {
        unit: own_name(account),
        state: "enabled".to_owned(),
        program: String::new(),
        user: account.name.clone(),
        remark: None,
    })
}

fn containers_line() -> Option<Line> {
    containers::is_enabled().then(|| Line {
        unit: "containers of podman".to_owned(),
        state: "enabled".to_owned(),
        program: String::new(),
        user: String::new(),
        remark: containers::remark(),
    })
}

fn table(lines: &[Line]) -> String {
    if lines.is_empty() {
        return "no service is enabled; `sidestep enable UNIT` enables one\n".to_owned();
    }
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["Unit", "State", "Program", "User", "Remark"]);
    for line in lines {
        let remark = line.remark.as_deref().unwrap_or_default();
        let cells = [&line.unit, &line.state, &line.program, &line.user, remark];
        table.add_row(cells.map(|cell| output::Escaped(cell).to_string()));
    }
    table.trim_fmt() + "\n"
}

fn say(text: &str) {
    // A reader that has gone misses a line, and what was done stays done.
    let _ = output::print(text);
}
