//! Why a connection stays on TCP.

use core::fmt;
use sidestep_proto::fallback::Reason;
use sidestep_wire::Diagnosis;

/// A reason, and what the peer has said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Never [`Reason::None`].
    pub reason: Reason,
    /// The peer's own reason, when it was the peer that declined.
    pub peer: Option<Diagnosis>,
}

impl Fallback {
    /// What a slot's words say; `None` if nothing was decided. Only a peer that declined has a
    /// reason of its own.
    pub(crate) fn of(reason: Reason, peer_diagnosis: Diagnosis) -> Option<Self> {
        let has_said = reason == Reason::PeerDeclined && peer_diagnosis.0 != 0;
        let peer = has_said.then_some(peer_diagnosis);
        (reason != Reason::None).then_some(Self { reason, peer })
    }

    /// The standard's code for it.
    #[must_use]
    pub fn diagnosis(&self) -> Diagnosis {
        self.reason.diagnosis().unwrap_or(Diagnosis::INTERR)
    }

    /// In words.
    #[must_use]
    pub fn words(&self) -> &'static str {
        self.reason.words()
    }
}

/// The standard's code and the reason in words, with the peer's own if it was the
/// peer that declined.
impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x} {}", self.diagnosis().0, self.words())?;
        match self.peer {
            Some(diagnosis) => write!(f, ": {diagnosis}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_peer_that_declined_has_a_reason_of_its_own() {
        let of = |reason, diagnosis| Fallback::of(reason, Diagnosis(diagnosis));
        assert_eq!(of(Reason::None, 0x0303_0007), None);
        let not_smc = of(Reason::PeerNotSmc, 0x0303_0007).unwrap();
        assert_eq!((not_smc.diagnosis(), not_smc.peer), (Diagnosis(0x0301_0000), None));
        assert_eq!(of(Reason::PeerDeclined, 0).unwrap().peer, None);
        let declined = of(Reason::PeerDeclined, 0x0303_0007).unwrap();
        assert_eq!(declined.peer, Some(Diagnosis::NOSMCD2DEV));
        let told = declined.to_string();
        assert!(told.ends_with(&format!(": {}", Diagnosis::NOSMCD2DEV)), "{told}");
    }
}
