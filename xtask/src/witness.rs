//! The proof that connections were what they seemed: looks at `sidestep ss`
//! while they are open.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::bench::launch;
use crate::suite::HANG;

/// Between two looks at which processes there are.
const PIDS_INTERVAL: Duration = Duration::from_millis(25);

/// What a pair of programs has to show for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// At least one connection is SMC-D and has carried bytes.
    Smc,
    /// There are connections, and all of them are TCP.
    Tcp,
    /// Some of either kind.
    Both,
}

/// Looks at connections, or, when there is nobody to ask, believes all.
#[derive(Debug)]
pub(crate) struct Witness {
    sidestep: Option<PathBuf>,
}

impl Witness {
    /// A witness that asks this `sidestep` command; None believes all.
    pub(crate) fn new(sidestep: Option<PathBuf>) -> Self {
        Self { sidestep }
    }

    /// What can be seen of these processes' connections now.
    pub(crate) fn look(&self, pids: &[u32]) -> Result<Evidence> {
        self.look_meanwhile(|| pids.to_vec())
    }

    /// The same of processes that may come and go while `sidestep ss` has no CPU.
    pub(crate) fn look_meanwhile(&self, mut pids: impl FnMut() -> Vec<u32>) -> Result<Evidence> {
        let Some(sidestep) = &self.sidestep else {
            return Ok(Evidence::default());
        };
        let mut all: BTreeSet<u32> = pids().into_iter().collect();
        let mut command = Command::new(sidestep);
        command.args(["ss", "--json"]);
        let table = thread::scope(|scope| {
            let asking = scope.spawn(|| launch::run(command, HANG));
            while !asking.is_finished() {
                all.extend(pids());
                thread::sleep(PIDS_INTERVAL);
            }
            asking.join().expect("it does not panic")
        })?;
        Evidence::parse(&table, &Vec::from_iter(all))
    }

    /// What these processes' programs have had so far, as evidence.
    pub(crate) fn ended(&self, pids: &[u32]) -> Result<Evidence> {
        Ok(self.tally(pids)?.into())
    }

    /// What these processes' programs have had so far, ended connections
    /// included.
    pub(crate) fn tally(&self, pids: &[u32]) -> Result<Tally> {
        let Some(sidestep) = &self.sidestep else {
            return Ok(Tally::default());
        };
        let mut command = Command::new(sidestep);
        command.args(["ss", "--totals", "--json"]);
        let table = launch::run(command, HANG)?;
        Tally::parse(&table, pids)
    }

    /// Whether there is anybody to ask.
    pub(crate) fn sees(&self) -> bool {
        self.sidestep.is_some()
    }

    /// **Errors**: what was seen does not support the claim.
    pub(crate) fn judge(&self, claim: Claim, seen: &Evidence) -> Result<()> {
        match self.sidestep {
            Some(_) => seen.supports(claim),
            None => Ok(()),
        }
    }

    /// Whether looking again cannot add anything.
    pub(crate) fn is_content(&self, claim: Claim, seen: &Evidence) -> bool {
        self.judge(claim, seen).is_ok()
    }
}

/// Connections of some processes, as seen over one or several looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// The most at once that were SMC-D and had carried bytes.
    smc: usize,
    /// The most at once that were TCP.
    tcp: usize,
    /// Why they were TCP, in words.
    reasons: BTreeSet<String>,
}

impl Evidence {
    fn parse(table: &str, pids: &[u32]) -> Result<Self> {
        let table: Value = serde_json::from_str(table).context("`sidestep ss --json`")?;
        let rows = table.as_array().context("`sidestep ss --json` printed no array")?;
        let mut seen = Self::default();
        for row in rows.iter().filter(|row| belongs_to(row, pids)) {
            seen.count(row)?;
        }
        Ok(seen)
    }

    fn count(&mut self, row: &Value) -> Result<()> {
        match row["mode"].as_str() {
            Some("SMC-D") if carried_bytes(row) => self.smc += 1,
            // Just switched: neither proof of one nor of the other.
            Some("SMC-D") => {}
            Some("TCP") => {
                self.tcp += 1;
                self.reasons.extend(row["reason"]["text"].as_str().map(str::to_owned));
            }
            other => bail!("`sidestep ss --json` has a connection of mode {other:?}"),
        }
        Ok(())
    }

