//! How long an end waits for an answer: by a clock, and by the calls of its program.

/// Messages after which the server's end looks for the client no more. Until then it does
/// each time their number has doubled: the other end may think that it has to live longer
/// before it is worth moving.
pub const MESSAGES_MAX: u64 = 4_096;
/// How long an answer is waited for, as by Linux.
pub const CLC_WAIT_NS: u64 = 6_000_000_000;
/// The longest pause between two looks that counts as waiting. An answer is made and seen by
/// calls of the programs, so while both rest neither can.
pub const PAUSE_MAX_NS: u64 = 100_000_000;
/// But a program that makes few calls, each after a long time, is given as many as it needs
/// for all messages.
pub const LOOKS_IN_TIME: u32 = 64;
/// Looks for each message that came before: the peer may look again only when it has seen as
/// many messages as until now, which is two looks each, and twice that is on the safe side.
const LOOKS_FOR_EACH_MESSAGE: u64 = 4;

/// How long an end has waited for an answer (C.5).
#[derive(Clone, Copy, Debug)]
pub struct AnswerWait {
    looks: u32,
    looks_needed: u32,
    looked_ns: u64,
    waited_ns: u64,
}

impl AnswerWait {
    /// Begins to wait on a connection that has carried so many messages.
    #[must_use]
    pub fn begin(messages: u64, now_ns: u64) -> Self {
        let looks_needed = (LOOKS_FOR_EACH_MESSAGE * messages.min(MESSAGES_MAX)) as u32;
        let looks_needed = looks_needed.max(LOOKS_IN_TIME);
        Self { looks: 0, looks_needed, looked_ns: now_ns, waited_ns: 0 }
    }

    /// The program has made a call, and there is no answer yet.
    pub fn look(&mut self, now_ns: u64) {
        self.looks = self.looks.saturating_add(1);
        let pause = now_ns.saturating_sub(self.looked_ns);
        self.waited_ns += pause.min(PAUSE_MAX_NS);
        self.looked_ns = now_ns;
    }

    /// Whether it was looked for often enough, and has been waited for long enough.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.looks >= self.looks_needed && self.waited_ns > CLC_WAIT_NS
    }
}
