//! Suites: lists of workloads, ours and those of users, and what IBM has published
//! for them.
//!
//! A suite is a TOML file, and those that come with the program are no exception:
//! they lie in `suites/` and are part of the binary. `docs/bench-suites.md` is the
//! manual of the form.
//!
//! A suite says *what* is measured. How often, over which transports and for how long
//! is said on the command line, unless an entry cannot do without: its keys go before
//! those of the command line, and only `--model` goes before the entry.
//!
//! | Module | Has |
//! |---|---|
//! | `value` | how the value of each key is written |
//! | `publication` | what IBM has published for a workload |
//! | [`SuiteEntry`], module `entry` | one workload, and what it says of the clients' conduct |
//! | [`mod@file`] | from TOML to a suite, and what is wrong with the TOML |
//! | [`published`] | IBM's figures beside ours, with a verdict |

mod entry;
mod file;
mod publication;
pub mod published;
mod value;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use thiserror::Error;

use crate::contention::{Contention, Neighbours};
use crate::plan::{Conduct, Entry, Model};

pub use entry::SuiteEntry;
use file::File;
pub use file::FileFault;

/// Workloads that are measured together.
#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    /// What it is called on the command line and in results.
    pub name: String,
    /// What it is, for a heading.
    pub title: String,
    /// Sentences for the reader of the report: what was published besides and has no
    /// verdict, and why not.
    pub context: Vec<String>,
    /// What is measured, in this order: at least one. Workload, model, RMBE, contention and filter
    /// are never the same in two.
    pub entries: Vec<SuiteEntry>,
}

/// What takes the place of an entry's own keys.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "see the fields of `SuiteEntry` of these names")]
pub struct Overrides<'a> {
    pub models: Option<&'a [Model]>,
    pub neighbours: Option<&'a [Neighbours]>,
    pub filter_rules: Option<&'a [u32]>,
}

/// A suite that cannot be had.
#[derive(Debug, Error)]
pub enum SuiteError {
    /// No suite of ours is called so.
    #[error(
        "there is no suite `{name}`; there are {known}. A file of your own is named by its path: \
         ./{name}.toml",
        known = Suite::builtin_names().collect::<Vec<_>>().join(", ")
    )]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The file is missing, or the system refuses to read it.
    #[error("cannot read the suite file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: io::Error,
    },
    /// The file is no suite.
    #[error("{}:{}: {}", path.display(), fault.line, fault.message)]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        fault: FileFault,
    },
}

impl Suite {
    /// The suite that is meant by the argument of `--suite`: one of ours by its name,
    /// or a file by its path. A path ends in `.toml` or has a slash in it.
    ///
    /// # Errors
    /// There is none of that name; or see [`load`](Self::load).
    pub fn find(argument: &str) -> Result<Self, SuiteError> {
        if argument.ends_with(".toml") || argument.contains('/') {
            return Self::load(Path::new(argument));
        }
        Self::builtin(argument)
            .cloned()
            .ok_or_else(|| SuiteError::Unknown { name: argument.to_owned() })
    }

