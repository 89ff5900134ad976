//! Each workload under each contention: how a transport fares as a host becomes busier.

use crate::contention::Contention;
use crate::report::block::Block;
use crate::result::{Cell, Comparison};

/// A comparison of one contention, with its workload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    pub(super) block: &'a Block<'a>,
    pub(super) cell: &'a Cell,
    pub(super) comparison: &'a Comparison,
    /// The workload, model, RMBE and transport are those of the line above.
    pub(super) continues: bool,
}

/// A ratio with its bounds at 95 %.
pub(super) type Bounded = (f64, [f64; 2]);

/// What can be compared, those of a workload together; nothing unless some of it was
/// measured under contention.
pub(super) fn lines<'a>(blocks: &'a [Block<'a>]) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    for block in blocks {
        lines.extend(block.compared().map(|(cell, comparison)| Line {
            block,
            cell,
            comparison,
            continues: false,
        }));
    }
    if lines.iter().all(|line| line.comparison.contention == Contention::NONE) {
        return Vec::new();
    }
    let workload = |block: &Block<'a>| (block.key.workload, block.key.model, block.key.rmbe);
    // Blocks of a workload need not stand together: a suite may name it twice.
    let key = |line: &Line<'a>| {
        let first = blocks.iter().position(|block| workload(block) == workload(line.block));
        (first, line.cell.transport)
    };
    lines.sort_by_key(key);
    let keys: Vec<_> = lines.iter().map(key).collect();
    for (line, pair) in lines.iter_mut().skip(1).zip(keys.windows(2)) {
        line.continues = pair[0] == pair[1];
    }
    lines
}

impl Line<'_> {
    pub(super) fn throughput(&self) -> Bounded {
        (self.comparison.throughput_ratio, self.comparison.ci95)
    }

    pub(super) fn p99(&self) -> Option<Bounded> {
        self.comparison.p99_ratio.zip(self.comparison.p99_ci95)
    }

    pub(super) fn cpu(&self) -> Option<Bounded> {
        self.comparison.cpu_ratio.zip(self.comparison.cpu_ci95)
    }
}
