//! An explanation as text and as JSON.

use std::net::SocketAddr;

use serde::Serialize;

use sidestep_gateway::status::Refusal;

use super::findings::Finding;
use crate::commands::tls::in_words;

/// What is said; the names are part of the command's interface.
#[derive(Debug, Default, Serialize)]
pub(super) struct Explanation {
    /// What was asked about, as it was understood.
    pub(super) subject: String,
    /// Whatever else the word could have meant, and how to ask for that.
    pub(super) hint: Option<String>,
    /// Who listens, if a port was asked about.
    pub(super) listeners: Vec<ListenerRow>,
    pub(super) findings: Vec<Finding>,
    /// Connections that have ended because TLS did not protect them.
    pub(super) refusals: Vec<Refusal>,
    /// Decisions of the last hour that were too many kinds to be told apart.
    pub(super) untold: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct ListenerRow {
    pub(super) address: SocketAddr,
    pub(super) pid: Option<u32>,
    pub(super) program: Option<String>,
    pub(super) under_sidestep: bool,
    /// Why connections to a plain one stay on TCP.
    pub(super) state: Option<String>,
    pub(super) change: Option<String>,
    /// At a VIP: which target it is.
    pub(super) target: Option<String>,
}

impl Explanation {
    pub(super) fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        json.expect("numbers and strings are always JSON") + "\n"
    }

    pub(super) fn to_text(&self) -> String {
        let mut lines = vec![self.subject.clone()];
        lines.extend(self.hint.iter().map(|hint| format!("  ({hint})")));
        lines.extend(self.listeners.iter().map(|listener| format!("  {}", listener.to_text())));
        lines.extend(self.refusals.iter().map(|it| format!("  not protected: {}", in_words(it))));
        if self.findings.is_empty() && self.refusals.is_empty() {
            let nothing = "  no connection of a program under Sidestep, now or in the last hour";
            lines.push(nothing.to_owned());
        }
        for finding in &self.findings {
            lines.push(String::new());
            lines.extend(finding.lines());
        }
        if self.untold > 0 {
            let untold = self.untold;
            lines.push(String::new());
            lines
                .push(format!("The history was full: {untold} more decisions are not told apart."));
        }
        lines.join("\n") + "\n"
    }
}

impl ListenerRow {
    fn to_text(&self) -> String {
        let who = match (&self.program, self.pid) {
            (Some(program), Some(pid)) => format!("{program} ({pid})"),
            _ => "a process".into(),
        };
        let mut text = match &self.target {
            None => format!("{who} listens at {}", self.address),
            Some(target) => format!("{who} serves {}: {target}", self.address),
        };
        match &self.state {
            None => text += ", under Sidestep",
            Some(state) => text += &format!("; {state}"),
        }
        if let Some(change) = &self.change {
            text += &format!(". Change: {change}");
        }
        text
    }
}

impl Finding {
    fn lines(&self) -> Vec<String> {
        let server = self.server.map_or("an unknown address".into(), |server| server.to_string());
        let end = match self.role {
            "server" => format!("server at {server}"),
            _ => format!("client of {server}"),
        };
        let mut lines = vec![
            format!("{}: {} ({}), {end}", self.mode, self.program, self.pid),
            format!("  {:<12}{}", "Why", self.words),
        ];
        lines.extend(self.blame.map(|blame| format!("  {:<12}{}", "Fault", blame.words())));
        lines.extend([
            format!("  {:<12}{}", "How often", self.how_often()),
            format!("  {:<12}{}", "Tried", self.tried),
            format!("  {:<12}{}", "Decided by", self.decided_by),
        ]);
        if let Some(code) = &self.code {
            lines.push(format!("  {:<12}{} {} ({})", "Code", code.code, code.name, code.text));
        }
        if let Some(rule) = &self.rule {
            lines.push(format!("  {:<12}{rule}", "Rule"));
        }
        let change = self.change.as_deref().unwrap_or("nothing");
        lines.push(format!("  {:<12}{change}", "Change"));
        lines
    }

    fn how_often(&self) -> String {
        let connections = if self.open == 1 { "connection" } else { "connections" };
        let mut text =
            format!("{} {connections} open; {} in the last hour", self.open, self.in_last_hour);
        if let Some(seconds) = self.last_ago_s {
            text += &match seconds {
                0..=1 => ", the last just now".to_owned(),
                2..=119 => format!(", the last {seconds} seconds ago"),
                _ => format!(", the last {} minutes ago", seconds / 60),
            };
        }
        text
    }
}