    /// The names of the suites that come with the program.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        builtins().iter().map(|suite| suite.name.as_str())
    }

    /// The suite of this name that comes with the program.
    #[must_use]
    pub fn builtin(name: &str) -> Option<&'static Self> {
        builtins().iter().find(|suite| suite.name == name)
    }

    /// The suite in this file.
    ///
    /// # Errors
    /// The file cannot be read, or is no suite.
    pub fn load(path: &Path) -> Result<Self, SuiteError> {
        let text = fs::read_to_string(path)
            .map_err(|reason| SuiteError::Unreadable { path: path.to_owned(), reason })?;
        Self::parse(&text).map_err(|fault| SuiteError::Invalid { path: path.to_owned(), fault })
    }

    /// The suite that is written here. Lengths are in
    /// [`Units::Ibm`](crate::workload::Units::Ibm).
    ///
    /// # Errors
    /// It is not TOML, a key is not one of ours, a value is not allowed, there is no
    /// entry, or one repeats another.
    pub fn parse(text: &str) -> Result<Self, FileFault> {
        let File { name, title, context, entries } = file::read(text)?;
        Ok(Self { name, title, context, entries })
    }

    /// What a measurement of this suite runs. `base` and `contention` have all that the
    /// entries do not say themselves.
    ///
    /// Results are told apart by workload, model, RMBE, contention and filter. Of entries that
    /// become alike in these by what is given here, the first stays.
    #[must_use]
    pub fn entries_with(
        &self,
        base: &Conduct,
        contention: &Contention,
        overrides: Overrides<'_>,
    ) -> Vec<Entry> {
        let Overrides { models, neighbours, filter_rules } = overrides;
        let mut seen = HashSet::new();
        let mut entries = Vec::new();
        for entry in &self.entries {
            let contentions = entry.contentions(contention, neighbours);
            let filters = match filter_rules.unwrap_or(&entry.filter_rules) {
                [] => &[0],
                filters => filters,
            };
            for &model in models.unwrap_or(&entry.models) {
                for conduct in entry.conducts(base) {
                    for contention in &contentions {
                        entries.extend(filters.iter().map(|&filter_rules| Entry {
                            workload: entry.workload,
                            model,
                            conduct: conduct.clone(),
                            contention: contention.clone(),
                            filter_rules,
                            required: entry.required.clone(),
                        }));
                    }
                }
            }
        }
        let key = |entry: &Entry| {
            let Entry { workload, model, conduct, contention, filter_rules, .. } = entry;
            (*workload, *model, conduct.rmbe_len, contention.clone(), *filter_rules)
        };
        entries.retain(|entry| seen.insert(key(entry)));
        entries
    }
}

fn builtins() -> &'static [Suite] {
    &BUILTINS
}

static BUILTINS: LazyLock<Vec<Suite>> = LazyLock::new(|| {
    let suite = |text| Suite::parse(text).expect("suites/*.toml are suites: a test reads them");
    BUILTIN_FILES.map(suite).into()
});

