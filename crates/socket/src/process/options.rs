//! Settings, as `sidestep run` hands them over in the environment.
//!
//! `SIDESTEP_OPTIONS="mode=smc promotion=early rmbe=65536 spin=auto memory=0
//! eid=SIDESTEP log=warn"`: the command line tool has read and checked the
//! configuration file, so whatever does not parse here is left at its default.

use crate::process::system_eid::system_eid;
use arrayvec::ArrayVec;
use core::str::FromStr;
use sidestep_device::map;
use sidestep_device::reference::AtomicRef;
use sidestep_proto::governor::SpinPolicy;
use sidestep_proto::policy::{self, Interface, Policy, PortRange};
use sidestep_proto::protection::Scopes;
use sidestep_proto::rendezvous::UEIDS_MAX;
use sidestep_wire::{Eid, RmbeSize};
use std::sync::OnceLock;

/// Name of the environment variable.
pub const VARIABLE: &str = "SIDESTEP_OPTIONS";

/// Where the agent of this host is found, if nothing else is said.
pub const AGENT_SOCKET: &str = "/run/sidestep/agent.sock";

/// Bytes of such a path: a socket's address has room for one more, which is 0.
pub const AGENT_SOCKET_LEN_MAX: usize = 107;

/// When a connection is moved to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// From its first bytes.
    Early,
    /// Once it has proven to live: see [`sidestep_proto::autosmc`].
    Lazy,
    /// Never.
    Never,
}

/// What the operator decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Name of the program, which rules may be about.
    pub program: &'static str,
    /// `mode=tcp`: connections are counted and left alone.
    pub smc: bool,
    /// When to move.
    pub promotion: Promotion,
    /// With [`Promotion::Lazy`]: to learn how long the connections of a port live.
    pub autosmc: bool,
    /// To leave servers alone for a while with which agreeing has failed.
    pub autocache: bool,
    /// Receive buffer of programs that set none.
    pub rmbe: RmbeSize,
    /// When waiters may spin.
    pub spin: SpinPolicy,
    /// Bytes of ring memory this process may use; 0 = what its control group bears.
    pub memory_limit: u64,
    /// The same for all processes of the user; 0 = none.
    pub user_memory_limit: u64,
    /// Where the agent of this host is found.
    pub agent: ArrayVec<u8, AGENT_SOCKET_LEN_MAX>,
    /// UEIDs of which a peer must have one, the preferred first.
    pub ueids: ArrayVec<Eid, UEIDS_MAX>,
    /// The SEID of this machine does as well.
    pub seid: bool,
    /// Connections that may be agreed on at a time; 0 = any number.
    pub handshake_limit: u32,
    /// Which connections stay on TCP.
    pub policy: Policy,
    /// Which connections TLS protects.
    pub protection: Scopes,
    /// Filters of system calls that a program has from its parent let our calls pass.
    pub trust_filters: bool,
    /// The abstract name of a `sidestep assess` that waits to be shown our state.
    pub assessor: ArrayVec<u8, ASSESSOR_LEN_MAX>,
    /// How much to log.
    pub log: crate::process::log::Level,
}

/// Bytes of the name of an assessor.
pub const ASSESSOR_LEN_MAX: usize = 64;

impl Default for Options {
    fn default() -> Self {
        Self {
            program: "",
            smc: true,
            promotion: Promotion::Lazy,
            autosmc: true,
            autocache: true,
            rmbe: RmbeSize::DEFAULT,
            spin: SpinPolicy::Auto,
            memory_limit: 0,
            user_memory_limit: 0,
            agent: AGENT_SOCKET.bytes().collect(),
            ueids: Eid::ueid("SIDESTEP").into_iter().collect(),
            seid: false,
            handshake_limit: 0,
            policy: Policy::default(),
            protection: Scopes::default(),
            trust_filters: false,
            assessor: ArrayVec::new(),
            log: crate::process::log::Level::Warn,
        }
    }
}

impl Options {
    /// The defaults, for a program of this name.
    #[must_use]
    pub fn of(program: &'static str) -> Self {
        Self { program, ..Self::default() }
    }

    /// Reads the value of [`VARIABLE`], for a program of this name.
    #[must_use]
    pub fn parse(text: &str, program: &'static str) -> Self {
        let mut options = Self::of(program);
        options.read(text);
        options
    }

