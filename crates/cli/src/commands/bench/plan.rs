//! From the command line to the plan of a measurement.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use sidestep_modeler::contention::{Contention, CpuList};
use sidestep_modeler::plan::{Conduct, Entry, Extent, Model, Pace, Plan, Transport};
use sidestep_modeler::result::{Document, Figure, Published};
use sidestep_modeler::suite::published::{self, Place};
use sidestep_modeler::suite::{Overrides, Suite, SuiteError};
use sidestep_modeler::workload::{NameError, Units, Workload};
use thiserror::Error;

use crate::args::MeasureArgs;

/// Why there is no plan.
#[derive(Debug, Error)]
pub(super) enum PlanError {
    #[error("there is nothing to measure: name a workload, such as 'RR10(2KB/2KB)', or a --suite")]
    Nothing,
    #[error("{0}")]
    Name(#[from] NameError),
    #[error(transparent)]
    Suite(#[from] SuiteError),
    #[error("--over names {0} twice")]
    Twice(Transport),
    #[error("--duration has to be more than nothing")]
    NoTime,
    #[error("--wait-all waits inside recv, which an event loop never does; leave one of them out")]
    WaitAllInLoop,
    #[error("neighbours and CPU limits are for one host; leave --server or them out")]
    ContentionElsewhere,
    #[error("sockmap has a control group of its own; leave it or --cpu-quota and --cpu-weight out")]
    TwoGroups,
    #[error("there is no CPU {0} that this process may use; see `taskset -p $$`")]
    NoSuchCpu(usize),
    #[error("cannot read which CPUs this process may use: {0}")]
    Cpus(io::Error),
}

/// A plan and what belongs to it.
pub(super) struct Chosen {
    pub(super) plan: Plan,
    pub(super) suite_name: Option<String>,
    /// What was chosen, in words of the command line.
    pub(super) options: Vec<String>,
    suite: Option<Suite>,
    /// Ours may be set beside published figures.
    is_comparable: bool,
    /// Where the server is.
    place: Place,
}

impl Chosen {
    pub(super) fn from_args(args: &MeasureArgs) -> Result<Self, PlanError> {
        let conduct = conduct(args)?;
        let suite = args.suite.as_deref().map(Suite::find).transpose()?;
        let entries = match &suite {
            Some(suite) => suite.entries_with(&conduct, &limits(args), overrides(args)),
            None => entries(args, &conduct, &contentions(args))?,
        };
        if entries.is_empty() {
            return Err(PlanError::Nothing);
        }
        if args.wait_all && entries.iter().any(|entry| entry.model == Model::EventLoop) {
            return Err(PlanError::WaitAllInLoop);
        }
        for entry in &entries {
            check_contention(&entry.contention, args)?;
        }
        let is_comparable = entries.iter().all(|entry| published::comparable(&entry.conduct));
        let transports = transports(&args.over)?;
        let baseline = baseline(&transports);
        Ok(Self {
            plan: Plan { entries, transports, baseline, runs: args.runs },
            suite_name: suite.as_ref().map(|suite| suite.name.clone()),
            options: options(args),
            suite,
            is_comparable,
            place: if args.server.is_some() { Place::TwoHosts } else { Place::OneHost },
        })
    }

    /// What has been published for a workload, by whom our suites know and by whom the
    /// user's suite knows.
    pub(super) fn published(
        &self,
        workload: &Workload,
        rmbe: Option<u32>,
        a: Transport,
        b: Transport,
        ours: &[(Figure, f64)],
    ) -> Vec<Published> {
        if !self.is_comparable {
            return Vec::new();
        }
        let place = self.place;
        let mut all = published::verdicts(*workload, rmbe, a, b, place, ours);
        let users = self.users_suite().into_iter();
        all.extend(users.flat_map(|it| it.verdicts(*workload, rmbe, a, b, place, ours)));
        all
    }

    /// The same about one receive buffer against another, and about a filter against none.
    pub(super) fn judge_across(&self, document: &mut Document) {
        if self.is_comparable {
            let place = self.place;
            published::compare_buffers(document, place);
            published::judge_filters(document, place);
            if let Some(suite) = self.users_suite() {
                suite.compare_buffers(document, place);
                suite.judge_filters(document, place);
            }
        }
    }

    fn users_suite(&self) -> Option<&Suite> {
        self.suite.as_ref().filter(|suite| Suite::builtin(&suite.name).is_none())
    }
}

/// What of a suite's entries the command line takes the place of.
fn overrides(args: &MeasureArgs) -> Overrides<'_> {
    fn some<T>(values: &[T]) -> Option<&[T]> {
        (!values.is_empty()).then_some(values)
    }
    Overrides {
        models: some(&args.model),
        neighbours: some(&args.neighbours),
        filter_rules: some(&args.filter_rules),
    }
}

fn entries(
    args: &MeasureArgs,
    conduct: &Conduct,
    contentions: &[Contention],
) -> Result<Vec<Entry>, PlanError> {
    let units = if args.si { Units::Si } else { Units::Ibm };
    let models = if args.model.is_empty() { &[Model::Threads][..] } else { &args.model };
    let filters = if args.filter_rules.is_empty() { &[0][..] } else { &args.filter_rules };
    let mut entries = Vec::new();
    for name in &args.workloads {
        let workload = Workload::parse(name, units)?;
        for &model in models {
            for contention in contentions {
                entries.extend(filters.iter().map(|&filter_rules| Entry {
                    workload,
                    model,
                    conduct: conduct.clone(),
                    contention: contention.clone(),
                    filter_rules,
                    required: BTreeMap::new(),
                }));
            }
        }
    }
    Ok(entries)
}

/// Whether there can be such a contention.
fn check_contention(contention: &Contention, args: &MeasureArgs) -> Result<(), PlanError> {
    if *contention != Contention::NONE && args.server.is_some() {
        return Err(PlanError::ContentionElsewhere);
    }
    if contention.has_cpu_group() && args.over.contains(&Transport::Sockmap) {
        return Err(PlanError::TwoGroups);
    }
    let missing = contention.cpus.first_not_allowed().map_err(PlanError::Cpus)?;
    missing.map_or(Ok(()), |cpu| Err(PlanError::NoSuchCpu(cpu)))
}

/// Each level of the command line.
fn contentions(args: &MeasureArgs) -> Vec<Contention> {
    let alone = limits(args);
    match &args.neighbours[..] {
        [] => vec![alone],
        levels => {
            let beside = |&neighbours| Contention { neighbours, ..alone.clone() };
            levels.iter().map(beside).collect()
        }
    }
}

/// Without neighbours.
fn limits(args: &MeasureArgs) -> Contention {
    Contention {
        cpu_quota: args.cpu_quota,
        cpu_weight: args.cpu_weight,
        cpus: args.cpus.clone().unwrap_or_default(),
        ..Contention::NONE
    }
}

fn conduct(args: &MeasureArgs) -> Result<Conduct, PlanError> {
    if args.duration.is_zero() {
        return Err(PlanError::NoTime);
    }
    let extent = match args.count {
        // A tenth more at the beginning, to warm up.
        Some(measured) => Extent::Count { warmup: measured.div_ceil(10), measured },
        None => Extent::Time { warmup: args.warmup, measured: args.duration },
    };
    Ok(Conduct {
        extent,
        pace: args.rate.map_or(Pace::Closed, |per_second| Pace::Open { per_second }),
        think: args.think.unwrap_or(Duration::ZERO),
        blocking: !args.non_blocking,
        wait_all: args.wait_all,
        chunk_len: args.chunk,
        connections_per_loop: args.connections_per_loop,
        verify: args.verify,
        ipv6: args.ipv6,
        rmbe_len: args.rmbe,
    })
}

fn transports(over: &[Transport]) -> Result<Vec<Transport>, PlanError> {
    let mut transports = Vec::new();
    for &transport in over {
        if transports.contains(&transport) {
            return Err(PlanError::Twice(transport));
        }
        transports.push(transport);
    }
    Ok(transports)
}

/// TCP if it is measured, otherwise the last.
fn baseline(transports: &[Transport]) -> Transport {
    let tcp = transports.iter().find(|it| **it == Transport::Tcp);
    tcp.or(transports.last()).copied().unwrap_or(Transport::Tcp)
}

/// The command line that measures the same again, but for what is measured: one word
/// each.
fn options(args: &MeasureArgs) -> Vec<String> {
    let mut words = Vec::new();
    let mut value = |name: &str, value: Option<String>| {
        words.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    };
    value("--model", (!args.model.is_empty()).then(|| joined(&args.model)));
    value("--over", Some(joined(&args.over)));
    value("--neighbours", (!args.neighbours.is_empty()).then(|| joined(&args.neighbours)));
    value("--filter-rules", (!args.filter_rules.is_empty()).then(|| joined(&args.filter_rules)));
    value("--cpu-quota", args.cpu_quota.map(|it| it.to_string()));
    value("--cpu-weight", args.cpu_weight.map(|it| it.to_string()));
    value("--cpus", args.cpus.as_ref().map(CpuList::to_string));
    value("--runs", Some(args.runs.to_string()));
    match args.count {
        Some(count) => value("--count", Some(count.to_string())),
        None => {
            value("--duration", Some(time(args.duration)));
            value("--warmup", Some(time(args.warmup)));
        }
    }
    value("--rate", args.rate.map(|rate| rate.to_string()));
    value("--think", args.think.map(time));
    value("--chunk", Some(args.chunk.to_string()));
    value("--connections-per-loop", args.connections_per_loop.map(|it| it.to_string()));
    value("--rmbe", args.rmbe.map(|it| it.to_string()));
    value("--server", args.server.clone());
    let flags = [
        ("--non-blocking", args.non_blocking),
        ("--wait-all", args.wait_all),
        ("--verify", args.verify),
        ("--ipv6", args.ipv6),
    ];
    words.extend(flags.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| (*name).to_owned()));
    words
}