const BUILTIN_FILES: [&str; 5] = [
    include_str!("../suites/smc-r-2013.toml"),
    include_str!("../suites/zos-3.1.toml"),
    include_str!("../suites/friendly-bank.toml"),
    include_str!("../suites/busy.toml"),
    include_str!("../suites/confined.toml"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::figure::Figure;
    use crate::plan::{Extent, Pace, Requirement};
    use crate::workload::Workload;

    fn names(suite: &str) -> Vec<String> {
        let entries = Suite::builtin(suite).unwrap().entries_with(
            &Conduct::default(),
            &Contention::NONE,
            Overrides::default(),
        );
        entries.iter().map(|entry| entry.workload.to_string()).collect()
    }

    fn mine(entries: &str) -> Suite {
        Suite::parse(&format!("name = \"mine\"\ntitle = \"Mine\"\n{entries}")).unwrap()
    }

    #[test]
    fn the_suites_of_the_papers_come_with_the_program() {
        let names: Vec<_> = Suite::builtin_names().collect();
        assert_eq!(names, ["smc-r-2013", "zos-3.1", "friendly-bank", "busy", "confined"]);
    }

    #[test]
    fn smc_r_2013_has_its_workloads_in_two_models_and_two_receive_buffers() {
        let suite = Suite::builtin("smc-r-2013").unwrap();
        let entries =
            suite.entries_with(&Conduct::default(), &Contention::NONE, Overrides::default());
        let shown: Vec<_> = entries
            .iter()
            .map(|entry| (entry.workload.to_string(), entry.model, entry.conduct.rmbe_len))
            .collect();
        let expected = [
            ("RR10(2KB/2KB)", Model::EventLoop, None),
            ("RR10(2KB/2KB)", Model::Threads, None),
            ("RR10(32KB/32KB)", Model::EventLoop, None),
            ("RR10(32KB/32KB)", Model::Threads, None),
            ("STR1(1B/20MB)", Model::Threads, Some(1 << 20)),
            ("STR1(1B/20MB)", Model::Threads, Some(256 << 10)),
        ];
        assert_eq!(shown, expected.map(|(name, model, rmbe)| (name.to_owned(), model, rmbe)));
    }

    #[test]
    fn zos_3_1_has_the_socket_workloads_of_the_papers() {
        let expected = [
            "RR20(100B/800B)",
            "RR10(1KB/1KB)",
            "CRR10(64B/8KB)",
            "STR3(20MB/1B)",
            "RR60(4KB/4KB)",
            "CRR40(64B/8KB)",
            "CRR40(64B/8KB)",
            "CRR40(64B/8KB)",
            "CRR40(64B/8KB)",
            "STR6(1B/20MB)",
            "RR10(4KB/4KB)",
            "RR50(256KB/256KB)",
            "STR1(1B/20MB)",
            "STR3(1B/20MB)",
            "RR40(1KB/1KB)",
            "STR1(20MB/1B)",
            "RR10(32KB/32KB)",
            "RR40(100B/100B)",
            "CRR9(200B/200B)",
        ];
        assert_eq!(names("zos-3.1"), expected);
    }

    #[test]
    fn filters_of_an_entry_follow_each_other_and_yield_to_the_command_line() {
        let suite = Suite::builtin("zos-3.1").unwrap();
        let rules = |filter_rules: Option<&[u32]>| -> Vec<u32> {
            let overrides = Overrides { filter_rules, ..Overrides::default() };
            let entries = suite.entries_with(&Conduct::default(), &Contention::NONE, overrides);
            let short = entries.iter().filter(|it| it.workload.to_string() == "CRR40(64B/8KB)");
            short.map(|entry| entry.filter_rules).collect()
        };
        assert_eq!(rules(None), [0, 1_000, 10_000, 100_000]);
        assert_eq!(rules(Some(&[7, 0])), [7, 0]);
    }

    #[test]
    fn a_stand_in_for_an_application_gets_no_verdicts() {
        let suite = Suite::builtin("friendly-bank").unwrap();
        assert!(!suite.context.is_empty());
        for entry in
            suite.entries_with(&Conduct::default(), &Contention::NONE, Overrides::default())
        {
            assert!(!published::comparable(&entry.conduct), "{}", entry.workload);
        }
        assert!(suite.entries.iter().all(|entry| entry.published.is_empty()));
    }

    /// The promise is five minutes for a whole suite, ten for `busy`, which measures each
    /// workload beside five numbers of neighbours, six for `zos-3.1`, which measures one under four filters, with what the command line has by
    /// default: five runs over each of two transports. A run takes its warm-up, its
    /// measured time, and up to `START` until its workers have started and connected.
    #[test]
    fn a_suite_ends_within_five_minutes() {
        const RUNS: u32 = 5;
        const TRANSPORTS: u32 = 2;
        const START: Duration = Duration::from_millis(300);
        for suite in builtins() {
            let entries =
                suite.entries_with(&Conduct::default(), &Contention::NONE, Overrides::default());
            let run = |entry: &Entry| match entry.conduct.extent {
                Extent::Time { warmup, measured } => START + warmup + measured,
                Extent::Count { .. } => panic!("{}: a count has no end", entry.workload),
            };
            let took = entries.iter().map(run).sum::<Duration>() * RUNS * TRANSPORTS;
            let minutes = match suite.name.as_str() {
                "busy" => 10,
                "zos-3.1" => 6,
                _ => 5,
            };
            assert!(took < Duration::from_secs(60 * minutes), "{}: {took:?}", suite.name);
        }
    }

    #[test]
    fn an_entry_goes_before_the_command_line() {
        let suite = mine(
            r#"
            [[entry]]
            workload = "RR8(1KiB/2KB)"
            model = "event-loop"
            rmbe = "512KB"
            connections_per_loop = 4
            chunk = "8KB"
            think = "1ms 500us"
            rate = 1000
            wait_all = true
            blocking = false
            warmup = "0s"
            duration = "2s"
            "#,
        );
        let base = Conduct { verify: true, ipv6: true, ..Conduct::default() };
        let expected = Conduct {
            extent: Extent::Time { warmup: Duration::ZERO, measured: Duration::from_secs(2) },
            pace: Pace::Open { per_second: 1000.0 },
            think: Duration::from_micros(1500),
            blocking: false,
            wait_all: true,
            chunk_len: 8192,
            connections_per_loop: Some(4),
            verify: true,
            ipv6: true,
            rmbe_len: Some(512 << 10),
        };
        let workload = "RR8(1024/2048)".parse().unwrap();
        let contention = Contention::NONE;
        let required = BTreeMap::new();
        let model = Model::EventLoop;
        let conduct = expected;
        let entry = Entry { workload, model, conduct, contention, filter_rules: 0, required };
        assert_eq!(suite.entries_with(&base, &Contention::NONE, Overrides::default()), [entry]);
    }

    #[test]
    fn an_entry_without_keys_is_the_command_lines() {
        let suite = mine("[[entry]]\nworkload = \"RR1(1B/1B)\"");
        let base = Conduct {
            extent: Extent::Time { warmup: Duration::ZERO, measured: Duration::from_secs(7) },
            pace: Pace::Open { per_second: 3.0 },
            think: Duration::from_secs(1),
            blocking: false,
            wait_all: true,
            chunk_len: 1,
            connections_per_loop: Some(2),
            verify: true,
            ipv6: true,
            rmbe_len: Some(32 << 10),
        };
        let entries = suite.entries_with(&base, &Contention::NONE, Overrides::default());
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].model, &entries[0].conduct), (Model::Threads, &base));
    }

    #[test]
    fn a_count_of_the_command_line_goes_before_the_times_of_an_entry() {
        let suite = mine("[[entry]]\nworkload = \"RR1(1B/1B)\"\nduration = \"2s\"");
        let count = Extent::Count { warmup: 1, measured: 10 };
        let base = Conduct { extent: count, ..Conduct::default() };
        assert_eq!(
            suite.entries_with(&base, &Contention::NONE, Overrides::default())[0].conduct.extent,
            count
        );
    }

    #[test]
    fn models_of_the_command_line_replace_those_of_the_entries() {
        let suite = mine(
            r#"
            [[entry]]
            workload = "RR1(1B/1B)"
            model = "threads"
            chunk = "1KB"
            [[entry]]
            workload = "RR1(1B/1B)"
            model = "event-loop"
            [[entry]]
            workload = "RR2(1B/1B)"
            "#,
        );
        let models = [Model::Processes, Model::EventLoop, Model::Processes];
        let overrides = Overrides { models: Some(&models), ..Overrides::default() };
        let entries = suite.entries_with(&Conduct::default(), &Contention::NONE, overrides);
        let shown: Vec<_> = entries
            .iter()
            .map(|entry| (entry.workload.clients, entry.model, entry.conduct.chunk_len))
            .collect();
        // The two entries of RR1 differ in their model only: the first one stays.
        assert_eq!(
            shown,
            [
                (1, Model::Processes, 1024),
                (1, Model::EventLoop, 1024),
                (2, Model::Processes, 64 << 10),
                (2, Model::EventLoop, 64 << 10),
            ]
        );
    }

    #[test]
    fn an_entry_runs_under_each_contention() {
        let suite = mine(
            "[[entry]]\nworkload = \"RR1(1B/1B)\"\nneighbours = [0, 2, \"1:idle\"]\ncpus = \"0\"\n\
             required = { throughput = { ratio = 1.2, bound = 1.1 }, cpu = 1 }\n\
             [[entry]]\nworkload = \"RR1(1B/1B)\"\ncpu_quota = 50\n",
        );
        let base = Contention { cpu_weight: Some(7), ..Contention::NONE };
        let shown = |neighbours: Option<&[Neighbours]>| -> Vec<String> {
            let overrides = Overrides { neighbours, ..Overrides::default() };
            let entries = suite.entries_with(&Conduct::default(), &base, overrides);
            entries.iter().map(|entry| entry.contention.to_string()).collect()
        };
        assert_eq!(
            shown(None),
            [
                "no neighbours, CPU weight 7, CPU 0",
                "2 neighbours, CPU weight 7, CPU 0",
                "1 neighbour of SCHED_IDLE, CPU weight 7, CPU 0",
                "no neighbours, CPU quota 50 %, CPU weight 7",
            ]
        );
        assert_eq!(
            shown(Some(&["4".parse().unwrap()])),
            ["4 neighbours, CPU weight 7, CPU 0", "4 neighbours, CPU quota 50 %, CPU weight 7"]
        );
        let required = [
            (Figure::Throughput, Requirement { ratio: 1.2, bound: Some(1.1) }),
            (Figure::Cpu, Requirement { ratio: 1.0, bound: None }),
        ];
        assert_eq!(suite.entries[0].required, required.into());
    }

    #[test]
    fn busy_has_what_is_required_of_busy_hosts() {
        let suite = Suite::builtin("busy").unwrap();
        let entries =
            suite.entries_with(&Conduct::default(), &Contention::NONE, Overrides::default());
        // Four workloads in two models and two streams, each beside five numbers of loops.
        assert_eq!(entries.len(), (4 * 2 + 2) * 5);
        let throughput = |entry: &Entry| entry.required[&Figure::Throughput];
        assert!(entries.iter().all(|entry| match entry.workload.kind {
            crate::workload::Kind::Streaming => throughput(entry).ratio == 1.2,
            _ => throughput(entry) == Requirement { ratio: 1.0, bound: Some(0.9) },
        }));
    }

    #[test]
    fn entries_that_a_base_makes_alike_run_once() {
        let suite = mine(
            "[[entry]]\nworkload = \"RR1(1B/1B)\"\n\
             [[entry]]\nworkload = \"RR1(1B/1B)\"\nrmbe = [\"1MB\", \"64KB\"]\n",
        );
        let rmbes = |rmbe_len| -> Vec<Option<u32>> {
            let base = Conduct { rmbe_len, ..Conduct::default() };
            suite
                .entries_with(&base, &Contention::NONE, Overrides::default())
                .iter()
                .map(|entry| entry.conduct.rmbe_len)
                .collect()
        };
        assert_eq!(rmbes(None), [None, Some(1 << 20), Some(64 << 10)]);
        assert_eq!(rmbes(Some(1 << 20)), [Some(1 << 20), Some(64 << 10)]);
    }

    #[test]
    fn a_suite_is_found_by_name_or_path() {
        assert_eq!(Suite::find("zos-3.1").unwrap().name, "zos-3.1");

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("without-ending");
        fs::write(&path, BUILTIN_FILES[0]).unwrap();
        assert_eq!(Suite::find(path.to_str().unwrap()).unwrap().name, "smc-r-2013");
    }

    #[test]
    fn an_unknown_suite_is_told_with_those_that_are_known() {
        assert_eq!(
            Suite::find("smcr").unwrap_err().to_string(),
            "there is no suite `smcr`; there are smc-r-2013, zos-3.1, friendly-bank, busy, \
             confined. A file of \
             your own is named by its path: ./smcr.toml"
        );
    }

    #[test]
    fn a_file_that_is_missing_or_wrong_is_told_with_its_path() {
        let missing = Suite::find("no-such-suite.toml").unwrap_err().to_string();
        assert!(
            missing.starts_with("cannot read the suite file no-such-suite.toml: No such file"),
            "{missing}"
        );

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wrong.toml");
        fs::write(&path, "name = \"a\"\ntitle = 1\n").unwrap();
        assert_eq!(
            Suite::load(&path).unwrap_err().to_string(),
            format!("{}:2: title: invalid type: integer `1`, expected a string", path.display())
        );
    }

    /// `docs/bench-suites.md` is right about the form, the names and their errors.
    mod manual {
        use super::*;

        const MANUAL: &str = include_str!("../../../docs/bench-suites.md");

        #[test]
        fn its_example_is_a_suite_with_every_key() {
            let (_, rest) = MANUAL.split_once("```toml\n").unwrap();
            let (example, _) = rest.split_once("```").unwrap();
            let suite = Suite::parse(example).unwrap();
            for key in [
                "workload",
                "model",
                "rmbe",
                "connections_per_loop",
                "chunk",
                "think",
                "rate",
                "wait_all",
                "blocking",
                "warmup",
                "duration",
                "neighbours",
                "cpu_quota",
                "cpu_weight",
                "cpus",
                "required",
                "published",
            ] {
                assert!(MANUAL.contains(&format!("| `{key}` |")), "{key} is not explained");
                let shown = example.lines().any(|line| {
                    line.starts_with(&format!("{key} =")) || line == format!("[[entry.{key}]]")
                });
                assert!(shown, "{key} is not shown");
            }
            assert!(suite.entries.iter().any(|entry| !entry.published.is_empty()));
        }

        #[test]
        fn its_error_is_what_the_program_says() {
            let error = "RR10(2KX/2KB)".parse::<Workload>().unwrap_err().to_string();
            assert!(MANUAL.contains(&format!("```text\n{error}\n```")), "{error}");
        }

        #[test]
        fn it_lists_every_suite_with_its_workloads() {
            for suite in builtins() {
                let (_, section) = MANUAL.split_once(&format!("### {}\n", suite.name)).unwrap();
                let section = section.split("\n#").next().unwrap();
                for entry in &suite.entries {
                    let name = format!("`{}`", entry.workload);
                    assert!(section.contains(&name), "{} lacks {name}", suite.name);
                }
            }
        }
    }
}
