//! Blocks: the transports of one workload, beside each other.

use crate::contention::Contention;
use crate::plan::{Model, Transport};
use crate::report::units;
use crate::result::{Cell, Comparison, Document, RemarkKind};

/// A workload in one model with one receive buffer: what its transports share.
#[derive(Debug)]
pub(super) struct Block<'a> {
    pub(super) key: Key<'a>,
    /// At least one, in the order of the plan.
    pub(super) rows: Vec<Row<'a>>,
}

/// What makes two cells comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key<'a> {
    pub(super) workload: &'a str,
    pub(super) model: Model,
    pub(super) rmbe: Option<u32>,
    pub(super) contention: &'a Contention,
    pub(super) filter_rules: u32,
}

/// A transport of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) cell: &'a Cell,
    /// With the baseline; the baseline itself has none.
    pub(super) comparison: Option<&'a Comparison>,
}

impl<'a> Block<'a> {
    /// The document's cells by their keys, in their order.
    pub(super) fn all(document: &'a Document) -> Vec<Self> {
        let mut blocks: Vec<Self> = Vec::new();
        for cell in &document.results {
            let key = Key::of(cell);
            let row = Row { cell, comparison: comparison(document, cell) };
            match blocks.iter_mut().find(|block| block.key == key) {
                Some(block) => block.rows.push(row),
                None => blocks.push(Self { key, rows: vec![row] }),
            }
        }
        blocks
    }

    /// What the others are compared with.
    pub(super) fn baseline(&self) -> Option<Transport> {
        self.rows.iter().find_map(|row| row.comparison).map(|comparison| comparison.b)
    }

    /// Rows with something to compare that was what it should be.
    pub(super) fn compared(&self) -> impl Iterator<Item = (&'a Cell, &'a Comparison)> {
        let sound = self.rows.iter().filter(|row| !row.fell_back());
        sound.filter_map(|row| Some((row.cell, row.comparison?)))
    }
}

impl<'a> Key<'a> {
    pub(super) fn of(cell: &'a Cell) -> Self {
        let Cell { workload, model, rmbe, contention, filter_rules, .. } = cell;
        Self { workload, model: *model, rmbe: *rmbe, contention, filter_rules: *filter_rules }
    }

    /// [`circumstances`](Self::circumstances) without the contention.
    pub(super) fn make(&self) -> String {
        Key { contention: &Contention::NONE, ..*self }.circumstances()
    }

    /// What stands beside the workload's name: `threads, RMBE 256 KiB, 2 neighbours`.
    pub(super) fn circumstances(&self) -> String {
        let mut words = vec![self.model.to_string()];
        words.extend(self.rmbe.map(|rmbe| format!("RMBE {}", units::memory(u64::from(rmbe)))));
        if *self.contention != Contention::NONE {
            words.push(self.contention.to_string());
        }
        if self.filter_rules > 0 {
            words.push(units::filter_rules(self.filter_rules));
        }
        words.join(", ")
    }
}

impl Row<'_> {
    /// The figures are not those of SMC, though they stand under its name: a
    /// connection went by TCP, or none is known to have gone through shared memory.
    pub(super) fn fell_back(&self) -> bool {
        let proof = &self.cell.transport_proof;
        let remarked = self.cell.remarks.iter().any(|r| r.kind == RemarkKind::FellBack);
        let proven =
            proof.smc_connections > 0 && proof.tcp_connections == 0 && proof.fallbacks.is_empty();
        remarked || (self.cell.transport == Transport::Smc && !proven)
    }

    /// What must be known before the figures are used, the worst first: pairs of a
    /// label and a sentence.
    pub(super) fn remarks(&self) -> Vec<(RemarkKind, String)> {
        let mut remarks: Vec<_> =
            self.cell.remarks.iter().map(|remark| (remark.kind, remark.text.clone())).collect();
        if self.fell_back() && !remarks.iter().any(|(kind, _)| *kind == RemarkKind::FellBack) {
            remarks.push((RemarkKind::FellBack, self.fallback_story()));
        }
        remarks.sort_by_key(|(kind, _)| *kind != RemarkKind::FellBack);
        remarks
    }

    /// How many connections of which kind: `SMC-D 50`, `SMC-D 40, TCP 10`.
    pub(super) fn proof(&self) -> String {
        let proof = &self.cell.transport_proof;
        match (proof.smc_connections, proof.tcp_connections) {
            (0, 0) => "–".to_owned(),
            (0, tcp) => format!("TCP {tcp}"),
            (smc, 0) => format!("SMC-D {smc}"),
            (smc, tcp) => format!("SMC-D {smc}, TCP {tcp}"),
        }
    }

    fn fallback_story(&self) -> String {
        let proof = &self.cell.transport_proof;
        let reasons: Vec<String> =
            proof.fallbacks.iter().map(|(reason, n)| format!("{n} × {reason}")).collect();
        match (proof.tcp_connections, reasons.is_empty()) {
            (0, true) => "no connection is known to have used shared memory".to_owned(),
            (tcp, true) => format!("{tcp} connections went by TCP"),
            (tcp, false) => format!("{tcp} connections went by TCP: {}", reasons.join("; ")),
        }
    }
}

/// What a kind of remark is called.
pub(super) fn label(kind: RemarkKind) -> &'static str {
    match kind {
        RemarkKind::FellBack => "fell back",
        RemarkKind::Bimodal => "bimodal",
        RemarkKind::Drifting => "drifting",
        RemarkKind::Noisy => "noisy",
        RemarkKind::Overloaded => "overloaded",
    }
}

fn comparison<'a>(document: &'a Document, cell: &Cell) -> Option<&'a Comparison> {
    document.comparisons.iter().find(|c| {
        let Comparison { workload, model, rmbe, contention, filter_rules, .. } = c;
        let (model, rmbe, filter_rules) = (*model, *rmbe, *filter_rules);
        let key = Key { workload, model, rmbe, contention, filter_rules };
        key == Key::of(cell) && c.a == cell.transport
    })
}
