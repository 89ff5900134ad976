//! TLS of this host: rules with their keys, which connection is whose, and what has become of them.
//!
//! A library says by which rule it hands a connection over. That is a hint: the rule has to be one of this gateway's
//! own, and about this connection by what the kernel says of both ends. One that is handed over without a rule
//! though a rule has it is refused as well, so that no byte goes out in plain text by an older list of rules.
//!
//! Files are read when the gateway begins, so a certificate is renewed as a build is: the next gateway, at SIGHUP, has
//! it, and this one goes on with the connections that it has.

use std::collections::VecDeque;
use std::fs;
use std::mem;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Mark;
use rustls::pki_types::CertificateDer;
use rustls::time_provider::DefaultTimeProvider;
use sidestep_proto::protection::{Role, RuleName, Subject};
use sidestep_tls::failure::Alert;
use sidestep_tls::rule::{Identity, Rule, Trust};
use sidestep_tls::{Failure, Material, Peer, Session, Setup, check, setup};
use sidestep_wire::host_control::Side;
use sidestep_wire::verdict::GATEWAY_MARK;

use crate::control::Offer;
use crate::ends::Ends;
use crate::handshakes::Handshakes;
use crate::limits::REFUSALS_MAX;
use crate::status::{Refusal, RuleStatus};

/// A library names a rule that is none of ours, or not about that connection.
const UNKNOWN: &str =
    "the gateway has no such rule for this connection; systemctl reload sidestep-gateway";
/// A library names no rule, and one has the connection.
const UNASKED: &str = "its program has older rules and does not ask for TLS; sidestep config apply";

/// The agent's program would drop what the gateway sends.
const UNMARKED: &str =
    "its rule is enforced, and the gateway may not mark it; give it CAP_NET_ADMIN";
/// The IP filter would, where it asks for TLS.
const MAY_NOT_MARK: &str = "connections that have TLS cannot be marked (SO_MARK): rules of the IP filter with `tls` deny them; \
                            give the gateway CAP_NET_ADMIN";

/// What a gateway has of TLS.
#[derive(Debug)]
pub(crate) struct Protection {
    rules: Vec<Known>,
    refusals: VecDeque<Refusal>,
    pub(crate) handshakes: Handshakes,
    /// The log has been told that connections cannot be marked.
    has_told_of_marks: bool,
}

/// A rule, and what has become of its connections.
#[derive(Debug)]
struct Known {
    rule: Rule,
    /// Why it cannot be used.
    setup: Result<Setup, String>,
    /// Until when its certificate is valid, in seconds since 1970.
    valid_until: Option<i64>,
    counts: Counts,
}

/// Each only grows.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    handshakes: u64,
    resumed: u64,
    failed: u64,
}

/// What has become of a connection.
#[derive(Debug)]
pub(crate) enum Report {
    /// A rule protects it now.
    Handshake { of: (Role, RuleName), is_resumed: bool },
    /// It does not, or not to its end.
    Failure { ends: Ends, of: (Role, RuleName), failure: Failure },
    /// A thread is to work on its handshake.
    Process(Box<Session>),
    /// The kernel's filters cannot be told that nothing but TLS goes by N.
    Unmarked { ends: Ends, of: (Role, RuleName), is_enforced: bool, error: nix::Error },
}

/// What a rule decides about a connection.
pub(crate) enum Verdict {
    /// No rule is about it.
    Plain,
    /// It is protected so, with this peer.
    Protected(Setup, Peer),
    /// It ends: its refusal is noted.
    Refused,
}

impl Protection {
    /// With these rules, the first that has a connection first.
    pub(crate) fn new(rules: Vec<Rule>, handshakes: Handshakes) -> Self {
        let rules = rules.into_iter().map(Known::read).collect();
        Self { rules, refusals: VecDeque::new(), handshakes, has_told_of_marks: false }
    }

    /// What is to become of a connection that was handed over, whose ends are these.
    pub(crate) fn judge(&mut self, offer: &Offer, ends: Ends) -> Verdict {
        let Some(subject) = subject(offer, ends) else { return Verdict::Refused };
        let found = self.rules.iter().find(|known| known.has(&subject, offer.rule));
        let (name, words) = match (found, offer.rule) {
            (None, None) => return Verdict::Plain,
            (Some(Known { setup: Ok(setup), .. }), Some(_)) => {
                let peer = Peer { address: subject.peer, resolved: offer.resolved.clone() };
                return Verdict::Protected(setup.clone(), peer);
            }
            (Some(Known { setup: Err(words), .. }), Some(name)) => (name, words.clone()),
            (None, Some(name)) => (name, UNKNOWN.to_owned()),
            (Some(known), None) => (known.rule.name(), UNASKED.to_owned()),
        };
        self.refuse(ends, (subject.role, name), (words, None));
        Verdict::Refused
    }

