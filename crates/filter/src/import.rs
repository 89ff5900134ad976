//! Rules that were written for others.
//!
//! | Format | From |
//! |---|---|
//! | [`Format::IptablesSave`] | `iptables-save`, `ip6tables-save` |
//! | [`Format::Nft`] | `nft -j list ruleset` |
//! | [`Format::PolicyAgent`] | z/OS Communications Server's Policy Agent: `IpFilterRule` and what it refers to |
//!
//! What has the shape of our rules is taken, in its order. What has not is named, with its place and the
//! reason, where it stood: to leave it out changes what the list means, and an operator has to judge that.
//! A rule of a table for one family is one for that family here: `0.0.0.0/0` or `::/0` says so where it
//! has no address. Several ports or addresses in one rule become several rules.

mod draft;
mod imported;
mod iptables;
mod nft;
mod policy_agent;

pub use imported::{Entry, Imported};

/// Who has written the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The lines of `iptables-save` or `ip6tables-save`.
    IptablesSave,
    /// The JSON of `nft -j list ruleset`.
    Nft,
    /// The statements of z/OS Policy Agent.
    PolicyAgent,
}

/// Reads a text of this format.
///
/// # Errors
/// It is not of this format at all: why.
pub fn import(format: Format, text: &str) -> Result<Imported, String> {
    match format {
        Format::IptablesSave => iptables::read(text),
        Format::Nft => nft::read(text),
        Format::PolicyAgent => policy_agent::read(text),
    }
}

#[cfg(test)]
mod tests;
