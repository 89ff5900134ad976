//! What the user has chosen to see: order, filter, programs or connections, and how far down.

use std::cmp::Reverse;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::rows::{ConnectionRow, ProgramRow, Rates, Rows};
use crate::args::{SortColumn, TopArgs};

/// See the [module](self).
pub(super) struct View {
    pub(super) sort: SortColumn,
    /// The least first.
    pub(super) is_reversed: bool,
    pub(super) shows_connections: bool,
    pub(super) filter: String,
    /// Keys go into the filter.
    pub(super) is_filtering: bool,
    pub(super) is_paused: bool,
    /// The first row that is shown.
    pub(super) first: usize,
    /// Rows that the last picture had room for.
    pub(super) room: usize,
}

/// What follows from a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Go,
    End,
}

impl View {
    pub(super) fn new(args: &TopArgs) -> Self {
        Self {
            sort: args.sort,
            is_reversed: false,
            shows_connections: args.connections,
            filter: args.filter.clone(),
            is_filtering: false,
            is_paused: false,
            first: 0,
            room: 0,
        }
    }

    /// Takes a key.
    pub(super) fn on_key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::End;
        }
        match self.is_filtering {
            true => self.edit_filter(key.code),
            false => return self.command(key.code),
        }
        Action::Go
    }

    fn edit_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.is_filtering = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.is_filtering = false;
            }
            _ => {}
        }
        self.first = 0;
    }

    fn command(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') => return Action::End,
            KeyCode::Char('b') => self.sort_by(SortColumn::Bytes),
            KeyCode::Char('m') => self.sort_by(SortColumn::Messages),
            KeyCode::Char('w') => self.sort_by(SortColumn::Waiting),
            KeyCode::Char('f') => self.sort_by(SortColumn::Fallback),
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.is_filtering = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Tab => {
                self.shows_connections = !self.shows_connections;
                self.first = 0;
            }
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first += 1,
            KeyCode::PageUp => self.first = self.first.saturating_sub(self.room.max(1)),
            KeyCode::PageDown => self.first += self.room.max(1),
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.first = usize::MAX,
            _ => {}
        }
        Action::Go
    }

    /// By this column; turned around if it is the one already.
    fn sort_by(&mut self, column: SortColumn) {
        self.is_reversed = self.sort == column && !self.is_reversed;
        self.sort = column;
        self.first = 0;
    }

    /// The programs that are asked for, in order.
    pub(super) fn programs<'a>(&self, rows: &'a Rows) -> Vec<&'a ProgramRow> {
        let has =
            |row: &&ProgramRow| self.asks_for(row.pid, &[&row.program, &row.user, &row.reason]);
        let mut shown: Vec<_> = rows.programs.iter().filter(has).collect();
        self.order(&mut shown, |row| (row.rates, row.open.fallbacks));
        shown
    }

    /// The connections that are asked for, in order.
    pub(super) fn connections<'a>(&self, rows: &'a Rows) -> Vec<&'a ConnectionRow> {
        let has = |row: &&ConnectionRow| {
            let ConnectionRow { program, user, local, peer, mode, reason, .. } = row;
            self.asks_for(row.pid, &[program, user, local, peer, mode, reason])
        };
        let mut shown: Vec<_> = rows.connections.iter().filter(has).collect();
        self.order(&mut shown, |row| (row.rates, u64::from(!row.reason.is_empty())));
        shown
    }

    fn asks_for(&self, pid: u32, columns: &[&str]) -> bool {
        self.filter.is_empty()
            || columns.iter().any(|column| column.contains(&self.filter))
            || pid.to_string() == self.filter
    }

    /// The largest first; where the column is the same, what moves more bytes, and then the order of the
    /// processes, so that rows of nothing do not jump.
    fn order<T>(&self, rows: &mut [&T], of: impl Fn(&T) -> (Rates, u64)) {
        rows.sort_by_cached_key(|row| {
            let (rates, fallbacks) = of(row);
            let bytes = whole(rates.bytes_per_second);
            let first = match self.sort {
                SortColumn::Bytes => bytes,
                SortColumn::Messages => whole(rates.messages_per_second),
                SortColumn::Waiting => whole(rates.waiting_cpus * 1e6),
                SortColumn::Fallback => fallbacks,
            };
            Reverse((first, bytes))
        });
        if self.is_reversed {
            rows.reverse();
        }
    }

    /// The rows of a list that a picture with room for so many shows.
    pub(super) fn window(&mut self, rows: usize, room: usize) -> std::ops::Range<usize> {
        self.room = room;
        self.first = self.first.min(rows.saturating_sub(room));
        self.first..rows.min(self.first + room)
    }
}

