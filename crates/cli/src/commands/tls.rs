//! `sidestep tls`: the rules by which connections are protected, what has become of them, and what should be looked
//! after. `sidestep config check` tells the last of it, too.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::time::{SystemTime, UNIX_EPOCH};

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use jiff::Timestamp;
use serde::Serialize;
use sidestep_gateway::status::{Refusal, RuleStatus, Status};
use sidestep_proto::protection::{Begin, Role};
use sidestep_tls::Rule;
use sidestep_tls::check::{self, Concern};
use thiserror::Error;

use crate::args::TlsArgs;
use crate::config::tls::table_of;
use crate::config::{ConfigError, Configuration};
use crate::output;
use crate::words::listed;

/// Why there is no list.
#[derive(Debug, Error)]
enum TlsError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot write the list: {0}")]
    Output(io::Error),
}

/// Prints the rules: 0, or 1 if they cannot be read.
pub(crate) fn execute(args: &TlsArgs) -> i32 {
    let list = || {
        let found = Configuration::load(args.config.as_deref(), |name| std::env::var_os(name))?;
        let report = Report::new(&found.settings.tls.unwrap_or_default(), Status::ask());
        let text = if args.json { report.to_json() } else { report.to_text() };
        output::print_as(args.json, &text).map_err(TlsError::Output)
    };
    match list() {
        Ok(_) => 0,
        Err(error) => {
            output::complain("tls", &error);
            1
        }
    }
}

/// What is printed; the names are part of the command's interface.
#[derive(Debug, Serialize)]
struct Report {
    rules: Vec<Row>,
    /// Why the gateway does not say what has become of them.
    untold: Option<String>,
    refusals: Vec<Refusal>,
}

#[derive(Debug, Serialize)]
struct Row {
    rule: String,
    ports: String,
    peers: String,
    versions: String,
    trust: String,
    /// No program but the gateway sends on its connections, where an agent runs.
    enforce: bool,
    /// TLS begins when the program asks for it.
    controlled: bool,
    handshakes: Option<u64>,
    resumed: Option<u64>,
    failed: Option<u64>,
    /// Until when its certificate is valid.
    certificate_ends: Option<String>,
    concerns: Vec<String>,
}

impl Report {
    fn new(rules: &[Rule], said: io::Result<Status>) -> Self {
        let untold = said.as_ref().err().map(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                "there is no gateway, so all connections of these rules are refused; start one: sidestep \
                 gateway"
                    .to_owned()
            }
            _ => format!("the gateway cannot be asked: {error}; root may ask any"),
        });
        let told = said.unwrap_or_default();
        let concerns = concerns(rules);
        let row = |(at, rule): (usize, &Rule)| {
            let own = concerns.iter().filter(|(of, _)| *of == at).map(|(_, it)| it.to_string());
            Row::new(rule, &told.rules, untold.is_none(), own.collect())
        };
        let rows = rules.iter().enumerate().map(row).collect();
        Self { rules: rows, untold, refusals: told.refusals }
    }

    fn to_json(&self) -> String {
        // Numbers and strings only: cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    fn to_text(&self) -> String {
        if self.rules.is_empty() {
            return "No rule of TLS: [tls.outbound.NAME] and [tls.inbound.NAME] of the configuration \
                    are rules.\n"
                .to_owned();
        }
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(HEADER);
        table.add_rows(self.rules.iter().map(Row::cells));
        let mut text: String = table.lines().map(|line| line.trim().to_owned() + "\n").collect();
        for row in &self.rules {
            text.extend(row.concerns.iter().map(|it| format!("{}: {it}\n", row.rule)));
        }
        text.extend(self.untold.iter().map(|words| format!("\n{words}\n")));
        if !self.refusals.is_empty() {
            text += "\nRefused lately:\n";
            text.extend(self.refusals.iter().map(|it| format!("  {}\n", in_words(it))));
        }
        text
    }
}

const HEADER: [&str; 11] = [
    "Rule",
    "Ports",
    "Peers",
    "Versions",
    "Trust",
    "Enforced",
    "Begins",
    "Handshakes",
    "Resumed",
    "Failed",
    "Certificate ends",
];

impl Row {
    fn new(rule: &Rule, told: &[RuleStatus], is_told: bool, mut concerns: Vec<String>) -> Self {
        let is_meant = |it: &&RuleStatus| {
            it.name == rule.name().as_str() && it.is_server == (rule.scope.role == Role::Inbound)
        };
        let told = told.iter().find(is_meant);
        if is_told && told.is_none() {
            concerns.push(
                "the gateway does not know it and refuses its connections; systemctl reload \
                 sidestep-gateway"
                    .to_owned(),
            );
        }
        concerns.extend(told.and_then(|it| it.trouble.clone()));
        let end = |until: i64| Timestamp::from_second(until).ok().map(|it| it.to_string());
        Self {
            rule: name(rule),
            ports: listed(&rule.scope.ports, ","),
            peers: listed(&rule.scope.peers, ","),
            versions: rule.versions.to_string(),
            trust: rule.trust.to_string(),
            enforce: rule.enforce,
            controlled: rule.scope.begin == Begin::Asked,
            handshakes: told.map(|it| it.handshakes),
            resumed: told.map(|it| it.resumed),
            failed: told.map(|it| it.failed),
            certificate_ends: told.and_then(|it| it.valid_until).and_then(end),
            concerns,
        }
    }

