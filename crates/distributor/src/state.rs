//! The state of a target, as a machine.
//!
//! ```text
//!               Rose            Engage
//!      Down ───────────> Standby ─────> Active
//!      │  ^ <─────Fell──── │ ^ <─Relieve─ │
//!      │  │                │ │            │ (Fell: Down)
//!  Drain  Resume      Drain  Resume   Drain
//!      v  │                v │            │
//!     Drained ──Rose──> Draining <────────┘
//!             <──Fell──
//! ```
//!
//! A target that is up is on standby until its VIP engages it: at once under most methods, when the leader
//! is gone under `HOTSTANDBY`. A target that is drained stays drained until it is resumed, whether it is up
//! or down meanwhile.

use std::fmt;

/// What a target does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It does not serve.
    #[default]
    Down,
    /// It serves, and takes no new connections as long as another one does.
    Standby,
    /// It takes new connections.
    Active,
    /// It keeps its connections and takes no new ones, because the operator wants it so.
    Draining,
    /// The same, and it does not serve.
    Drained,
}

/// What changes a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It serves from now on.
    Rose,
    /// It serves no more.
    Fell,
    /// Its VIP needs it.
    Engage,
    /// Its VIP needs it no more.
    Relieve,
    /// The operator wants it to take no new connections.
    Drain,
    /// The operator wants it back.
    Resume,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Down, Self::Standby, Self::Active, Self::Draining, Self::Drained];

    /// The state behind an event; `None`: the state does not expect it, and stays.
    #[must_use]
    pub fn on(self, event: Event) -> Option<Self> {
        use Event::{Drain, Engage, Fell, Relieve, Resume, Rose};
        use State::{Active, Down, Drained, Draining, Standby};
        Some(match (self, event) {
            (Down, Rose) | (Active, Relieve) | (Draining, Resume) => Standby,
            (Standby, Engage) => Active,
            (Standby | Active, Fell) | (Drained, Resume) => Down,
            (Standby | Active, Drain) | (Drained, Rose) => Draining,
            (Down, Drain) | (Draining, Fell) => Drained,
            _ => return None,
        })
    }

    /// Whether the operator has drained it.
    #[must_use]
    pub fn is_drained(self) -> bool {
        matches!(self, Self::Draining | Self::Drained)
    }

    /// Whether it could take new connections.
    #[must_use]
    pub fn is_available(self) -> bool {
        matches!(self, Self::Standby | Self::Active)
    }

    /// As displays have it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Standby => "standby",
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Drained => "drained",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Rose, Self::Fell, Self::Engage, Self::Relieve, Self::Drain, Self::Resume];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The picture above, line by line.
    #[test]
    fn the_machine_is_as_drawn() {
        let table: Vec<String> = State::ALL
            .iter()
            .flat_map(|state| Event::ALL.iter().map(move |event| (state, event)))
            .filter_map(|(state, event)| Some(format!("{state} {event:?} {}", state.on(*event)?)))
            .collect();
        let drawn = [
            "down Rose standby",
            "down Drain drained",
            "standby Fell down",
            "standby Engage active",
            "standby Drain draining",
            "active Fell down",
            "active Relieve standby",
            "active Drain draining",
            "draining Fell drained",
            "draining Resume standby",
            "drained Rose draining",
            "drained Resume down",
        ];
        assert_eq!(table, drawn);
    }
}