    /// Ends of connections that were SMC-D, and TCP.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.smc, self.tcp)
    }

    /// **Errors**: an end of a connection was TCP, or fewer than `count` were SMC-D.
    pub(crate) fn must_all_be_smc(&self, count: usize) -> Result<()> {
        ensure!(self.tcp == 0 && self.smc >= count, "not {count} in SMC-D{}", self.describe());
        Ok(())
    }

    /// **Errors**: a connection was TCP for another reason than those with these words,
    /// or none was for one of these.
    pub(crate) fn gives_no_other_reasons(&self, words: &[&str]) -> Result<()> {
        words.iter().try_for_each(|words| self.gives_reason(words))?;
        ensure!(self.reasons.len() == words.len(), "not only {words:?}{}", self.describe());
        Ok(())
    }

    /// **Errors**: no connection was TCP for a reason with these words, if there are any.
    pub(crate) fn gives_reason(&self, words: &str) -> Result<()> {
        let is_given = words.is_empty() || self.reasons.iter().any(|reason| reason.contains(words));
        ensure!(is_given, "'{words}' is not given as a reason{}", self.describe());
        Ok(())
    }

    /// Adds a later look.
    pub(crate) fn merge(&mut self, later: Self) {
        self.smc = self.smc.max(later.smc);
        self.tcp = self.tcp.max(later.tcp);
        self.reasons.extend(later.reasons);
    }

    fn supports(&self, claim: Claim) -> Result<()> {
        let (smc, tcp) = (self.smc, self.tcp);
        match claim {
            Claim::Smc => ensure!(smc > 0, "no connection was SMC-D{}", self.describe()),
            Claim::Tcp => {
                ensure!(smc == 0, "{smc} connections were SMC-D though one side is plain");
                ensure!(tcp > 0, "`sidestep ss` did not show the connections");
            }
            Claim::Both => {
                ensure!(smc > 0 && tcp > 0, "not of both kinds{}", self.describe());
            }
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let reasons: Vec<&str> = self.reasons.iter().map(String::as_str).collect();
        let why =
            if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
        format!(" (seen: {} SMC-D, {} TCP{why})", self.smc, self.tcp)
    }
}

/// The connections of programs by their names, ended ones included as long as
/// a process lives that counted them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    programs: BTreeMap<String, Sums>,
    /// Why connections stayed on TCP, in words.
    reasons: BTreeSet<String>,
}

/// What a program of some name has had: connections in shared memory, and those
/// that stayed on TCP for a reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) smc: u64,
    pub(crate) tcp: u64,
}

impl Tally {
    fn parse(table: &str, pids: &[u32]) -> Result<Self> {
        let table: Value = serde_json::from_str(table).context("`sidestep ss --totals --json`")?;
        let rows = table.as_array().context("`sidestep ss --totals --json` printed no array")?;
        let mut tally = Self::default();
        for row in rows.iter().filter(|row| shares_a_process(row, pids)) {
            let number = |key: &str| row[key].as_u64().with_context(|| format!("no {key}"));
            let program = row["program"].as_str().context("a program without a name")?;
            let sums = tally.programs.entry(program.to_owned()).or_default();
            sums.smc += number("smc_connections")?;
            // What ended before it was decided says nothing.
            sums.tcp += number("tcp_connections")?.saturating_sub(number("undecided")?);
            let reasons = row["reasons"].as_array().into_iter().flatten();
            let words = reasons.filter_map(|reason| reason["text"].as_str());
            tally.reasons.extend(words.map(str::to_owned));
        }
        Ok(tally)
    }

    /// Adds a later look. Processes that have ended took their sums with them,
    /// so the most that was seen at once counts: never too much.
    pub(crate) fn merge(&mut self, later: &Self) {
        for (program, sums) in &later.programs {
            let most = self.programs.entry(program.clone()).or_default();
            most.smc = most.smc.max(sums.smc);
            most.tcp = most.tcp.max(sums.tcp);
        }
        self.reasons.extend(later.reasons.iter().cloned());
    }

    /// What the program of this name has had.
    pub(crate) fn of(&self, program: &str) -> Sums {
        self.programs.get(program).copied().unwrap_or_default()
    }

    /// SMC-D connections of all programs together.
    pub(crate) fn all_smc(&self) -> u64 {
        self.programs.values().map(|sums| sums.smc).sum()
    }

    /// Why connections stayed on TCP.
    pub(crate) fn reasons(&self) -> String {
        self.reasons.iter().map(String::as_str).collect::<Vec<_>>().join("; ")
    }
}

