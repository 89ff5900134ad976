//! What a bundle is made of.

use sidestep_observe::Snapshot;

use crate::args::SupportArgs;

/// A file of the bundle.
pub(super) struct Part {
    pub(super) name: String,
    /// What is in it, for who looks before sending it.
    about: String,
    pub(super) source: Source,
}

/// Where a part comes from.
pub(super) enum Source {
    /// What this program prints with these arguments.
    Command(Vec<String>),
    /// These files of the kernel or the distribution, one after the other.
    Files(&'static [&'static str]),
}

impl Part {
    fn command(name: &str, about: &str, words: &[&str]) -> Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Self { name: name.into(), about: about.into(), source: Source::Command(words) }
    }

    fn files(name: &str, about: &str, paths: &'static [&'static str]) -> Self {
        Self { name: name.into(), about: about.into(), source: Source::Files(paths) }
    }
}

/// All parts, in the order of the bundle.
pub(super) fn all(args: &SupportArgs) -> Vec<Part> {
    let config = args.config.as_ref().map(|path| path.display().to_string());
    let mut check = vec!["config", "check", "--json"];
    check.extend(config.iter().flat_map(|path| ["--config", path]));
    let mut parts = vec![
        Part::command("version.txt", "the version of this program", &["--version"]),
        Part::files("system.txt", "kernel, distribution, processors, memory", &SYSTEM),
        Part::files(
            "kernel-settings.txt",
            "settings of the kernel that matter to Sidestep",
            &SETTINGS,
        ),
        Part::command("doctor.json", "what would keep connections on TCP", &["doctor", "--json"]),
        Part::command(
            "config.json",
            "keys of the configuration, their values without secrets, and where each is set",
            &check,
        ),
        Part::command("status.json", "services that are enabled", &["status", "--json"]),
        Part::command(
            "connections.json",
            "`ss`: connections, with addresses and names of programs",
            &["ss", "--all", "--json"],
        ),
        Part::command(
            "programs.json",
            "`ss --totals`: what each program ever had",
            &["ss", "--totals", "--json"],
        ),
        Part::command(
            "stats.json",
            "`stats`: sums, rings, lengths of messages",
            &["stats", "--json"],
        ),
        Part::command("links.json", "links of the gateway", &["links", "--json"]),
        Part::command("devices.json", "RDMA adapters of the gateway", &["devices", "--json"]),
    ];
    parts.extend(ports().into_iter().map(|port| {
        let about = format!("`why`: decisions about connections with servers at port {port}");
        Part::command(&format!("why-{port}.json"), &about, &["why", "--json", &format!(":{port}")])
    }));
    parts
}

/// The ports of servers with the most decisions in the last hour.
fn ports() -> Vec<u16> {
    let Ok(snapshot) = Snapshot::take() else { return Vec::new() };
    let mut counts = std::collections::BTreeMap::<u16, u64>::new();
    for decision in snapshot.programs.iter().flat_map(|program| &program.decisions) {
        if let Some(server) = decision.server {
            let sum = counts.entry(server.port()).or_default();
            *sum = sum.saturating_add(decision.in_last_hour);
        }
    }
    let mut ports: Vec<(u16, u64)> = counts.into_iter().collect();
    ports.sort_by_key(|(_, decisions)| std::cmp::Reverse(*decisions));
    ports.into_iter().take(PORTS_MAX).map(|(port, _)| port).collect()
}

/// File by file, what is in it.
pub(super) fn contents(parts: &[Part]) -> String {
    let all = [(CONTENTS, "this list")].into_iter();
    let all = all.chain(parts.iter().map(|part| (part.name.as_str(), part.about.as_str())));
    all.map(|(name, about)| format!("{name:<22}{about}\n")).collect()
}

/// The list of what is in the bundle.
pub(super) const CONTENTS: &str = "CONTENTS.txt";
/// `why` is asked about so many ports.
const PORTS_MAX: usize = 16;

/// Not the command line of the kernel: it may have passwords.
const SYSTEM: [&str; 6] = [
    "/proc/version",
    "/etc/os-release",
    "/sys/fs/cgroup/cgroup.controllers",
    "/sys/devices/system/cpu/online",
    "/proc/loadavg",
    "/proc/meminfo",
];
const SETTINGS: [&str; 12] = [
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/kernel/io_uring_disabled",
    "/proc/sys/kernel/sched_schedstats",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/sys/net/core/rmem_max",
    "/proc/sys/net/core/wmem_max",
    "/proc/sys/net/ipv4/tcp_rmem",
    "/proc/sys/net/ipv4/tcp_wmem",
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/sys/net/ipv4/tcp_tw_reuse",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/max_map_count",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_a_name_of_its_own_and_is_in_the_list() {
        let args = SupportArgs { output: None, config: Some("/a".into()), list: true };
        let parts = all(&args);
        let names: std::collections::BTreeSet<_> = parts.iter().map(|part| &part.name).collect();
        assert_eq!(names.len(), parts.len());
        let list = contents(&parts);
        assert_eq!(list.lines().count(), parts.len() + 1, "and itself");
        assert!(list.lines().all(|line| line.split_whitespace().count() > 2), "{list}");
    }
}
