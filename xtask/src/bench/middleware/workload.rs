//! What a file of `bench/macro` says.
//!
//! Command lines are words between blanks, some with a placeholder:
//!
//! | placeholder | what stands there |
//! |---|---|
//! | `{port.NAME}` | the port of the server of this name: a free one |
//! | `{scratch}` | an empty folder for this run's data |
//! | `{macro}` | the folder of the workloads' files |
//! | `{classes}` | Java's class path: the libraries, and the programs compiled from `java` |
//! | `{libraries}` | the libraries only |
//! | `{postgresql}` | where PostgreSQL's own commands are |

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::driver::Figures;
use super::warm_up::WarmUp;
use crate::bench::measure::Compare;
use crate::bench::workloads::Row;

/// One workload.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Workload {
    /// That of its file.
    #[serde(skip)]
    pub(super) name: String,
    pub(super) title: String,
    pub(super) ibm: Ibm,
    /// Of Debian.
    pub(super) packages: Vec<String>,
    pub(super) libraries: Option<Libraries>,
    /// Programs of `bench/macro/java`.
    #[serde(default)]
    pub(super) java: Vec<String>,
    /// Whether its programs refuse to be root's.
    #[serde(default)]
    pub(super) unprivileged: bool,
    /// Commands before the servers start.
    #[serde(default)]
    pub(super) prepare: Vec<String>,
    pub(super) servers: Vec<Server>,
    pub(super) driver: Driver,
    /// Commands that succeed only if the data are right after a run.
    #[serde(default)]
    pub(super) check: Vec<String>,
    pub(super) warm_up: WarmUp,
    pub(super) rows: Vec<Promise>,
}

/// What IBM has measured.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ibm {
    pub(super) workload: String,
    pub(super) figure: String,
    pub(super) source: String,
}

/// Java libraries from Maven's central repository.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Libraries {
    /// As `GROUP:NAME:VERSION`; what they depend on comes along.
    pub(super) artifacts: Vec<String>,
    /// Of each file that comes.
    pub(super) sha256: BTreeMap<String, String>,
}

/// A program that listens.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) command: String,
    /// Whether it is under Sidestep when SMC is measured.
    pub(super) accelerated: bool,
    /// Succeeds once it takes clients; otherwise it is ready when it listens.
    pub(super) ready: Option<String>,
    /// Commands for when it is ready.
    #[serde(default)]
    pub(super) setup: Vec<String>,
    /// Ends it in order; otherwise it is killed.
    pub(super) stop: Option<String>,
}

/// The program that makes the load.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Driver {
    pub(super) kind: Kind,
    pub(super) command: String,
    /// Whether it is under Sidestep when SMC is measured.
    pub(super) accelerated: bool,
}

/// How a driver is spoken with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// One of `bench/macro/java`: it obeys `measure` and `stop` (`Load.java`).
    Ours,
    /// PostgreSQL's pgbench, with its log of each transaction.
    Pgbench,
}

/// A row of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Promise {
    pub(super) name: String,
    pub(super) measures: Measure,
    pub(super) must: f64,
    pub(super) aim: f64,
}

/// What is measured.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Measure {
    /// Transactions per second.
    Rate,
    /// CPU time of all processes for a transaction.
    Cpu,
    /// Response times.
    Mean,
    P50,
    P99,
    #[serde(rename = "p99.9")]
    P999,
}

impl Measure {
    /// Its number among the figures of a run.
    ///
    /// **Errors**: nothing was measured.
    pub(super) fn of(self, figures: &Figures) -> Result<f64> {
        let Figures { transactions, seconds, cpu_s, latencies } = figures;
        ensure!(*transactions > 0.0 && *seconds > 0.0, "no transaction in {seconds} s");
        Ok(match self {
            Self::Rate => transactions / seconds,
            Self::Cpu => cpu_s * 1e6 / transactions,
            Self::Mean => latencies.mean_us,
            Self::P50 => latencies.p50_us,
            Self::P99 => latencies.p99_us,
            Self::P999 => latencies.p999_us,
        })
    }
}

impl Workload {
    /// Reads a file.
    ///
    /// **Errors**: it cannot be read, or says what it may not; the text names file, key and line.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let name = file.file_stem().and_then(|it| it.to_str()).context("a file has a name")?;
        Self::parse(name, &text).with_context(|| file.display().to_string())
    }

    fn parse(name: &str, text: &str) -> Result<Self> {
        let workload = Self { name: name.to_owned(), ..toml::from_str(text)? };
        workload.verify()?;
        Ok(workload)
    }

    /// What no type says.
    fn verify(&self) -> Result<()> {
        ensure!(!self.rows.is_empty(), "rows: there is none");
        ensure!(!self.servers.is_empty(), "servers: there is none");
        ensure!(
            self.java.is_empty() || self.libraries.is_some(),
            "java: needs libraries, HdrHistogram at least"
        );
        let is_accelerated =
            self.driver.accelerated || self.servers.iter().any(|it| it.accelerated);
        ensure!(is_accelerated, "accelerated: one program at least has to be, or SMC is TCP");
        if let Some(mistake) = self.warm_up.mistake() {
            bail!("{mistake}");
        }
        let names: BTreeSet<&str> = self.servers.iter().map(|it| it.name.as_str()).collect();
        ensure!(names.len() == self.servers.len(), "servers: two have the same name");
        let known: BTreeMap<String, String> =
            self.placeholders().map(|it| (it, String::new())).collect();
        for line in self.lines() {
            filled(line, &known)?;
        }
        Ok(())
    }

    fn placeholders(&self) -> impl Iterator<Item = String> {
        let java = ["classes", "libraries"].into_iter().filter(|_| self.libraries.is_some());
        let fixed = ["scratch", "macro", "postgresql"].into_iter().chain(java).map(str::to_owned);
        fixed.chain(self.servers.iter().map(Server::placeholder))
    }

    /// All its command lines.
    pub(super) fn lines(&self) -> impl Iterator<Item = &str> {
        let servers = self.servers.iter().flat_map(|it| {
            let optional = it.ready.iter().chain(&it.stop).chain(&it.setup);
            [&it.command].into_iter().chain(optional)
        });
        let others = self.prepare.iter().chain([&self.driver.command]).chain(&self.check);
        others.chain(servers).map(String::as_str)
    }

    /// Its rows of the table.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|Promise { name, measures, must, aim }| match measures {
            Measure::Rate => Row::ratio(name, "tran/s", Compare::SmcOverTcp, *must, *aim),
            _ => Row::part(name, "µs", *must, *aim),
        })
    }
}