/// As a number that has an order.
fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// Characters of a filter: no name is longer than that.
const FILTER_MAX: usize = 64;

#[cfg(test)]
pub(super) mod tests {
    use super::super::rows::Open;
    use super::*;
    use clap::Parser;

    /// The view of this command line.
    pub(in crate::commands::top) fn view(line: &str) -> View {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: TopArgs,
        }
        let words = ["top"].into_iter().chain(line.split_whitespace());
        View::new(&Line::try_parse_from(words).unwrap().args)
    }

    pub(in crate::commands::top) fn press(view: &mut View, keys: &str) -> Action {
        let press = |c| view.on_key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE));
        keys.chars().map(press).last().unwrap_or(Action::Go)
    }

    fn row(pid: u32, bytes: f64, messages: f64, waiting: f64, fallbacks: u64) -> ProgramRow {
        let rates = Rates {
            bytes_per_second: bytes,
            messages_per_second: messages,
            waiting_cpus: waiting,
            ..Rates::default()
        };
        let open = Open { fallbacks, ..Open::default() };
        let (program, user) = (format!("program-{pid}"), "root".to_owned());
        ProgramRow { pid, program, user, rates, open, ..ProgramRow::default() }
    }

    fn rows() -> Rows {
        let programs =
            vec![row(1, 10.0, 1.0, 0.0, 7), row(2, 30.0, 0.0, 0.001, 0), row(3, 20.0, 5.0, 0.5, 0)];
        Rows { programs, ..Rows::default() }
    }

    fn pids(view: &View) -> Vec<u32> {
        view.programs(&rows()).iter().map(|row| row.pid).collect()
    }

    #[test]
    fn keys_choose_the_order_and_turn_it() {
        let mut view = view("");
        assert_eq!(pids(&view), [2, 3, 1]);
        for (key, order) in [("m", [3, 1, 2]), ("w", [3, 2, 1]), ("f", [1, 2, 3])] {
            assert_eq!(press(&mut view, key), Action::Go);
            assert_eq!(pids(&view), order, "{key}");
        }
        press(&mut view, "f");
        assert_eq!(pids(&view), [3, 2, 1], "turned");
        press(&mut view, "b");
        assert_eq!(pids(&view), [2, 3, 1], "another column begins with the largest");
    }

    #[test]
    fn a_filter_is_typed_taken_and_cleared() {
        let mut view = view("");
        press(&mut view, "/program-3q");
        assert_eq!((pids(&view).len(), view.is_filtering), (0, true), "q is a letter of it");
        let key = |view: &mut View, code| view.on_key(KeyEvent::new(code, KeyModifiers::NONE));
        key(&mut view, KeyCode::Backspace);
        key(&mut view, KeyCode::Enter);
        assert_eq!((pids(&view), view.is_filtering), (vec![3], false));
        key(&mut view, KeyCode::Esc);
        assert_eq!(pids(&view).len(), 3);
        press(&mut view, "/2");
        assert_eq!(pids(&view), [2], "a process, or a part of a name");
        key(&mut view, KeyCode::Esc);
        assert_eq!((view.filter.as_str(), view.is_filtering), ("", false));
    }

    #[test]
    fn two_keys_end_it() {
        let mut view = view("");
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(press(&mut view, "q"), Action::End);
        press(&mut view, "/");
        assert_eq!(view.on_key(control_c), Action::End, "while filtering, too");
    }

    #[test]
    fn scrolling_ends_at_both_ends() {
        let mut view = view("");
        assert_eq!(view.window(10, 4), 0..4);
        let key = |view: &mut View, code| view.on_key(KeyEvent::new(code, KeyModifiers::NONE));
        key(&mut view, KeyCode::PageDown);
        assert_eq!(view.window(10, 4), 4..8);
        key(&mut view, KeyCode::End);
        assert_eq!(view.window(10, 4), 6..10);
        key(&mut view, KeyCode::Down);
        assert_eq!(view.window(10, 4), 6..10);
        key(&mut view, KeyCode::Up);
        assert_eq!(view.window(10, 4), 5..9);
        assert_eq!(view.window(2, 4), 0..2, "fewer rows than there were");
        key(&mut view, KeyCode::Tab);
        assert!(view.shows_connections);
    }
}