    /// Lays the words of a text over what is there.
    pub fn read(&mut self, text: &str) {
        for word in text.split_ascii_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => self.set(key, value),
                // Its value was cut off, and rules protect. Without any there is an empty value, or no word.
                None if word == "tls" => self.protection = Scopes::unreadable(),
                None => {}
            }
        }
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
            ("autosmc", on) => self.autosmc = on != "off",
            ("autocache", on) => self.autocache = on != "off",
            ("rmbe", bytes) => {
                let size = bytes.parse().ok().and_then(RmbeSize::from_bytes);
                self.rmbe = size.unwrap_or(self.rmbe);
            }
            ("spin", "auto") => self.spin = SpinPolicy::Auto,
            ("spin", "never") => self.spin = SpinPolicy::Never,
            ("spin", "always") => self.spin = SpinPolicy::Always,
            ("memory", bytes) => self.memory_limit = bytes.parse().unwrap_or(self.memory_limit),
            ("usermemory", bytes) => {
                self.user_memory_limit = bytes.parse().unwrap_or(self.user_memory_limit);
            }
            ("eid", names) => {
                let ueids: ArrayVec<Eid, UEIDS_MAX> = list(names, Eid::ueid);
                if !ueids.is_empty() {
                    self.ueids = ueids;
                }
            }
            ("seid", on) => self.seid = on == "on",
            ("agent", path) => {
                self.agent =
                    crate::process::log::decoded(path).take(AGENT_SOCKET_LEN_MAX).collect();
            }
            ("handshakes", limit) => {
                self.handshake_limit = limit.parse().unwrap_or(self.handshake_limit);
            }
            ("noport", ports) => self.policy.excluded_ports = list(ports, PortRange::from_str),
            ("peer", subnets) => self.policy.permitted_peers = list(subnets, policy::parse_subnet),
            ("nopeer", subnets) => self.policy.excluded_peers = list(subnets, policy::parse_subnet),
            ("pnet", names) => self.policy.interfaces = list(names, Interface::from_str),
            ("user", users) => self.policy.users = list(users, u32::from_str),
            ("group", groups) => self.policy.groups = list(groups, u32::from_str),
            ("member", users) => self.policy.members = list(users, u32::from_str),
            ("noprogram", names) => {
                self.policy.excludes_program = names.split(',').any(|name| name == self.program);
            }
            ("tls", scopes) => self.protection = Scopes::parse(scopes, self.program),
            ("filters", trust) => self.trust_filters = trust == "trust",
            ("assessor", name) => {
                self.assessor = name.bytes().take(ASSESSOR_LEN_MAX).collect();
            }
            ("log", level) => {
                self.log = crate::process::log::Level::parse(level).unwrap_or(self.log)
            }
            ("logfile", path) => crate::process::log::set_file(path),
            _ => {}
        }
    }
}

/// Entries between commas.
fn list<T, E, const MAX: usize>(text: &str, entry: fn(&str) -> Result<T, E>) -> ArrayVec<T, MAX> {
    text.split(',').filter_map(|text| entry(text).ok()).take(MAX).collect()
}

static OPTIONS: OnceLock<Options> = OnceLock::new();

/// Sets what the operator decided; the first call counts.
pub fn configure(options: Options) {
    crate::process::log::set_level(options.log);
    if options.seid {
        // While there is `/proc`: the program may go where it is none.
        let _ = system_eid();
    }
    let _ = OPTIONS.set(options);
}

/// What the operator decided.
#[inline]
pub fn current() -> &'static Options {
    REPLACED.get().unwrap_or_else(|| OPTIONS.get_or_init(Options::default))
}

/// What he has decided since.
static REPLACED: AtomicRef<Options> = AtomicRef::new(None);

/// The operator has changed his mind. False if not, or if there is no memory to remember it.
/// What was before stays in memory: a thread may be reading it.
pub(crate) fn replace(options: Options) -> bool {
    if options == *current() {
        return false;
    }
    let kept = map::keep(options);
    let is_remembered = kept.is_ok();
    if let Ok(options) = kept {
        REPLACED.set(Some(options));
    }
    is_remembered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_tls_without_a_value_are_not_taken_for_none() {
        let protection = |text| Options::parse(text, "logger").protection;
        assert_eq!(protection("mode=smc tls"), Scopes::unreadable());
        assert_eq!(protection("mode=smc tls="), Scopes::default());
        assert_eq!(protection("mode=smc"), Scopes::default());
    }

    #[test]
    fn reads_what_the_command_line_tool_writes() {
        let options = Options::parse(
            "mode=tcp promotion=lazy rmbe=131072 spin=never eid=PROD,TEST seid=on",
            "server",
        );
        assert!(!options.smc);
        assert_eq!(options.agent[..], *AGENT_SOCKET.as_bytes());
        assert_eq!(Options::parse("agent=/a%20b", "server").agent[..], *b"/a b");
        assert_eq!(options.promotion, Promotion::Lazy);
        assert_eq!(options.rmbe.bytes(), 131_072);
        assert_eq!(options.spin, SpinPolicy::Never);
        assert_eq!(options.ueids[..], ["PROD", "TEST"].map(|name| Eid::ueid(name).unwrap()));
        assert!(options.seid && !Options::default().seid);
    }

    #[test]
    fn what_does_not_parse_keeps_its_default() {
        let options =
            Options::parse("rmbe=12345 spin=sometimes nonsense eid=~ noport=x,22", "server");
        assert_eq!(options.rmbe, RmbeSize::DEFAULT);
        assert_eq!(options.spin, SpinPolicy::Auto);
        assert_eq!(options.ueids[..], [Eid::ueid("SIDESTEP").unwrap()]);
        assert_eq!(options.policy.excluded_ports.len(), 1);
    }

    #[test]
    fn the_policy_is_read() {
        let text = "noport=22,6000-6010 peer=10.0.0.0/8 nopeer=10.1.0.0/16,::1/128 noprogram=a,b \
                    pnet=eth0,veth1 user=1,2 group=33 member=7";
        let policy = Options::parse(text, "server").policy;
        let lists = [policy.permitted_peers.len(), policy.excluded_peers.len()];
        assert_eq!((policy.excluded_ports.len(), lists), (2, [1, 2]));
        assert_eq!([policy.users.len(), policy.groups.len(), policy.members.len()], [2, 1, 1]);
        assert_eq!(policy.objection_to_interface(Some(b"veth1")), None);
        assert!(policy.objection_to_interface(Some(b"lo")).is_some());
        assert!(!policy.excludes_program);
        assert!(Options::parse(text, "b").policy.excludes_program);
        let text = "tls=in|web|8443|||server";
        assert!(Options::parse(text, "server").protection.concern_port(8443));
        assert_eq!(Options::parse(text, "other").protection, Scopes::default());
    }
}
