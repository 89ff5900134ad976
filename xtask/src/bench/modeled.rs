//! What the modeler found out: the document of a `sidestep bench`.
//!
//! The modeler gives a transport up when a run has failed twice, and makes no further run of it. What
//! the document lacks then has its reason among the document's warnings, and is told with it here.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use super::report::Pair;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Report(Value);

impl Report {
    /// Reads the document at `json` behind the end of the modeler that was to write it, and removes it.
    /// The modeler also fails when connections stayed on TCP, and has its figures then.
    ///
    /// **Errors**: there is no document; it is told how the modeler ended.
    pub(super) fn read(ended: Result<String>, json: &str) -> Result<Self> {
        let document = fs::read(json).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let _ = fs::remove_file(json);
        match (document, ended) {
            (Some(document), _) => Ok(Self(document)),
            (None, Err(error)) => Err(error),
            (None, Ok(said)) => Err(anyhow!("the modeler wrote no figures: {said}")),
        }
    }

    /// A number of the only result.
    pub(super) fn number(&self, pointer: &str) -> Result<f64> {
        let number = self.0.pointer(&format!("/results/0{pointer}")).and_then(Value::as_f64);
        number.with_context(|| format!("no {pointer} in the result; {}", self.warnings()))
    }

    /// Transactions per second of each run over a transport, by its pair. Those of runs that were given
    /// up are missing.
    pub(super) fn rates(&self, transport: &str) -> Result<BTreeMap<u64, f64>> {
        let cells = self.0["results"].as_array().context("no results")?;
        let cell = cells.iter().find(|cell| cell["transport"] == transport);
        let samples = cell.and_then(|cell| cell["samples"].as_array());
        let samples =
            samples.with_context(|| format!("no runs over {transport}; {}", self.warnings()))?;
        let rate = |sample: &Value| Some((sample["pair"].as_u64()?, sample["tps"].as_f64()?));
        samples.iter().map(|sample| rate(sample).context("a run without a rate")).collect()
    }

    /// Of `wanted` pairs those that have both runs, and what is missing, if some have not.
    ///
    /// **Errors**: none has.
    pub(super) fn pairs(&self, wanted: u32) -> Result<(Vec<Pair>, Option<String>)> {
        let (tcp, smc) = (self.rates("tcp")?, self.rates("smc")?);
        let pair = |(number, tcp)| Some(Pair { tcp, smc: *smc.get(&number)? });
        let pairs: Vec<Pair> = tcp.into_iter().filter_map(pair).collect();
        let lacking = (wanted as usize).saturating_sub(pairs.len());
        let missing = (lacking > 0)
            .then(|| format!("{lacking} of {wanted} pairs are missing; {}", self.warnings()));
        match missing {
            Some(missing) if pairs.is_empty() => Err(anyhow!(missing)),
            missing => Ok((pairs, missing)),
        }
    }

    fn warnings(&self) -> Warnings<'_> {
        Warnings(&self.0)
    }
}

/// What the modeler says of a document's runs and of the machine.
struct Warnings<'a>(&'a Value);

impl fmt::Display for Warnings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let warnings = self.0.pointer("/machine/warnings").and_then(Value::as_array);
        let warnings: Vec<&str> =
            warnings.into_iter().flatten().filter_map(Value::as_str).collect();
        match warnings[..] {
            [] => f.write_str("the modeler gives no reason"),
            _ => write!(f, "the modeler says: {}", warnings.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const GIVEN_UP: &str =
        "CRR1(64B/8kB) over smc (processes), run 2: a worker died; no further run was made of it";

    /// A document with so many runs over TCP and over SMC.
    fn report(tcp: u64, smc: u64, warnings: &[&str]) -> Report {
        let runs = |count: u64| -> Vec<Value> {
            (0..count).map(|pair| json!({ "pair": pair, "tps": 100.0 + pair as f64 })).collect()
        };
        // Without a run there is no cell.
        let cell = |transport: &str, count| {
            (count > 0).then(|| json!({ "transport": transport, "samples": runs(count) }))
        };
        let results: Vec<Value> =
            [cell("tcp", tcp), cell("smc", smc)].into_iter().flatten().collect();
        Report(json!({ "machine": { "warnings": warnings }, "results": results }))
    }

    #[test]
    fn pairs_that_the_modeler_gave_up_are_missing_with_its_reason() {
        let (pairs, missing) = report(4, 4, &["it is busy"]).pairs(4).unwrap();
        assert_eq!((pairs.len(), missing), (4, None));
        let (pairs, missing) = report(4, 1, &[GIVEN_UP]).pairs(4).unwrap();
        assert_eq!((pairs.len(), pairs[0].tcp), (1, 100.0));
        let wanted = format!("3 of 4 pairs are missing; the modeler says: {GIVEN_UP}");
        assert_eq!(missing, Some(wanted));
    }

    #[test]
    fn what_is_not_there_at_all_is_an_error_with_its_reason() {
        let said = |error: anyhow::Error| error.to_string();
        let none = report(4, 0, &["it is busy", GIVEN_UP]);
        let reason = format!("the modeler says: it is busy; {GIVEN_UP}");
        assert_eq!(said(none.pairs(4).unwrap_err()), format!("no runs over smc; {reason}"));
        assert_eq!(
            said(none.number("/tps/median").unwrap_err()),
            format!("no /tps/median in the result; {reason}")
        );
        let silent = report(0, 0, &[]).rates("tcp").unwrap_err();
        assert_eq!(said(silent), "no runs over tcp; the modeler gives no reason");
    }

    #[test]
    fn a_modeler_without_a_document_is_told_as_it_ended() {
        let nowhere = "/nonexistent/crr.json";
        let ended = Report::read(Err(anyhow!("sidestep failed: no such server")), nowhere);
        assert_eq!(ended.unwrap_err().to_string(), "sidestep failed: no such server");
        let ended = Report::read(Ok("nothing".to_owned()), nowhere);
        assert_eq!(ended.unwrap_err().to_string(), "the modeler wrote no figures: nothing");
    }
}