fn joined<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn time(time: Duration) -> String {
    format!("{}us", time.as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    fn measure(line: &str) -> MeasureArgs {
        let words = ["sidestep", "bench"].into_iter().chain(line.split(' '));
        match Args::try_parse_from(words).unwrap().command {
            Command::Bench(args) => args.measure,
            _ => unreachable!("the line starts with `sidestep bench`"),
        }
    }

    #[test]
    fn the_options_of_a_result_measure_the_same_again() {
        for line in [
            "RR1(1B/1B)",
            "--model threads,event-loop --over smc,tcp,unix --runs 3 --duration 1500ms RR1(1B/1B)",
            "--count 50 --rate 12.5 --think 2ms --non-blocking --verify --ipv6 RR1(1B/1B)",
            "--neighbours 0,2,4:nice=19,1:idle RR1(1B/1B)",
            "--filter-rules 0,1000,100000 RR1(1B/1B)",
            "--neighbours 2 --cpu-quota 50 --cpu-weight 1 --cpus 0,2-3 RR1(1B/1B)",
            "--wait-all --chunk 4KB --connections-per-loop 7 --rmbe 1MB --server h:1 RR1(1B/1B)",
        ] {
            let args = measure(line);
            let again = measure(&format!("{} RR1(1B/1B)", options(&args).join(" ")));
            assert_eq!(conduct(&again).unwrap(), conduct(&args).unwrap(), "{line}");
            assert_eq!(contentions(&again), contentions(&args), "{line}");
            assert_eq!(again.filter_rules, args.filter_rules);
            assert_eq!(again.over, args.over);
            assert_eq!(
                (again.runs, again.model, again.server),
                (args.runs, args.model, args.server)
            );
        }
    }

    #[test]
    fn each_workload_runs_in_each_model() {
        let chosen =
            Chosen::from_args(&measure("--model threads,event-loop RR1(1B/1B) STR1(1B/1B)"));
        let plan = chosen.unwrap().plan;
        let order: Vec<_> =
            plan.entries.iter().map(|it| format!("{} {}", it.workload, it.model)).collect();
        assert_eq!(
            order,
            [
                "RR1(1B/1B) threads",
                "RR1(1B/1B) event-loop",
                "STR1(1B/1B) threads",
                "STR1(1B/1B) event-loop"
            ]
        );
        assert_eq!(plan.baseline, Transport::Tcp);
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_a_reason() {
        let refusal = |line| Chosen::from_args(&measure(line)).err().unwrap().to_string();
        assert!(refusal("--over smc,smc RR1(1B/1B)").contains("twice"));
        assert!(refusal("--duration 0s RR1(1B/1B)").contains("more than nothing"));
        assert!(refusal("--wait-all --model event-loop RR1(1B/1B)").contains("never"));
        assert!(refusal("--runs 2").contains("nothing to measure"));
        assert!(refusal("--cpus 1023 RR1(1B/1B)").contains("no CPU 1023"));
        assert!(refusal("--cpu-quota 5 --over sockmap RR1(1B/1B)").contains("of its own"));
        assert!(refusal("RR1(1B/1Q)").contains('^'), "points at the character");
        assert!(refusal("--suite no-such").contains("smc-r-2013"), "lists the suites");
    }
}
