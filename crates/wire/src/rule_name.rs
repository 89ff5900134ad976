//! The name of a rule of the operator's, which library, gateway and displays tell each other.

use arrayvec::ArrayString;
use core::fmt;
use core::str::FromStr;

/// Bytes of the name of a rule, at most.
pub const RULE_NAME_LEN_MAX: usize = 32;

/// The name of a rule of the operator's: ASCII letters, digits, `-` and `_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleName(ArrayString<RULE_NAME_LEN_MAX>);

/// What the name of a rule may look like.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("use 1 to 32 ASCII letters, digits, `-` and `_`")]
pub struct NotRuleName;

impl FromStr for RuleName {
    type Err = NotRuleName;

    fn from_str(text: &str) -> Result<Self, NotRuleName> {
        let is_allowed = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        if text.is_empty() || !text.bytes().all(is_allowed) {
            return Err(NotRuleName);
        }
        ArrayString::from(text).map(Self).map_err(|_| NotRuleName)
    }
}

impl RuleName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for text in ["", "a b", "a|b", "a;b", "\u{e4}", "x12345678901234567890123456789012"] {
            assert_eq!(text.parse::<RuleName>(), Err(NotRuleName), "{text}");
        }
        assert_eq!("Web_1-a".parse::<RuleName>().unwrap().as_str(), "Web_1-a");
    }
}
