//! How often an end looks, and for how long.

use super::answer::Illegal;
use super::seek::Seek;
use crate::rendezvous::wait::AnswerWait;

/// Looks after which not every one asks the kernel any more; of the later ones, those whose number is
/// a power of two do, and one of so many.
pub const LOOKS_BETWEEN: u32 = 1_024;
/// Looks of a client that all read its name.
pub const LOOKS_AT_NAME: u32 = 8;
/// Looks of a server that all read its mailbox, or look for room in the client's.
pub const LOOKS_AT_MAILBOX: u32 = 4_096;
/// Looks of a server before an attempt is given up whose giver still has the connection open: it may
/// never close it, and each look asks the kernel.
pub const LOOKS_FOR_GIVER: u32 = 64;
/// Receives that may have been the answer to the only request. A client that has got it may be about to
/// close: it follows a greeting before its next request, or when more answers come.
pub const ANSWERS: u64 = 4;
/// How often an end looks, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(super) looks: u32,
    stage: Stage,
}

/// What an end counts besides. It seeks before the attempt is under way, and waits after that.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Nothing,
    Seeks(Seek),
    Waits(AnswerWait),
}

impl Pace {
    pub(crate) const NEW: Self = Self { looks: 0, stage: Stage::Nothing };

    /// The other end cannot be found by its name.
    pub(super) fn seek(&mut self) {
        self.stage = Stage::Seeks(Seek::NEW);
    }

    pub(super) fn seeks(&mut self) -> Result<&mut Seek, Illegal> {
        match &mut self.stage {
            Stage::Seeks(seek) => Ok(seek),
            Stage::Nothing | Stage::Waits(_) => Err(Illegal),
        }
    }

    /// The attempt is under way, and so waits for an answer.
    pub(super) fn begin(messages: u64, now_ns: u64) -> Self {
        Self { looks: 0, stage: Stage::Waits(AnswerWait::begin(messages, now_ns)) }
    }

    pub(super) fn look(&mut self, now_ns: u64) {
        self.looks = self.looks.saturating_add(1);
        if let Stage::Waits(wait) = &mut self.stage {
            wait.look(now_ns);
        }
    }

    /// Whether this look asks the kernel: so many first ones do.
    pub(super) fn is_due(&self, first: u32) -> bool {
        self.looks <= first
            || self.looks.is_power_of_two()
            || self.looks.is_multiple_of(LOOKS_BETWEEN)
    }

    pub(super) fn is_late(&self) -> bool {
        matches!(self.stage, Stage::Waits(wait) if wait.is_late())
    }

    pub(super) fn is_under_way(&self) -> bool {
        matches!(self.stage, Stage::Waits(_))
    }
}
