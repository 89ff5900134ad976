//! What is shown of a message, or of a run of packets that say the same.

use sidestep_wire::Psn;

use super::super::fields::Field;
use super::super::streams::{Moment, Side};

/// One thing that was sent, or a run of things of one kind.
#[derive(Debug)]
pub(in super::super) struct Line {
    pub(in super::super) moment: Moment,
    pub(in super::super) from: Side,
    pub(in super::super) psn: Psn,
    pub(in super::super) said: Said,
    pub(in super::super) broken: Vec<String>,
}

#[derive(Debug)]
pub(in super::super) enum Said {
    /// Acknowledgements, up to the line's PSN.
    Acks { packets: u64 },
    /// Packets that came before, up to the line's PSN.
    Again { packets: u64 },
    /// Anything else.
    Message { kind: &'static str, label: String, fields: Vec<Field> },
}

impl Said {
    pub(in super::super) fn packet(label: impl Into<String>) -> Self {
        Self::Message { kind: "packet", label: label.into(), fields: Vec::new() }
    }
}

impl Line {
    pub(in super::super) fn kind(&self) -> &'static str {
        match &self.said {
            Said::Acks { .. } => "ACK",
            Said::Again { .. } => "again",
            Said::Message { kind, .. } => kind,
        }
    }

    pub(in super::super) fn label(&self) -> String {
        let psn = self.psn;
        match &self.said {
            Said::Acks { packets: 1 } => format!("ACK up to PSN {psn}"),
            Said::Acks { packets } => format!("ACK up to PSN {psn}, packets {packets}"),
            Said::Again { packets } => format!("again: packets {packets}, up to PSN {psn}"),
            Said::Message { label, .. } => label.clone(),
        }
    }

    pub(in super::super) fn fields(&self) -> &[Field] {
        match &self.said {
            Said::Message { fields, .. } => fields,
            Said::Acks { .. } | Said::Again { .. } => &[],
        }
    }

    /// Takes in a line of the same kind from the same side, if runs of that kind are one line.
    pub(in super::super) fn joins(&mut self, next: &Self) -> bool {
        if self.from != next.from || !self.broken.is_empty() || !next.broken.is_empty() {
            return false;
        }
        match (&mut self.said, &next.said) {
            (Said::Acks { packets }, Said::Acks { .. })
            | (Said::Again { packets }, Said::Again { .. }) => *packets += 1,
            _ => return false,
        }
        self.psn = next.psn;
        true
    }
}
