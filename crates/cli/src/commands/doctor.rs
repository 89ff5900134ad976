//! `sidestep doctor`: what, on this machine or in a program, keeps connections on TCP; with `--fix` it changes what it can
//! ([`fix`]).

mod agent;
mod change;
mod check;
mod containers;
mod filter;
mod fix;
mod gateway;
mod leftovers;
mod machine;
mod peer;
mod program;
mod services;
mod tcp_option;

use serde::Serialize;

use crate::args::DoctorArgs;
use crate::output;
use check::{Check, Status};

/// Prints the result of every check; 1 if one of them failed, otherwise 0. With `--fix` it is 1 if something is left.
pub(crate) fn execute(args: &DoctorArgs) -> i32 {
    let report = Report::new(checks(args));
    let text = if args.json { report.to_json() + "\n" } else { report.to_text() };
    // The exit status says it as well.
    let _ = output::print_as(args.json, &text);
    if args.fix {
        return fix::execute(report.checks, args.dry_run, || checks(args));
    }
    i32::from(report.status == Status::Fail)
}

fn checks(args: &DoctorArgs) -> Vec<Check> {
    let mut checks = machine::checks();
    checks.push(tcp_option::check());
    checks.push(agent::check());
    checks.extend(services::check());
    checks.extend(containers::check());
    checks.push(leftovers::check(&agent::socket()));
    checks.push(filter::check());
    checks.extend(gateway::checks(machine::limit(libc::RLIMIT_MEMLOCK)));
    if let Some(peer) = args.peer {
        checks.extend(peer::checks(peer));
    }
    if let Some(program) = &args.program {
        checks.extend(program::checks(program));
    }
    checks
}

/// All checks, and the worst status among them.
#[derive(Debug, Serialize)]
struct Report {
    status: Status,
    checks: Vec<Check>,
}

impl Report {
    fn new(checks: Vec<Check>) -> Self {
        let status = checks.iter().map(|check| check.status).max();
        Self { status: status.unwrap_or(Status::Ok), checks }
    }

    fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings and unit variants are always JSON")
    }

    fn to_text(&self) -> String {
        let width = self.checks.iter().map(|check| check.name.len()).max();
        let width = width.unwrap_or(0);
        let mut text = String::new();
        for check in &self.checks {
            let Check { name, finding, .. } = check;
            let status = check.status.word();
            text += &format!("{status:<4}  {name:<width$}  {finding}\n");
            if let Some(advice) = &check.advice {
                text += &format!("{:<4}  {:<width$}  -> {advice}\n", "", "");
            }
            if !check.changes.is_empty() {
                text += &format!("{:<4}  {:<width$}  -> or: sidestep doctor --fix\n", "", "");
            }
        }
        let count = |status| self.checks.iter().filter(|c| c.status == status).count();
        text += &match (count(Status::Fail), count(Status::Warn)) {
            (0, 0) => "Nothing stands in the way of shared memory.\n".to_owned(),
            (0, warnings) => {
                format!("Nothing stands in the way of shared memory; warnings: {warnings}.\n")
            }
            (failures, _) => format!("Connections will stay on TCP; failed checks: {failures}.\n"),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report::new(vec![
            Check::ok("kernel", "6.1.0"),
            Check::warn("open files", "256", "raise it"),
        ])
    }

    #[test]
    fn text_is_aligned_and_ends_with_a_verdict() {
        assert_eq!(
            report().to_text(),
            "ok    kernel      6.1.0\n\
             warn  open files  256\n                  -> raise it\n\
             Nothing stands in the way of shared memory; warnings: 1.\n"
        );
        let failed = Report::new(vec![Check::fail("kernel", "4.19.0", "update it")]);
        assert!(failed.to_text().ends_with("stay on TCP; failed checks: 1.\n"));
    }

    #[test]
    fn json_has_the_same_facts() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
        assert_eq!(json["status"], "warn");
        assert_eq!(json["checks"][0]["check"], "kernel");
        assert_eq!(json["checks"][0]["advice"], serde_json::Value::Null);
        assert_eq!(json["checks"][1]["status"], "warn");
        assert_eq!(json["checks"][1]["finding"], "256");
        assert_eq!(json["checks"][1]["advice"], "raise it");
    }
}
