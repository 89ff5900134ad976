//! Settings, as `sidestep run` hands them over in the environment.
//!
//! `SIDESTEP_OPTIONS="mode=smc promotion=early rmbe=65536 spin=auto memory=0
//! eid=SIDESTEP log=warn"`: the command line tool has read and checked the
//! configuration file, so whatever does not parse here is left at its default.

use arrayvec::ArrayVec;
use core::str::FromStr;
use sidestep_proto::governor::SpinPolicy;
use sidestep_proto::policy::{self, ENTRIES_MAX, Policy, PortRange};
use sidestep_wire::{Eid, RmbeSize};

/// Name of the environment variable.
pub const VARIABLE: &str = "SIDESTEP_OPTIONS";

/// When a connection is moved to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// From its first bytes.
    Early,
    /// Once it has proven to live: after [`LAZY_MESSAGES`] calls or [`LAZY_BYTES`].
    Lazy,
    /// Never.
    Never,
}

/// Calls after which a connection counts as long-lived.
pub const LAZY_MESSAGES: u64 = 16;
/// Bytes after which a connection counts as long-lived.
pub const LAZY_BYTES: u64 = 64 << 10;

/// What the operator decided.
#[derive(Clone, Debug)]
pub struct Options {
    /// `mode=tcp`: connections are counted and left alone.
    pub smc: bool,
    /// When to move.
    pub promotion: Promotion,
    /// Receive buffer of programs that set none.
    pub rmbe: RmbeSize,
    /// When waiters may spin.
    pub spin: SpinPolicy,
    /// Bytes of ring memory this process may use; 0 = what its control group bears.
    pub memory_limit: u64,
    /// The UEID that peers must have, too.
    pub eid: Option<Eid>,
    /// Which connections stay on TCP.
    pub policy: Policy,
    /// The abstract name of a `sidestep assess` that waits to be shown our state.
    pub assessor: ArrayVec<u8, ASSESSOR_LEN_MAX>,
    /// How much to log.
    pub log: crate::log::Level,
}

/// Bytes of the name of an assessor.
pub const ASSESSOR_LEN_MAX: usize = 64;

impl Default for Options {
    fn default() -> Self {
        Self {
            smc: true,
            promotion: Promotion::Early,
            rmbe: RmbeSize::DEFAULT,
            spin: SpinPolicy::Auto,
            memory_limit: 0,
            eid: Eid::ueid("SIDESTEP").ok(),
            policy: Policy::default(),
            assessor: ArrayVec::new(),
            log: crate::log::Level::Warn,
        }
    }
}

impl Options {
    /// Reads the value of [`VARIABLE`], for a program of this name.
    #[must_use]
    pub fn parse(text: &str, program: &str) -> Self {
        let mut options = Self::default();
        for (key, value) in text.split_ascii_whitespace().filter_map(|pair| pair.split_once('=')) {
            match key {
                "noprogram" => {
                    options.policy.excludes_program = value.split(',').any(|name| name == program);
                }
                _ => options.set(key, value),
            }
        }
        options
    }

    /// Whether any connection may move at all.
    #[must_use]
    pub fn moves_connections(&self) -> bool {
        self.smc && self.promotion != Promotion::Never
    }

    fn set(&mut self, key: &str, value: &str) {
        match (key, value) {
            ("mode", mode) => self.smc = mode != "tcp",
            ("promotion", "early") => self.promotion = Promotion::Early,
            ("promotion", "lazy") => self.promotion = Promotion::Lazy,
            ("promotion", "never") => self.promotion = Promotion::Never,
            ("rmbe", bytes) => {
                let size = bytes.parse().ok().and_then(RmbeSize::from_bytes);
                self.rmbe = size.unwrap_or(self.rmbe);
            }
            ("spin", "auto") => self.spin = SpinPolicy::Auto,
            ("spin", "never") => self.spin = SpinPolicy::Never,
            ("spin", "always") => self.spin = SpinPolicy::Always,
            ("memory", bytes) => self.memory_limit = bytes.parse().unwrap_or(self.memory_limit),
            ("eid", name) => self.eid = Eid::ueid(name).ok().or(self.eid),
            ("noport", ports) => self.policy.excluded_ports = list(ports, PortRange::from_str),
            ("peer", subnets) => self.policy.permitted_peers = list(subnets, policy::parse_subnet),
            ("nopeer", subnets) => self.policy.excluded_peers = list(subnets, policy::parse_subnet),
            ("assessor", name) => {
                self.assessor = name.bytes().take(ASSESSOR_LEN_MAX).collect();
            }
            ("log", level) => self.log = crate::log::Level::parse(level).unwrap_or(self.log),
            ("logfile", path) => crate::log::set_file(path),
            _ => {}
        }
    }
}

/// Entries between commas.
fn list<T, E>(text: &str, entry: fn(&str) -> Result<T, E>) -> ArrayVec<T, ENTRIES_MAX> {
    text.split(',').filter_map(|text| entry(text).ok()).take(ENTRIES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_command_line_tool_writes() {
        let options =
            Options::parse("mode=tcp promotion=lazy rmbe=131072 spin=never eid=PROD", "server");
        assert!(!options.smc);
        assert_eq!(options.promotion, Promotion::Lazy);
        assert_eq!(options.rmbe.bytes(), 131_072);
        assert_eq!(options.spin, SpinPolicy::Never);
        assert_eq!(options.eid, Eid::ueid("PROD").ok());
    }

    #[test]
    fn what_does_not_parse_keeps_its_default() {
        let options =
            Options::parse("rmbe=12345 spin=sometimes nonsense eid=~ noport=x,22", "server");
        assert_eq!(options.rmbe, RmbeSize::DEFAULT);
        assert_eq!(options.spin, SpinPolicy::Auto);
        assert_eq!(options.eid, Eid::ueid("SIDESTEP").ok());
        assert_eq!(options.policy.excluded_ports.len(), 1);
    }

    #[test]
    fn the_policy_is_read() {
        let text = "noport=22,6000-6010 peer=10.0.0.0/8 nopeer=10.1.0.0/16,::1/128 noprogram=a,b";
        let policy = Options::parse(text, "server").policy;
        let lists = [policy.permitted_peers.len(), policy.excluded_peers.len()];
        assert_eq!((policy.excluded_ports.len(), lists), (2, [1, 2]));
        assert!(!policy.excludes_program);
        assert!(Options::parse(text, "b").policy.excludes_program);
    }
}