impl From<Tally> for Evidence {
    fn from(tally: Tally) -> Self {
        let sum = |of: fn(&Sums) -> u64| tally.programs.values().map(of).sum::<u64>() as usize;
        Self { smc: sum(|it| it.smc), tcp: sum(|it| it.tcp), reasons: tally.reasons }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (program, sums) in &self.programs {
            write!(f, "{program}: {} SMC-D, {} TCP; ", sums.smc, sums.tcp)?;
        }
        f.write_str(&self.reasons())
    }
}

fn shares_a_process(row: &Value, pids: &[u32]) -> bool {
    let its = row["pids"].as_array().into_iter().flatten().filter_map(Value::as_u64);
    its.into_iter().any(|pid| pids.iter().any(|it| u64::from(*it) == pid))
}

fn belongs_to(row: &Value, pids: &[u32]) -> bool {
    row["pid"].as_u64().is_some_and(|pid| pids.iter().any(|it| u64::from(*it) == pid))
}

fn carried_bytes(row: &Value) -> bool {
    ["bytes_sent", "bytes_received"].iter().any(|field| row[*field].as_u64().unwrap_or(0) > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"[
        {"pid": 1, "mode": "SMC-D", "bytes_sent": 5, "bytes_received": 0, "reason": null},
        {"pid": 1, "mode": "SMC-D", "bytes_sent": 0, "bytes_received": 0, "reason": null},
        {"pid": 2, "mode": "TCP", "bytes_sent": 9, "bytes_received": 9,
         "reason": {"code": "0x03010000", "text": "peer runs no SMC"}},
        {"pid": 3, "mode": "TCP", "bytes_sent": 9, "bytes_received": 9, "reason": null}
    ]"#;

    #[test]
    fn only_smc_d_connections_that_carried_bytes_prove_anything() -> Result<()> {
        let seen = Evidence::parse(TABLE, &[1])?;
        assert_eq!((seen.smc, seen.tcp), (1, 0));
        assert!(seen.supports(Claim::Smc).is_ok());
        assert!(seen.supports(Claim::Tcp).is_err());
        Ok(())
    }

    #[test]
    fn other_processes_do_not_count_and_reasons_are_told() -> Result<()> {
        let seen = Evidence::parse(TABLE, &[2])?;
        assert!(seen.supports(Claim::Tcp).is_ok());
        let refusal = seen.supports(Claim::Smc).err().map(|error| error.to_string());
        assert!(refusal.is_some_and(|text| text.contains("peer runs no SMC")));
        assert!(seen.gives_no_other_reasons(&["runs no SMC"]).is_ok());
        assert!(seen.gives_reason("another user").is_err());
        assert!(Evidence::parse(TABLE, &[4])?.supports(Claim::Tcp).is_err());
        Ok(())
    }

    const TOTALS: &str = r#"[
        {"pids": [1, 2], "program": "server", "smc_connections": 5, "tcp_connections": 4,
         "undecided": 3,
         "reasons": [{"code": "0x03010000", "text": "peer runs no SMC", "connections": 1}]},
        {"pids": [3], "program": "server", "smc_connections": 2, "tcp_connections": 0,
         "undecided": 0, "reasons": []},
        {"pids": [9], "program": "stranger", "smc_connections": 7, "tcp_connections": 0,
         "undecided": 0, "reasons": []}
    ]"#;

    #[test]
    fn totals_of_a_program_are_those_of_all_its_processes_at_once() -> Result<()> {
        let mut tally = Tally::parse(TOTALS, &[2, 3])?;
        assert_eq!(tally.of("server"), Sums { smc: 7, tcp: 1 });
        assert_eq!(tally.of("stranger"), Sums::default());
        tally.merge(&Tally::parse(TOTALS, &[3])?);
        assert_eq!(tally.all_smc(), 7);
        assert!(tally.to_string().contains("peer runs no SMC"));
        Ok(())
    }

    #[test]
    fn looks_add_up() -> Result<()> {
        let mut seen = Evidence::parse(TABLE, &[1])?;
        seen.merge(Evidence::parse(TABLE, &[2, 3])?);
        assert!(seen.supports(Claim::Both).is_ok());
        assert!(seen.must_all_be_smc(1).is_err(), "two are TCP");
        let seen = Evidence::parse(TABLE, &[1])?;
        assert!(seen.must_all_be_smc(1).is_ok() && seen.must_all_be_smc(2).is_err());
        Ok(())
    }
}
