//! What is wrong with rules and files that can be used all the same.
//!
//! A rule behind one that has all of its connections never decides. A key that others can read is theirs as well. A
//! certificate that ends soon ends service with it. `sidestep config check` tells all three.

use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sidestep_proto::protection::RuleName;
use thiserror::Error;
use x509_parser::parse_x509_certificate;

use crate::rule::Rule;

/// A certificate that ends within so long ends soon.
pub const SOON: Duration = Duration::from_secs(30 * 24 * 3600);

/// What should be looked after.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Concern {
    /// The rule never decides.
    #[error(
        "never decides: {before}, before it, has all of its connections; put it before that one"
    )]
    Unreachable {
        /// The rule that does.
        before: RuleName,
    },
    /// The key is no secret.
    #[error("its key can be read by others (mode {mode:o}); chmod 600")]
    KeyIsOpen {
        /// The permissions of the file.
        mode: u32,
    },
    /// The certificate is not valid for long.
    #[error("its certificate ends in {days} days; renew it")]
    EndsSoon {
        /// That are left.
        days: u64,
    },
    /// The certificate is not valid.
    #[error("its certificate has ended; peers refuse it")]
    HasEnded,
    /// What lies there is no certificate.
    #[error("its certificate cannot be read: {0}")]
    NoCertificate(String),
}

/// Rules that never decide, by their place.
#[must_use]
pub fn unreachable(rules: &[Rule]) -> Vec<(usize, Concern)> {
    let hides = |rule: &Rule, other: &Rule| {
        let has_programs = rule.programs.is_empty()
            || !other.programs.is_empty()
                && other.programs.iter().all(|it| rule.programs.contains(it));
        has_programs && rule.scope.covers(&other.scope)
    };
    let hidden = rules.iter().enumerate().filter_map(|(at, rule)| {
        let before = rules[..at].iter().find(|before| hides(before, rule))?;
        Some((at, Concern::Unreachable { before: before.name() }))
    });
    hidden.collect()
}

/// The permissions of a file with a key: its owner's alone, or also those of a group that was given it to read.
#[must_use]
pub const fn key_mode(mode: u32) -> Option<Concern> {
    let mode = mode & 0o777;
    if mode & 0o037 != 0 { Some(Concern::KeyIsOpen { mode }) } else { None }
}

/// Until when a chain of certificates, in PEM, is valid: in seconds since 1970.
///
/// # Errors
///
/// [`Concern::NoCertificate`].
pub fn valid_until(pem: &[u8]) -> Result<i64, Concern> {
    let not_one = |error: &dyn std::fmt::Display| Concern::NoCertificate(error.to_string());
    let mut ends = Vec::new();
    for der in CertificateDer::pem_slice_iter(pem) {
        let der = der.map_err(|error| not_one(&error))?;
        let (_, certificate) = parse_x509_certificate(&der).map_err(|error| not_one(&error))?;
        ends.push(certificate.validity().not_after.timestamp());
    }
    ends.into_iter().min().ok_or_else(|| not_one(&"there is none in the file"))
}

/// What is to be said of a chain that is valid `until` then.
#[must_use]
pub fn validity(until: i64, now: i64) -> Option<Concern> {
    let left = u64::try_from(until - now).ok();
    match left {
        None => Some(Concern::HasEnded),
        Some(left) if left < SOON.as_secs() => Some(Concern::EndsSoon { days: left / (24 * 3600) }),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_proto::protection::{Role, Scope};

    fn rule(name: &str, ports: &str, programs: &[&str]) -> Rule {
        let (begin, peers, users) = Default::default();
        let ports = ports.split(',').map(|it| it.parse().unwrap()).collect();
        let name = name.parse().unwrap();
        let scope = Scope { role: Role::Inbound, begin, name, ports, peers, users };
        let programs = programs.iter().copied().map(str::to_owned).collect();
        Rule { programs, ..Rule::new(scope) }
    }

    #[test]
    fn a_rule_behind_a_wider_one_is_unreachable() {
        let rules = [
            rule("wide", "8000-9000", &["nginx"]),
            rule("other", "8443", &["redis"]),
            rule("narrow", "8443", &["nginx"]),
            rule("all", "8443", &[]),
            rule("late", "8443", &["redis", "nginx"]),
        ];
        let before = |name: &str| Concern::Unreachable { before: name.parse().unwrap() };
        assert_eq!(unreachable(&rules), [(2, before("wide")), (4, before("all"))]);
    }

    #[test]
    fn a_key_is_its_owners_or_a_groups_to_read() {
        for (mode, is_open) in
            [(0o600, false), (0o640, false), (0o400, false), (0o644, true), (0o660, true)]
        {
            assert_eq!(key_mode(0o100_000 | mode).is_some(), is_open, "{mode:o}");
        }
    }

    #[test]
    fn the_certificate_of_a_chain_that_ends_first_counts() {
        let certificate = |year| {
            let mut parameters = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
            parameters.not_after = rcgen::date_time_ymd(year, 1, 1);
            parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
        };
        let chain = certificate(2040) + &certificate(2030);
        let until = valid_until(chain.as_bytes()).unwrap();
        assert_eq!(until, rcgen::date_time_ymd(2030, 1, 1).unix_timestamp());
        let day = 24 * 3600;
        assert_eq!(validity(until, until - 31 * day), None);
        assert_eq!(validity(until, until - 3 * day), Some(Concern::EndsSoon { days: 3 }));
        assert_eq!(validity(until, until + 1), Some(Concern::HasEnded));
        for text in ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(matches!(valid_until(text.as_bytes()), Err(Concern::NoCertificate(_))));
        }
    }
}
