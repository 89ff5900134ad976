//! Why a connection stays on TCP.

use core::fmt;
use sidestep_proto::fallback::Reason;
use sidestep_wire::Diagnosis;

/// A reason that keeps a connection on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Never [`Reason::None`].
    pub reason: Reason,
}

impl Fallback {
    /// `None` if nothing was decided.
    pub(crate) fn of(reason: Reason) -> Option<Self> {
        (reason != Reason::None).then_some(Self { reason })
    }

    /// The standard's code for it.
    #[must_use]
    pub fn diagnosis(&self) -> Diagnosis {
        self.reason.diagnosis().unwrap_or(Diagnosis::INTERR)
    }

    /// In words, without the detail.
    #[must_use]
    pub fn words(&self) -> &'static str {
        self.reason.words()
    }
}

/// The standard's code and the reason in words, with the field that was wrong, or the peer's own
/// code.
impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x} {}", self.diagnosis().0, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_proto::fallback::{Field, PeerCannot};

    #[test]
    fn a_fallback_says_the_field_or_the_peers_own_code() {
        assert_eq!(Fallback::of(Reason::None), None);
        let told = |reason| Fallback::of(reason).unwrap().to_string();
        let not_smc = told(PeerCannot::PeerNotSmc.into());
        assert_eq!(not_smc, "0x03010000 the peer does not run Sidestep");
        let declined = told(Reason::PeerDeclined(Diagnosis::NOSMCD2DEV));
        let wanted =
            "0x05000000 the peer declined: 0x03030007 NOSMCD2DEV (another network namespace";
        assert!(declined.starts_with(wanted), "{declined}");
        let broke = told(Reason::PeerBroke(Field::HELLO_RMBE_LEN));
        assert_eq!(broke, "0x09990000 the peer's messages made no sense: Hello RMBE length");
    }
}