    fn cells(&self) -> [String; HEADER.len()] {
        let number = |it: Option<u64>| it.map_or_else(|| "?".to_owned(), |it| it.to_string());
        let all = |it: &str| if it.is_empty() { "all".to_owned() } else { it.to_owned() };
        [
            self.rule.clone(),
            all(&self.ports),
            all(&self.peers),
            self.versions.clone(),
            self.trust.clone(),
            (if self.enforce { "yes" } else { "no" }).to_owned(),
            (if self.controlled { "when asked" } else { "at once" }).to_owned(),
            number(self.handshakes),
            number(self.resumed),
            number(self.failed),
            self.certificate_ends.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    }
}

fn name(rule: &Rule) -> String {
    format!("{}.{}", table_of(rule.scope.role), rule.name())
}

/// A connection that was not protected.
pub(super) fn in_words(refusal: &Refusal) -> String {
    let Refusal { user, remote, rule, is_server, words, at, .. } = refusal;
    let role = if *is_server { "server of" } else { "client of" };
    let peer = remote.map_or_else(|| "a peer that had gone".to_owned(), |it| it.to_string());
    let ago = now().saturating_sub(*at).max(0);
    format!("{ago} s ago, {role} {peer}, user {user}, rule {rule}: {words}")
}

/// What should be looked after, as far as this user sees the files, by the place of the rule.
fn concerns(rules: &[Rule]) -> Vec<(usize, Concern)> {
    let mut concerns = check::unreachable(rules);
    for (at, rule) in rules.iter().enumerate() {
        let Some(identity) = &rule.identity else { continue };
        let mode = fs::metadata(&identity.key).map(|it| it.permissions().mode());
        concerns.extend(mode.ok().and_then(check::key_mode).map(|it| (at, it)));
        let concern = match fs::read(&identity.certificate) {
            Ok(pem) => match check::valid_until(&pem) {
                Ok(until) => check::validity(until, now()),
                Err(concern) => Some(concern),
            },
            Err(error) => Some(Concern::NoCertificate(error.to_string())),
        };
        concerns.extend(concern.map(|it| (at, it)));
    }
    concerns
}

/// The same in words, each with the name of its rule.
pub(super) fn concerns_in_words(rules: &[Rule]) -> Vec<String> {
    let told = |(at, concern): (usize, Concern)| format!("tls.{}: {concern}", name(&rules[at]));
    concerns(rules).into_iter().map(told).collect()
}

/// In seconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_proto::protection::Scope;
    use sidestep_tls::rule::{Expected, Identity};

    fn rule(role: Role, identity: Option<Identity>) -> Rule {
        let ports = ["6514".parse().unwrap()].into_iter().collect();
        let (begin, peers, users) = Default::default();
        let rule =
            Rule::new(Scope { role, begin, name: "logs".parse().unwrap(), ports, peers, users });
        Rule { identity, server_name: Some(Expected::Address), ..rule }
    }

    #[test]
    fn a_rule_shows_what_the_gateway_says_of_it() {
        let known = RuleStatus {
            name: "logs".to_owned(),
            is_server: false,
            handshakes: 7,
            resumed: 2,
            failed: 1,
            valid_until: Some(0),
            trouble: None,
        };
        let refusal = Refusal {
            user: 0,
            local: None,
            remote: Some("10.0.0.1:6514".parse().unwrap()),
            rule: "logs".to_owned(),
            is_server: false,
            words: "the peer refuses: alert unknown_ca (48)".to_owned(),
            alert: Some(48),
            at: now(),
        };
        let status = Status { rules: vec![known], refusals: vec![refusal], ..Status::default() };
        let enforced = Rule { enforce: true, ..rule(Role::Outbound, None) };
        let report = Report::new(&[enforced], Ok(status));
        let text = report.to_text();
        let cells = report.rules[0].cells();
        assert_eq!(cells[5..10], ["yes", "at once", "7", "2", "1"], "{text}");
        assert!(
            text.contains("client of 10.0.0.1:6514, user 0, rule logs: the peer refuses"),
            "{text}"
        );
        let unknown = Report::new(&[rule(Role::Inbound, None)], Ok(Status::default()));
        assert!(unknown.rules[0].concerns[0].contains("does not know it"), "{unknown:?}");
    }

    #[test]
    fn without_a_gateway_that_is_said() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let report = Report::new(&[rule(Role::Outbound, None)], Err(refused));
        assert!(report.to_text().contains("there is no gateway, so all connections"));
        assert_eq!(report.rules[0].cells()[5..8], ["no", "at once", "?"]);
        let mut later = rule(Role::Outbound, None);
        later.scope.begin = Begin::Asked;
        let report = Report::new(&[later], Ok(Status::default()));
        assert_eq!(report.rules[0].cells()[6], "when asked");
    }

    #[test]
    fn files_are_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = (directory.path().join("c"), directory.path().join("k"));
        for path in [&certificate, &key] {
            fs::write(path, "none").unwrap();
        }
        fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
        let identity = Some(Identity { certificate, key });
        let told = concerns_in_words(&[rule(Role::Inbound, identity)]);
        assert!(told[0].starts_with("tls.inbound.logs: its key can be read by others (mode 644)"));
        assert!(
            told[1].starts_with("tls.inbound.logs: its certificate cannot be read"),
            "{told:?}"
        );
    }
}