impl Server {
    /// The name by which command lines know its port.
    pub(super) fn placeholder(&self) -> String {
        format!("port.{}", self.name)
    }
}

/// The words of a command line, with what stands for the placeholders.
///
/// **Errors**: a placeholder has no value; the text has those that have.
pub(super) fn filled(line: &str, values: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let words = line.split_whitespace().map(|word| filled_word(word, values));
    let words = words.collect::<Result<Vec<_>>>().with_context(|| format!("in '{line}'"))?;
    ensure!(!words.is_empty(), "a command line is empty");
    Ok(words)
}

fn filled_word(word: &str, values: &BTreeMap<String, String>) -> Result<String> {
    let mut made = String::new();
    let mut rest = word;
    while let Some((before, behind)) = rest.split_once('{') {
        let (name, after) = behind.split_once('}').context("a '{' without its '}'")?;
        let value = values.get(name).with_context(|| {
            let known: Vec<&str> = values.keys().map(String::as_str).collect();
            format!("{{{name}}} is no placeholder here; there are {}", known.join(", "))
        })?;
        made.push_str(before);
        made.push_str(value);
        rest = after;
    }
    made.push_str(rest);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::Bound;
    use crate::bench::middleware::driver::Latencies;

    const GOOD: &str = r#"
title = "Echo"
packages = []

[ibm]
workload = "none"
figure = "none"
source = "none"

[[servers]]
name = "echo"
command = "server --port {port.echo} --data={scratch}/data"
accelerated = true

[driver]
kind = "ours"
command = "client {port.echo}"
accelerated = false

[warm_up]
window_s = 3
within = 0.05
at_most_s = 60

[[rows]]
name = "echo"
measures = "rate"
must = 1.0
aim = 2.0

[[rows]]
name = "  p99.9"
measures = "p99.9"
must = 1.05
aim = 0.5
"#;

    fn complaint(from: &str, to: &str) -> String {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD);
        format!("{:#}", Workload::parse("echo", &text).unwrap_err())
    }

    #[test]
    fn rates_are_to_grow_and_times_to_shrink() -> Result<()> {
        let workload = Workload::parse("echo", GOOD)?;
        let rows: Vec<Row<'_>> = workload.rows().collect();
        assert_eq!(rows[0].bound, Bound::AtLeast);
        assert_eq!(rows[1].bound, Bound::AtMost);
        assert_eq!((rows[1].name, rows[1].must), ("  p99.9", 1.05));
        Ok(())
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let said = complaint("accelerated = false", "accelerated = false\naccellerated = true");
        assert!(said.contains("accellerated") && said.contains("line 19"), "{said}");
        let said = complaint("\"rate\"", "\"speed\"");
        assert!(said.contains("speed") && said.contains("p99.9"), "{said}");
    }

    #[test]
    fn a_missing_key_is_named() {
        let said = complaint("title = \"Echo\"", "");
        assert!(said.contains("title"), "{said}");
    }

    #[test]
    fn an_unknown_placeholder_is_named_with_the_known_ones() {
        let said = complaint("client {port.echo}", "client {port.ehco}");
        assert!(said.contains("{port.ehco}") && said.contains("port.echo, postgresql"), "{said}");
        let said = complaint("client {port.echo}", "client {classes}");
        assert!(said.contains("{classes}"), "there are no libraries: {said}");
        let said = complaint("client {port.echo}", "client {port.echo");
        assert!(said.contains("without its"), "{said}");
    }

    #[test]
    fn java_programs_without_libraries_are_refused() {
        let said = complaint("packages = []", "packages = []\njava = [\"Load.java\"]");
        assert!(said.contains("libraries"), "{said}");
    }

    #[test]
    fn a_workload_without_an_accelerated_leg_is_refused() {
        let said = complaint("accelerated = true", "accelerated = false");
        assert!(said.contains("accelerated"), "{said}");
    }

    #[test]
    fn placeholders_are_filled_within_words_and_blanks_of_values_make_no_words() -> Result<()> {
        let values = [("scratch", "/a b"), ("port.x", "7")];
        let values = values.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let words = filled("run -D{scratch}/{port.x}\n  {port.x}", &values)?;
        assert_eq!(words, ["run", "-D/a b/7", "7"]);
        Ok(())
    }

    #[test]
    fn a_run_without_a_transaction_is_no_figure() {
        let latencies = Latencies { mean_us: 4.0, p50_us: 3.0, p99_us: 8.0, p999_us: 9.0 };
        let figures = Figures { transactions: 100.0, seconds: 2.0, cpu_s: 0.01, latencies };
        assert_eq!(Measure::Rate.of(&figures).ok(), Some(50.0));
        assert_eq!(Measure::Cpu.of(&figures).ok(), Some(100.0));
        assert_eq!(Measure::P999.of(&figures).ok(), Some(9.0));
        assert!(Measure::P99.of(&Figures { transactions: 0.0, ..figures }).is_err());
    }
}
