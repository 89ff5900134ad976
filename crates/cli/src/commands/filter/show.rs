//! `sidestep filter show` and `list`: what is in force, and what it has done.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::json;
use sidestep_bpf::{
    Cgroup, Filter, Hits, PacketProgram, Totals, interface_programs, packet_programs,
};
use sidestep_filter::{Names, Rule, Way};

use super::answer::{FilterError, counted, say, say_json};
use super::control_groups::directories;
use super::in_force::{About, InForce, name_of};
use super::links;
use super::source::Machine;
use crate::accounts;
use crate::args::FilterShowArgs;

pub(super) fn show(args: &FilterShowArgs) -> Result<(), FilterError> {
    let Some(in_force) = InForce::find()? else {
        return if args.json {
            say_json(&json!({ "is_in_force": false }))
        } else {
            say("no filter is in force: every packet passes\n")
        };
    };
    let InForce { filter, identity, list, later, about } = in_force;
    let added = match later.len() {
        0 => String::new(),
        count => format!(", {count} added since"),
    };
    let graph = filter.graph()?;
    let (file, cgroup) = (about.file.display(), about.cgroup.display());
    let applied = Timestamp::from_second(about.applied_s).unwrap_or_default();
    let totals = filter.totals()?;
    let others = Others::find(&filter, &about)?;
    let forwarded = Forwarded::find(&filter, &about.forwarded)?;
    let derived = links::rules();
    if args.json {
        return say_json(&json!({
            "is_in_force": true,
            "file": about.file,
            "cgroup": about.cgroup,
            "applied": applied.to_string(),
            "name": name_of(identity),
            "rules": list.rules.len(),
            "added": later.len(),
            "derived": derived.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "default": list.default.to_string(),
            "bytes": size_of_val(graph.nodes()),
            "steps": graph.steps(),
            "packets_permitted": totals.permitted,
            "packets_denied": totals.denied,
            "forwarded": forwarded.to_json(),
            "forwarded_permitted": totals.forwarded_permitted,
            "forwarded_denied": totals.forwarded_denied,
            "log_lines_lost_by_rate": totals.lost_by_rate,
            "log_lines_lost_for_room": totals.lost_for_room,
            "other_programs": others.to_json(),
        }));
    }
    say(&format!(
        "{} of {file}{added}, default {}, in force since {applied} for {cgroup}\n\
         {} KB in the kernel, up to {} steps for a packet; name {}\n\
         searched for {} packets that passed, {} that were denied; {} lines of the log lost\n{}{}{}",
        counted(&list.rules),
        list.default,
        size_of_val(graph.nodes()).div_ceil(1024),
        graph.steps(),
        name_of(identity),
        totals.permitted,
        totals.denied,
        totals.lost_by_rate + totals.lost_for_room,
        derived_text(&derived),
        forwarded.to_text(&totals),
        others.to_text(),
    ))
}

fn derived_text(rules: &[Rule]) -> String {
    if rules.is_empty() {
        return String::new();
    }
    let rules: String = rules.iter().map(|rule| format!("  {rule}\n")).collect();
    format!(
        "Before the list stand rules for the gateway's sockets, derived from its links:\n{rules}"
    )
}

/// The interfaces where forwarded packets are to be judged, and whether they are. One that was made anew is not.
struct Forwarded(Vec<(String, bool)>);

impl Forwarded {
    fn find(filter: &Filter, names: &[String]) -> Result<Self, FilterError> {
        let (judged, machine) = (filter.forwarding_interfaces()?, Machine::default());
        let is_judged = |name| machine.interface(name).is_some_and(|it| judged.contains(&it));
        Ok(Self(names.iter().map(|name| (name.clone(), is_judged(name))).collect()))
    }

    fn to_text(&self, totals: &Totals) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let name = |(name, is_judged): &(String, bool)| match is_judged {
            true => name.clone(),
            false => format!("{name} (not judged there now: apply the list again)"),
        };
        let names: Vec<String> = self.0.iter().map(name).collect();
        let Totals { forwarded_permitted, forwarded_denied, .. } = totals;
        format!(
            "of packets forwarded by {}: {forwarded_permitted} passed, {forwarded_denied} were denied\n",
            names.join(", ")
        )
    }

    fn to_json(&self) -> serde_json::Value {
        let one = |(name, is_judged): &(String, bool)| json!({ "interface": name, "is_judged": is_judged });
        self.0.iter().map(one).collect()
    }
}

/// The programs that see the filter's packets beside it, each with where it is attached.
struct Others(Vec<(Hook, PacketProgram)>);

/// Where programs of others see packets.
enum Hook {
    Cgroup(PathBuf),
    /// An interface where forwarded packets leave, by name; whether its program is asked before the filter.
    Interface(String, bool),
}

impl Others {
    fn find(filter: &Filter, about: &About) -> Result<Self, FilterError> {
        let mut others = at_cgroups(filter, &about.cgroup)?;
        others.extend(at_interfaces(filter, &about.forwarded)?);
        Ok(Self(others))
    }

