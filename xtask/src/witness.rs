//! The proof that connections were what they seemed: looks at `sidestep ss`
//! while they are open.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::bench::launch;

/// `sidestep ss` asks processes that may be busy; it never needs this long.
const LOOK_PATIENCE: Duration = Duration::from_secs(10);

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
        let Some(sidestep) = &self.sidestep else {
            return Ok(Evidence::default());
        };
        let mut command = Command::new(sidestep);
        command.args(["ss", "--json"]);
        let table = launch::run(command, LOOK_PATIENCE)?;
        Evidence::parse(&table, pids)
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

    /// **Errors**: no connection was TCP for a reason with these words.
    pub(crate) fn gives_reason(&self, words: &str) -> Result<()> {
        let is_given = self.reasons.iter().any(|reason| reason.contains(words));
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
        assert!(seen.gives_reason("runs no SMC").is_ok());
        assert!(seen.gives_reason("another user").is_err());
        assert!(Evidence::parse(TABLE, &[4])?.supports(Claim::Tcp).is_err());
        Ok(())
    }

    #[test]
    fn looks_add_up() -> Result<()> {
        let mut seen = Evidence::parse(TABLE, &[1])?;
        seen.merge(Evidence::parse(TABLE, &[2, 3])?);
        assert!(seen.supports(Claim::Both).is_ok());
        Ok(())
    }
}
