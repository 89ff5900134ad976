//! One interval as text and as JSON.

use comfy_table::Table;
use serde::Serialize;

use super::picture::{figures, missing};
use super::rows::{ConnectionRow, Open, ProgramRow, Rates, Rows};
use super::view::View;
use crate::commands::ss::aligned;

/// What is asked for, as a table.
pub(super) fn text(rows: &Rows, view: &View, width: Option<u16>) -> String {
    let mut table = Table::new();
    let numbers = match view.shows_connections {
        true => {
            table
                .set_header(CONNECTIONS)
                .add_rows(view.connections(rows).into_iter().map(connection));
            4..=6
        }
        false => {
            table.set_header(PROGRAMS).add_rows(view.programs(rows).into_iter().map(program));
            3..=8
        }
    };
    let mut text = match rows.programs.is_empty() {
        true => "no Sidestep programs are running\n".to_owned(),
        false => aligned(table, numbers, width),
    };
    let missing = missing(rows.notes);
    if !missing.is_empty() {
        text += &(missing + "\n");
    }
    text
}

const PROGRAMS: [&str; 10] =
    ["PID", "User", "Program", "Open", "SMC", "TCP", "Bytes/s", "Messages/s", "Wait", "Reason"];
const CONNECTIONS: [&str; 8] =
    ["Mode", "PID/Program", "Local", "Peer", "Bytes/s", "Messages/s", "Wait", "Reason"];

fn program(row: &ProgramRow) -> [String; PROGRAMS.len()] {
    let [moved, messages, waiting] = figures(row.rates);
    let [open, smc, tcp] =
        [row.open.connections, row.open.smc, row.open.tcp].map(|n| n.to_string());
    let (user, program, reason) = (row.user.clone(), row.program.clone(), row.reason.clone());
    [row.pid.to_string(), user, program, open, smc, tcp, moved, messages, waiting, reason]
}

fn connection(row: &ConnectionRow) -> [String; CONNECTIONS.len()] {
    let [moved, messages, waiting] = figures(row.rates);
    let program = format!("{}/{}", row.pid, row.program);
    let (local, peer, reason) = (row.local.clone(), row.peer.clone(), row.reason.clone());
    [row.mode.to_owned(), program, local, peer, moved, messages, waiting, reason]
}

/// One interval in `--json`; the names are part of the command's interface.
#[derive(Serialize)]
struct Listing<'a> {
    all: All,
    programs: Vec<&'a ProgramRow>,
    connections: Vec<&'a ConnectionRow>,
    /// Processes at whose descriptors we may not look.
    unreadable: usize,
}

#[derive(Serialize)]
struct All {
    #[serde(flatten)]
    open: Open,
    #[serde(flatten)]
    rates: Rates,
}

/// Programs and connections, whichever of them is shown.
pub(super) fn json(rows: &Rows, view: &View) -> String {
    let (open, rates) = rows.sum();
    let listing = Listing {
        all: All { open, rates },
        programs: view.programs(rows),
        connections: view.connections(rows),
        unreadable: rows.notes.unreadable,
    };
    let json = serde_json::to_string_pretty(&listing);
    json.expect("numbers and strings are always JSON") + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::rows;
    use super::super::view::tests::view;
    use super::*;

    #[test]
    fn a_table_of_programs_or_of_connections() {
        let programs = text(&rows(), &view(""), None);
        let lines: Vec<_> = programs.lines().collect();
        assert_eq!(lines.len(), 2, "{programs}");
        assert!(
            lines[1].starts_with("4711  root  redis-server     3    1    2     2 MB"),
            "{programs}"
        );
        assert!(
            lines[1].ends_with("12.5 %  0x03010000 the peer does not run Sidestep"),
            "{programs}"
        );
        let connections = text(&rows(), &view("--connections"), None);
        assert_eq!(connections.lines().count(), 4, "{connections}");
        assert!(connections.contains("SMC-D  4711/redis-server  127.0.0.1:6379"), "{connections}");
        let nothing = text(&Rows::default(), &view(""), None);
        assert_eq!(nothing, "no Sidestep programs are running\n");
    }

    #[test]
    fn json_has_all_of_it_in_order() {
        let json: serde_json::Value =
            serde_json::from_str(&json(&rows(), &view("--sort fallback"))).unwrap();
        assert_eq!(json["all"]["connections"], 3);
        assert_eq!(json["all"]["messages_per_second"], 2000.0);
        assert_eq!(json["programs"][0]["fallbacks"], 2);
        assert_eq!(json["programs"][0]["waiting_cpus"], 0.125);
        assert_eq!(json["connections"][0]["mode"], "TCP", "those with a reason come first");
        assert_eq!(json["connections"][2]["peer"], "127.0.0.1:40000");
    }
}