    /// What the session tells that has this number.
    pub(crate) fn heed(&mut self, number: u64, report: Report) {
        match report {
            Report::Handshake { of, is_resumed } => {
                if let Some(counts) = self.counts(of) {
                    counts.handshakes += 1;
                    counts.resumed += u64::from(is_resumed);
                }
            }
            Report::Failure { ends, of, failure } => {
                let alert = failure.alert().map(Alert::number);
                self.refuse(ends, of, (failure.to_string(), alert));
            }
            Report::Process(session) => self.handshakes.process(number, session),
            Report::Unmarked { ends, of, is_enforced: true, error } => {
                self.refuse(ends, of, (format!("{UNMARKED}: {error}"), None));
            }
            Report::Unmarked { is_enforced: false, error, .. } => {
                if !mem::replace(&mut self.has_told_of_marks, true) {
                    log::warn!("{MAY_NOT_MARK}: {error}");
                }
            }
        }
    }

    fn refuse(&mut self, ends: Ends, of: (Role, RuleName), (words, alert): (String, Option<u8>)) {
        let (role, name) = of;
        let (user, (local, remote)) = (ends.user(), ends.canonical());
        if let Some(counts) = self.counts(of) {
            counts.failed += 1;
        }
        let refusal = Refusal {
            user,
            local,
            remote,
            rule: name.to_string(),
            is_server: role == Role::Inbound,
            words,
            alert,
            at: seconds_since_1970(),
        };
        log::warn!(
            "rule {name}: a connection of user {user} with {} is reset: {}",
            refusal.remote.map_or("a peer that has gone".to_owned(), |it| it.to_string()),
            refusal.words
        );
        if self.refusals.len() == REFUSALS_MAX {
            self.refusals.pop_front();
        }
        self.refusals.push_back(refusal);
    }

    fn counts(&mut self, (role, name): (Role, RuleName)) -> Option<&mut Counts> {
        let is_meant = |it: &&mut Known| it.rule.name() == name && it.rule.scope.role == role;
        self.rules.iter_mut().find(is_meant).map(|known| &mut known.counts)
    }

    /// For displays: the rules, and what was refused lately.
    pub(crate) fn status(&self) -> (Vec<RuleStatus>, Vec<Refusal>) {
        let rules = self.rules.iter().map(Known::status).collect();
        (rules, self.refusals.iter().cloned().collect())
    }
}

/// Says to the kernel's filters that nothing but TLS goes by N.
///
/// **Errors**: this process may not, and they have to know.
pub(crate) fn mark(n: &TcpStream) -> nix::Result<()> {
    setsockopt(n, Mark, &GATEWAY_MARK)
}

/// What a rule may be about. `None`: the connection has ended.
fn subject(offer: &Offer, ends: Ends) -> Option<Subject> {
    let (local, peer) = ends.both()?;
    let (role, port) = match offer.side {
        Side::Client => (Role::Outbound, peer.port()),
        Side::Server => (Role::Inbound, local.port()),
    };
    Some(Subject { role, port, peer: peer.ip().to_canonical(), user: offer.uid })
}

fn seconds_since_1970() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it: Duration| it.as_secs() as i64)
}

impl Known {
    /// A rule whose files cannot be used stays one: what it is about is refused.
    fn read(rule: Rule) -> Self {
        let setup = set_up(&rule);
        let certificate = rule.identity.as_ref().and_then(|it| fs::read(&it.certificate).ok());
        let valid_until = certificate.and_then(|pem| check::valid_until(&pem).ok());
        let name = rule.name();
        if let Err(words) = &setup {
            log::error!("rule {name} refuses all of its connections: {words}");
        }
        let now = seconds_since_1970();
        if let Some(concern) = valid_until.and_then(|until| check::validity(until, now)) {
            log::warn!("rule {name}: {concern}");
        }
        Self { rule, setup, valid_until, counts: Counts::default() }
    }

    /// Whether it is the rule that a library means, or one that has the connection whatever the program: which
    /// program it is, only the library knows.
    fn has(&self, subject: &Subject, named: Option<RuleName>) -> bool {
        let is_meant = named.map_or(self.rule.programs.is_empty(), |name| self.rule.name() == name);
        is_meant && self.rule.scope.has(subject)
    }

    fn status(&self) -> RuleStatus {
        RuleStatus {
            name: self.rule.name().to_string(),
            is_server: self.rule.scope.role == Role::Inbound,
            handshakes: self.counts.handshakes,
            resumed: self.counts.resumed,
            failed: self.counts.failed,
            valid_until: self.valid_until,
            trouble: self.setup.as_ref().err().cloned(),
        }
    }
}

/// Reads the files of a rule.
///
/// **Errors**: what is wrong with which of them.
fn set_up(rule: &Rule) -> Result<Setup, String> {
    let identity = match &rule.identity {
        Some(Identity { certificate, key }) => Some((read(certificate)?, read(key)?)),
        None => None,
    };
    let material = Material { identity, anchors: anchors(&rule.trust)? };
    Setup::new(rule.clone(), &material, Arc::new(DefaultTimeProvider))
        .map_err(|error| error.to_string())
}

fn anchors(trust: &Trust) -> Result<Vec<CertificateDer<'static>>, String> {
    match trust {
        Trust::File(path) => {
            setup::anchors(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))
        }
        Trust::System => {
            let found = rustls_native_certs::load_native_certs();
            match found.certs.is_empty() {
                true => {
                    Err("the system trusts no authority; install ca-certificates, or set trust"
                        .to_owned())
                }
                false => Ok(found.certs),
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}