    fn to_text(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let mut text =
            "Programs of others see packets as well, and one passes if all let it pass:\n"
                .to_owned();
        for (hook, PacketProgram { id, name, user, way }) in &self.0 {
            let name = if name.is_empty() { "without a name" } else { name };
            let user = user.map_or_else(|| "an unknown user".to_owned(), accounts::name_of);
            let hook = match hook {
                Hook::Cgroup(path) => path.display().to_string(),
                Hook::Interface(name, false) => name.clone(),
                Hook::Interface(name, true) => {
                    format!("{name}, asked first: it can let packets pass without the filter")
                }
            };
            text += &format!("  {way:<3}  {name}, number {id}, loaded by {user}, at {hook}\n");
        }
        text
    }

    fn to_json(&self) -> serde_json::Value {
        let program = |(hook, program): &(Hook, PacketProgram)| {
            let (cgroup, interface, is_asked_first) = match hook {
                Hook::Cgroup(path) => (Some(path), None, false),
                Hook::Interface(name, is_asked_first) => (None, Some(name), *is_asked_first),
            };
            json!({
                "cgroup": cgroup,
                "interface": interface,
                "is_asked_first": is_asked_first,
                "id": program.id,
                "name": program.name,
                "user": program.user.map(accounts::name_of),
                "way": program.way.to_string(),
            })
        };
        self.0.iter().map(program).collect()
    }
}

/// Those of the filter's control group, of those below, and of those around it.
fn at_cgroups(filter: &Filter, cgroup: &Path) -> Result<Vec<(Hook, PacketProgram)>, FilterError> {
    let root = Cgroup::root()?;
    let around = cgroup.ancestors().skip(1).take_while(|path| path.starts_with(&root));
    let groups: Vec<PathBuf> = around.map(Path::to_owned).chain(directories(cgroup)).collect();
    let ours = filter.packet_programs()?;
    let programs = packet_programs(groups.iter().map(PathBuf::as_path))?;
    let others = programs.into_iter().filter(|(_, program)| !ours.contains(&program.id));
    Ok(others.map(|(place, program)| (Hook::Cgroup(groups[place].clone()), program)).collect())
}

/// Those at the interfaces where forwarded packets leave.
fn at_interfaces(
    filter: &Filter,
    names: &[String],
) -> Result<Vec<(Hook, PacketProgram)>, FilterError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let machine = Machine::default();
    let known = names.iter().filter_map(|name| Some((name, machine.interface(name)?)));
    let (names, indices): (Vec<&String>, Vec<u32>) = known.unzip();
    let ours = filter.forwarded_program()?;
    let programs = interface_programs(&indices)?;
    let place_of_ours = |place: usize| {
        programs.iter().position(|(other, program)| *other == place && program.id == ours)
    };
    let others = programs.iter().enumerate().filter(|(_, (_, program))| program.id != ours);
    let hook = |(order, (place, program)): (usize, &(usize, PacketProgram))| {
        let is_first =
            program.way == Way::Out && place_of_ours(*place).is_some_and(|it| order < it);
        (Hook::Interface(names[*place].clone(), is_first), program.clone())
    };
    Ok(others.map(hook).collect())
}

pub(super) fn list(args: &FilterShowArgs) -> Result<(), FilterError> {
    let in_force = InForce::find()?.ok_or(FilterError::None)?;
    let hits = in_force.filter.hits()?;
    let (list, numbers) = in_force.rules();
    let default = in_force.list.rules.len();
    let hits = numbers.into_iter().chain([default]).map(|number| hits[number]);
    let now_ns = monotonic_ns();
    let last_s =
        |hits: &Hits| (hits.last_ns > 0).then(|| now_ns.saturating_sub(hits.last_ns) as f64 / 1e9);
    let rules = list.rules.iter().map(ToString::to_string);
    let rows = rules.chain([format!("default {}", list.default_words())]).zip(hits).enumerate();
    let line = |rule: usize| {
        (rule < list.rules.len()).then(|| list.line_of(rule)).filter(|&line| line > 0)
    };
    let derived = links::rules();
    if args.json {
        let derived = derived
            .iter()
            .map(|rule| json!({ "line": null, "derived": true, "rule": rule.to_string() }));
        let rows = rows.map(|(number, (rule, hits))| {
            json!({
                "line": line(number),
                "derived": false,
                "rule": rule,
                "packets": hits.count,
                "last_seconds_ago": last_s(&hits),
            })
        });
        return say_json(&derived.chain(rows).collect());
    }
    let mut text = format!("{:>7} {:>12} {:>12}  RULE\n", "LINE", "PACKETS", "LAST");
    for rule in &derived {
        text += &format!("{:>7} {:>12} {:>12}  {rule}\n", "derived", "-", "-");
    }
    for (number, (rule, hits)) in rows {
        let line = match line(number) {
            None if number < list.rules.len() => "added".to_owned(),
            line => line.map_or_else(String::new, |line| line.to_string()),
        };
        let last = last_s(&hits).map_or_else(|| "never".to_owned(), ago);
        text += &format!("{line:>7} {:>12} {last:>12}  {rule}\n", hits.count);
    }
    say(&text)
}

fn ago(seconds: f64) -> String {
    match seconds {
        ..60.0 => format!("{seconds:.1} s ago"),
        ..3600.0 => format!("{:.0} min ago", seconds / 60.0),
        _ => format!("{:.0} h ago", seconds / 3600.0),
    }
}

/// The clock of `bpf_ktime_get_ns`.
pub(super) fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
