//! `sidestep filter show` and `list`: what is in force, and what it has done.

use jiff::Timestamp;
use serde_json::json;
use sidestep_bpf::Hits;

use super::answer::{FilterError, counted, say, say_json};
use super::in_force::{InForce, name_of};
use crate::args::FilterShowArgs;

pub(super) fn show(args: &FilterShowArgs) -> Result<(), FilterError> {
    let Some(in_force) = InForce::find()? else {
        return if args.json {
            say_json(&json!({ "is_in_force": false }))
        } else {
            say("no filter is in force: every packet passes\n")
        };
    };
    let InForce { filter, identity, list, about, .. } = in_force;
    let graph = filter.graph()?;
    let (file, cgroup) = (about.file.display(), about.cgroup.display());
    let applied = Timestamp::from_second(about.applied_s).unwrap_or_default();
    if args.json {
        return say_json(&json!({
            "is_in_force": true,
            "file": about.file,
            "cgroup": about.cgroup,
            "applied": applied.to_string(),
            "name": name_of(identity),
            "rules": list.rules.len(),
            "default": list.default.to_string(),
            "bytes": size_of_val(graph.nodes()),
            "steps": graph.steps(),
        }));
    }
    say(&format!(
        "{} of {file}, default {}, in force since {applied} for {cgroup}\n\
         {} KB in the kernel, up to {} steps for a packet; name {}\n",
        counted(&list.rules),
        list.default,
        size_of_val(graph.nodes()).div_ceil(1024),
        graph.steps(),
        name_of(identity)
    ))
}

pub(super) fn list(args: &FilterShowArgs) -> Result<(), FilterError> {
    let InForce { filter, list, .. } = InForce::find()?.ok_or(FilterError::None)?;
    let hits = filter.hits()?;
    let now_ns = monotonic_ns();
    let last_s =
        |hits: &Hits| (hits.last_ns > 0).then(|| now_ns.saturating_sub(hits.last_ns) as f64 / 1e9);
    let rules = list.rules.iter().map(ToString::to_string);
    let rows = rules.chain([format!("default {}", list.default)]).zip(&hits).enumerate();
    let line = |rule: usize| (rule < list.rules.len()).then(|| list.line_of(rule));
    if args.json {
        let rows = rows.map(|(number, (rule, hits))| {
            json!({
                "line": line(number),
                "rule": rule,
                "packets": hits.count,
                "last_seconds_ago": last_s(hits),
            })
        });
        return say_json(&rows.collect());
    }
    let mut text = format!("{:>6} {:>12} {:>12}  RULE\n", "LINE", "PACKETS", "LAST");
    for (number, (rule, hits)) in rows {
        let line = line(number).map_or_else(String::new, |line| line.to_string());
        let last = last_s(hits).map_or_else(|| "never".to_owned(), ago);
        text += &format!("{line:>6} {:>12} {last:>12}  {rule}\n", hits.count);
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
fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
