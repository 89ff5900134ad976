//! What a user can choose, and the text in which `libsidestep.so` is told.
//!
//! [`Settings`] is one source's wishes: a configuration file, or the command line. Each source
//! may leave anything open. [`Settings::or`] lays one source over the next, and
//! [`Settings::into_options`] fills the rest with defaults. [`Options`] is then written as
//!
//! ```text
//! SIDESTEP_OPTIONS="mode=smc promotion=lazy autosmc=on autocache=on rmbe=65536 spin=auto memory=0
//!     agent=/run/sidestep/agent.sock eid=SIDESTEP seid=off log=error"
//! ```
//!
//! Every value there has been checked, holds no space, and is understood by the library as is.

use std::ffi::OsStr;
use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::ValueEnum;
use ipnet::IpNet;
use sidestep_distributor::VipSet;
use sidestep_gateway::AdapterChoice;
use sidestep_proto::policy::{Interface, PortRange};
use sidestep_proto::rendezvous::UEIDS_MAX;
use sidestep_socket::process::options::AGENT_SOCKET;
use sidestep_tls::Rule;

use crate::accounts::{Group, User};
use crate::fault_plan::FaultPlan;
use crate::metrics_address::MetricsAddress;
use crate::pnet::{Device, Networks};
use crate::share::{Pair, SharePolicy};
use crate::store_address::StoreAddress;
use crate::words::{keyword, listed};

/// The environment variable that carries [`Options`] to the library.
pub(crate) const OPTIONS_VARIABLE: &str = "SIDESTEP_OPTIONS";

/// Everything the library needs to know, complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) promotion: Promotion,
    pub(crate) autosmc: bool,
    pub(crate) autocache: bool,
    pub(crate) rmbe_size: RmbeSize,
    pub(crate) spin: Spin,
    pub(crate) memory_limit: MemoryLimit,
    pub(crate) user_memory_limit: MemoryLimit,
    pub(crate) agent_socket: PathBuf,
    pub(crate) eid: Eids,
    pub(crate) seid: bool,
    pub(crate) handshake_limit: u32,
    pub(crate) exclude_ports: Vec<PortRange>,
    pub(crate) permit_peers: Vec<IpNet>,
    pub(crate) exclude_peers: Vec<IpNet>,
    pub(crate) exclude_programs: Vec<ProgramName>,
    pub(crate) trust_filters: bool,
    pub(crate) share_with_users: Vec<User>,
    pub(crate) share_with_groups: Vec<Group>,
    pub(crate) pnet: Networks,
    /// Which connections are protected, and how.
    pub(crate) tls: Vec<Rule>,
    /// The abstract name of a `sidestep assess` that is to be shown what the program counts.
    pub(crate) assessor: Option<String>,
    pub(crate) log_level: LogLevel,
    /// Standard error if `None`; always absolute, because programs change directory.
    pub(crate) log_file: Option<PathBuf>,
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = Settings::from(self.clone()).words().into_iter();
        f.write_str(&joined(words.filter(|(_, value)| !value.is_empty())))
    }
}

fn on_or_off(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

fn joined(words: impl Iterator<Item = (&'static str, String)>) -> String {
    words.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// What the rules are about, in their order: the library knows no more of them
/// ([`Scopes::parse`](sidestep_proto::protection::Scopes::parse)).
pub(crate) fn scopes_word(rules: &[Rule]) -> String {
    let word = |rule: &Rule| format!("{}|{}", rule.scope, listed(&rule.programs, ","));
    rules.iter().map(word).collect::<Vec<_>>().join(";")
}

/// What one source of configuration asks for; `None` leaves the choice to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) mode: Option<Mode>,
    pub(crate) promotion: Option<Promotion>,
    pub(crate) autosmc: Option<bool>,
    pub(crate) autocache: Option<bool>,
    pub(crate) rmbe_size: Option<RmbeSize>,
    pub(crate) spin: Option<Spin>,
    pub(crate) memory_limit: Option<MemoryLimit>,
    pub(crate) user_memory_limit: Option<MemoryLimit>,
    pub(crate) agent_socket: Option<PathBuf>,
    pub(crate) eid: Option<Eids>,
    pub(crate) seid: Option<bool>,
    pub(crate) handshake_limit: Option<u32>,
    pub(crate) exclude_ports: Option<Vec<PortRange>>,
    pub(crate) permit_peers: Option<Vec<IpNet>>,
    pub(crate) exclude_peers: Option<Vec<IpNet>>,
    pub(crate) exclude_programs: Option<Vec<ProgramName>>,
    pub(crate) trust_filters: Option<bool>,
    pub(crate) share_with_users: Option<Vec<User>>,
    pub(crate) share_with_groups: Option<Vec<Group>>,
    pub(crate) pnet: Option<Networks>,
    pub(crate) tls: Option<Vec<Rule>>,
    /// Has no key: see [`Options::assessor`].
    pub(crate) assessor: Option<String>,
    pub(crate) log_level: Option<LogLevel>,
    pub(crate) log_file: Option<PathBuf>,
    /// For `sidestep agent`; the library is not told.
    pub(crate) agent_metrics: Option<MetricsAddress>,
    /// These three for it, too: the policy by which users share memory.
    pub(crate) share_all: Option<bool>,
    pub(crate) share_groups: Option<Vec<Group>>,
    pub(crate) share_pairs: Option<Vec<Pair>>,
    /// For `sidestep filter`; the library is not told.
    pub(crate) filter_file: Option<PathBuf>,
    /// The same: a list itself, whose lines have the numbers that they have in the file.
    pub(crate) filter_rules: Option<String>,
    /// The same: where packets leave that are forwarded.
    pub(crate) filter_forwarded: Option<Vec<Interface>>,
    /// These two for `sidestep gateway`.
    pub(crate) adapters: Option<Vec<AdapterChoice>>,
    pub(crate) faults: Option<FaultPlan>,
    /// For `sidestep vip`.
    pub(crate) vips: Option<VipSet>,
    /// For `sidestep distributor`: by which clients come and targets are reached.
    pub(crate) interface: Option<String>,
    /// And on which hosts distributors are.
    pub(crate) hosts: Option<Vec<IpAddr>>,
    /// For it, too: what several of them share, and which one goes before others.
    pub(crate) store: Option<Vec<StoreAddress>>,
    pub(crate) store_ca: Option<PathBuf>,
    pub(crate) store_certificate: Option<PathBuf>,
    pub(crate) store_key: Option<PathBuf>,
    pub(crate) store_user_file: Option<PathBuf>,
    pub(crate) rank: Option<u32>,
    pub(crate) switch_back: Option<bool>,
    /// And by which program packets are sent on.
    pub(crate) path: Option<DataPath>,
}

impl Settings {
    /// What is asked for, in the library's words. A list is there also if it is empty,
    /// because it hides those of less important sources.
    pub(crate) fn to_words(&self) -> String {
        joined(self.words().into_iter())
    }

    fn words(&self) -> Vec<(&'static str, String)> {
        let groups = self.share_with_groups.as_ref();
        let ids = |ids: Vec<u32>| listed(&ids, ",");
        let words = [
            ("mode", self.mode.as_ref().map(keyword)),
            ("promotion", self.promotion.as_ref().map(keyword)),
            ("autosmc", self.autosmc.map(on_or_off)),
            ("autocache", self.autocache.map(on_or_off)),
            ("rmbe", self.rmbe_size.map(|size| size.0.to_string())),
            ("spin", self.spin.as_ref().map(keyword)),
            ("memory", self.memory_limit.map(|limit| limit.0.to_string())),
            ("usermemory", self.user_memory_limit.map(|limit| limit.0.to_string())),
            ("agent", self.agent_socket.as_ref().map(|at| percent_encode(at.as_os_str()))),
            ("eid", self.eid.as_ref().map(|eids| listed(&eids.0, ","))),
            ("seid", self.seid.map(on_or_off)),
            ("handshakes", self.handshake_limit.map(|limit| limit.to_string())),
            ("log", self.log_level.as_ref().map(keyword)),
            ("noport", self.exclude_ports.as_ref().map(|list| listed(list, ","))),
            ("peer", self.permit_peers.as_ref().map(|list| listed(list, ","))),
            ("nopeer", self.exclude_peers.as_ref().map(|list| listed(list, ","))),
            ("noprogram", self.exclude_programs.as_ref().map(|list| listed(list, ","))),
            (
                "filters",
                self.trust_filters.map(|trust| if trust { "trust" } else { "" }.to_owned()),
            ),
            (
                "user",
                self.share_with_users
                    .as_ref()
                    .map(|users| ids(users.iter().map(User::uid).collect())),
            ),
            ("group", groups.map(|groups| ids(groups.iter().map(Group::gid).collect()))),
            (
                "member",
                groups.map(|groups| ids(groups.iter().flat_map(Group::members).copied().collect())),
            ),
            ("pnet", self.pnet.as_ref().map(|all| listed(all.interfaces_of(Device::Ism), ","))),
            ("tls", self.tls.as_ref().map(|rules| scopes_word(rules))),
            ("assessor", self.assessor.clone()),
            ("logfile", self.log_file.as_ref().map(|file| percent_encode(file.as_os_str()))),
        ];
        words.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// These settings, and where they are silent, those of a `lower` source.
    pub(crate) fn or(self, lower: Self) -> Self {
        Self {
            mode: self.mode.or(lower.mode),
            promotion: self.promotion.or(lower.promotion),
            autosmc: self.autosmc.or(lower.autosmc),
            autocache: self.autocache.or(lower.autocache),
            rmbe_size: self.rmbe_size.or(lower.rmbe_size),
            spin: self.spin.or(lower.spin),
            memory_limit: self.memory_limit.or(lower.memory_limit),
            user_memory_limit: self.user_memory_limit.or(lower.user_memory_limit),
            agent_socket: self.agent_socket.or(lower.agent_socket),
            eid: self.eid.or(lower.eid),
            seid: self.seid.or(lower.seid),
            handshake_limit: self.handshake_limit.or(lower.handshake_limit),
            exclude_ports: self.exclude_ports.or(lower.exclude_ports),
            permit_peers: self.permit_peers.or(lower.permit_peers),
            exclude_peers: self.exclude_peers.or(lower.exclude_peers),
            exclude_programs: self.exclude_programs.or(lower.exclude_programs),
            trust_filters: self.trust_filters.or(lower.trust_filters),
            share_with_users: self.share_with_users.or(lower.share_with_users),
            share_with_groups: self.share_with_groups.or(lower.share_with_groups),
            pnet: self.pnet.or(lower.pnet),
            tls: self.tls.or(lower.tls),
            assessor: self.assessor.or(lower.assessor),
            log_level: self.log_level.or(lower.log_level),
            log_file: self.log_file.or(lower.log_file),
            agent_metrics: self.agent_metrics.or(lower.agent_metrics),
            share_all: self.share_all.or(lower.share_all),
            share_groups: self.share_groups.or(lower.share_groups),
            share_pairs: self.share_pairs.or(lower.share_pairs),
            filter_file: self.filter_file.or(lower.filter_file),
            filter_rules: self.filter_rules.or(lower.filter_rules),
            filter_forwarded: self.filter_forwarded.or(lower.filter_forwarded),
            adapters: self.adapters.or(lower.adapters),
            faults: self.faults.or(lower.faults),
            vips: self.vips.or(lower.vips),
            interface: self.interface.or(lower.interface),
            hosts: self.hosts.or(lower.hosts),
            store: self.store.or(lower.store),
            store_ca: self.store_ca.or(lower.store_ca),
            store_certificate: self.store_certificate.or(lower.store_certificate),
            store_key: self.store_key.or(lower.store_key),
            store_user_file: self.store_user_file.or(lower.store_user_file),
            rank: self.rank.or(lower.rank),
            switch_back: self.switch_back.or(lower.switch_back),
            path: self.path.or(lower.path),
        }
    }

    /// Whether these say something of the policy by which users share memory.
    pub(crate) fn has_share_policy(&self) -> bool {
        self.share_all.is_some() || self.share_groups.is_some() || self.share_pairs.is_some()
    }

    /// The policy by which users share memory.
    pub(crate) fn into_share_policy(self) -> SharePolicy {
        SharePolicy {
            all: self.share_all.unwrap_or(false),
            groups: self.share_groups.unwrap_or_default(),
            pairs: self.share_pairs.unwrap_or_default(),
        }
    }

    /// The complete options, with the defaults of `docs/configuration.md`.
    pub(crate) fn into_options(self) -> Options {
        Options {
            mode: self.mode.unwrap_or(Mode::Smc),
            promotion: self.promotion.unwrap_or(Promotion::Lazy),
            autosmc: self.autosmc.unwrap_or(true),
            autocache: self.autocache.unwrap_or(true),
            rmbe_size: self.rmbe_size.unwrap_or(RmbeSize(64 << 10)),
            spin: self.spin.unwrap_or(Spin::Auto),
            memory_limit: self.memory_limit.unwrap_or(MemoryLimit(0)),
            user_memory_limit: self.user_memory_limit.unwrap_or(MemoryLimit(0)),
            agent_socket: self.agent_socket.unwrap_or_else(|| AGENT_SOCKET.into()),
            eid: self.eid.unwrap_or_else(|| Eids(vec![Eid("SIDESTEP".into())])),
            seid: self.seid.unwrap_or(false),
            handshake_limit: self.handshake_limit.unwrap_or(0),
            exclude_ports: self.exclude_ports.unwrap_or_default(),
            permit_peers: self.permit_peers.unwrap_or_default(),
            exclude_peers: self.exclude_peers.unwrap_or_default(),
            exclude_programs: self.exclude_programs.unwrap_or_default(),
            trust_filters: self.trust_filters.unwrap_or(false),
            share_with_users: self.share_with_users.unwrap_or_default(),
            share_with_groups: self.share_with_groups.unwrap_or_default(),
            pnet: self.pnet.unwrap_or_default(),
            tls: self.tls.unwrap_or_default(),
            assessor: self.assessor,
            log_level: self.log_level.unwrap_or(LogLevel::Error),
            log_file: self.log_file,
        }
    }
}

impl From<Options> for Settings {
    fn from(options: Options) -> Self {
        Self {
            mode: Some(options.mode),
            promotion: Some(options.promotion),
            autosmc: Some(options.autosmc),
            autocache: Some(options.autocache),
            rmbe_size: Some(options.rmbe_size),
            spin: Some(options.spin),
            memory_limit: Some(options.memory_limit),
            user_memory_limit: Some(options.user_memory_limit),
            agent_socket: Some(options.agent_socket),
            eid: Some(options.eid),
            seid: Some(options.seid),
            handshake_limit: Some(options.handshake_limit),
            exclude_ports: Some(options.exclude_ports),
            permit_peers: Some(options.permit_peers),
            exclude_peers: Some(options.exclude_peers),
            exclude_programs: Some(options.exclude_programs),
            trust_filters: Some(options.trust_filters),
            share_with_users: Some(options.share_with_users),
            share_with_groups: Some(options.share_with_groups),
            pnet: Some(options.pnet),
            tls: Some(options.tls),
            assessor: options.assessor,
            log_level: Some(options.log_level),
            log_file: options.log_file,
            agent_metrics: None,
            share_all: None,
            share_groups: None,
            share_pairs: None,
            filter_file: None,
            filter_rules: None,
            filter_forwarded: None,
            adapters: None,
            faults: None,
            vips: None,
            interface: None,
            hosts: None,
            store: None,
            store_ca: None,
            store_certificate: None,
            store_key: None,
            store_user_file: None,
            rank: None,
            switch_back: None,
            path: None,
        }
    }
}

/// Whether connections may leave TCP at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Shared memory where both ends can, TCP elsewhere.
    Smc,
    /// The library is loaded and counts, but every connection stays on TCP.
    Tcp,
}

/// When a connection whose peer is a Sidestep program leaves TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Promotion {
    /// As soon as both ends agree.
    Early,
    /// Once it has lived long enough to pay for the switch.
    Lazy,
    /// Not at all; peers see a program that declines.
    Never,
}

/// By which program of the kernel a distributor sends packets on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataPath {
    /// XDP where the driver of a physical interface has it, traffic control otherwise.
    Auto,
    /// Traffic control.
    Tc,
    /// XDP of the driver.
    Xdp,
    /// XDP of the kernel.
    XdpGeneric,
}

/// Whether a thread that waits for data looks a while before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Spin {
    /// As long as it pays, learned while running.
    Auto,
    /// Sleep at once.
    Never,
    /// Look first, even if nothing was gained by it so far.
    Always,
}

/// How much the library says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Something a user asked for is given up.
    Error,
    /// It works, but less well: a connection fell back to TCP.
    Warn,
    /// Connections come and go.
    Info,
    /// A line for each control message.
    Debug,
    /// Bytes.
    Trace,
}

/// The size of the ring into which a peer writes, in bytes.
///
/// *Source*: the sizes z/OS offers for RMBEs; SMC-D encodes a size as a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RmbeSize(u32);

impl RmbeSize {
    /// The allowed sizes in words, for error texts.
    pub(crate) const ALLOWED: &str = "32KB, 64KB, 128KB, 256KB, 512KB or 1MB";

    /// The size if it is one of the allowed ones.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let allowed = bytes.is_power_of_two() && (32 << 10..=1 << 20).contains(&bytes);
        let bytes = u32::try_from(bytes).ok().filter(|_| allowed)?;
        Some(Self(bytes))
    }

    /// The size in bytes.
    pub(crate) fn bytes(self) -> u32 {
        self.0
    }
}

/// The most ring memory one process may use, in bytes; 0: what its control group bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimit(u64);

impl MemoryLimit {
    /// The allowed values in words, for error texts.
    pub(crate) const ALLOWED: &str =
        "0 (what the control group bears), or at least 2MB, such as 256MB";
    /// The same for a limit of all programs of a user.
    pub(crate) const ALLOWED_FOR_USER: &str = "0 (no limit), or at least 2MB, such as 256MB";

    /// The limit in bytes; 0 as above.
    pub(crate) fn bytes(self) -> u64 {
        self.0
    }

    /// The limit, if it leaves room for at least one ring of the largest size.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        (bytes == 0 || bytes >= 2 << 20).then_some(Self(bytes))
    }
}

/// The user-defined enterprise ID: programs whose EIDs differ do not leave TCP.
///
/// *Source*: SMC version 2, UEID: 1 to 32 characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Eid(String);

impl Eid {
    /// The allowed values in words, for error texts.
    pub(crate) const ALLOWED: &str =
        "1 to 32 characters from A-Z, 0-9, `.` and `-`, the first a letter or digit";

    /// The EID if its length and characters are allowed.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let alphanumeric = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit();
        let bytes = text.as_bytes();
        let allowed = (1..=32).contains(&bytes.len())
            && alphanumeric(bytes[0])
            && bytes.iter().all(|&c| alphanumeric(c) || c == b'.' || c == b'-');
        allowed.then(|| Self(text.into()))
    }
}

impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The enterprise IDs of a program, the preferred first: two that have one in common may leave
/// TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Eids(Vec<Eid>);

impl Eids {
    /// The EIDs if there are no more than a message of Linux has.
    pub(crate) fn new(eids: Vec<Eid>) -> Option<Self> {
        (1..=UEIDS_MAX).contains(&eids.len()).then_some(Self(eids))
    }

    /// Each as text.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|eid| eid.0.as_str())
    }
}

impl fmt::Display for Eids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&listed(&self.0, ", "))
    }
}

/// The name of a program: the last part of the path by which it is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramName(String);

impl ProgramName {
    /// The allowed values in words, for error texts.
    pub(crate) const ALLOWED: &str =
        "the name of a program, such as `sshd`, without a path, spaces or commas";

    /// The name if its characters are allowed.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let allowed = |c: u8| c.is_ascii_graphic() && c != b'/' && c != b',';
        (!text.is_empty() && text.bytes().all(allowed)).then(|| Self(text.into()))
    }
}

impl fmt::Display for ProgramName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `text` with every byte that could end a word written as `%` and two hex digits.
pub(crate) fn percent_encode(text: &OsStr) -> String {
    let mut encoded = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pnet::{Network, PnetId};

    #[test]
    fn defaults_are_written_in_full() {
        assert_eq!(
            Settings::default().into_options().to_string(),
            "mode=smc promotion=lazy autosmc=on autocache=on rmbe=65536 spin=auto memory=0 \
             usermemory=0 agent=/run/sidestep/agent.sock eid=SIDESTEP seid=off handshakes=0 \
             log=error"
        );
    }

    #[test]
    fn lists_are_written_if_they_have_entries() {
        let settings = Settings {
            exclude_ports: Some(vec!["22".parse().unwrap(), "6000-6010".parse().unwrap()]),
            permit_peers: Some(Vec::new()),
            exclude_peers: Some(vec!["10.0.0.0/8".parse().unwrap()]),
            exclude_programs: ProgramName::new("sshd").map(|name| vec![name]),
            trust_filters: Some(true),
            ..Settings::default()
        };
        let text = settings.into_options().to_string();
        let lists = " noport=22,6000-6010 nopeer=10.0.0.0/8 noprogram=sshd filters=trust";
        assert!(text.ends_with(lists), "{text}");
    }

    #[test]
    fn of_pnet_ids_the_library_is_told_the_interfaces_of_the_shared_memory() {
        let mut networks = Networks::default();
        let settings = Settings { pnet: Some(networks.clone()), ..Settings::default() };
        assert_eq!(settings.to_words(), "pnet=", "it hides that of a less important source");
        let id = PnetId::new("A").unwrap();
        let interfaces = vec!["eth0".parse().unwrap(), "lo".parse().unwrap()];
        networks.add(Network { id, interfaces, devices: vec![Device::Ism] }).unwrap();
        let settings = Settings { pnet: Some(networks), ..Settings::default() };
        assert_eq!(settings.to_words(), "pnet=eth0,lo");
    }

    #[test]
    fn programs_have_names_without_paths() {
        for bad in ["", "/usr/sbin/sshd", "a b", "a,b"] {
            assert!(ProgramName::new(bad).is_none(), "{bad}");
        }
        assert!(ProgramName::new("php-fpm8.2").is_some());
    }

    #[test]
    fn a_log_file_is_percent_encoded() {
        let settings =
            Settings { log_file: Some("/tmp/a b/100%/é".into()), ..Settings::default() };
        let text = settings.into_options().to_string();
        assert!(text.ends_with(" logfile=/tmp/a%20b/100%25/%C3%A9"), "{text}");
    }

    #[test]
    fn the_higher_source_wins_key_by_key() {
        let high = Settings {
            mode: Some(Mode::Tcp),
            log_level: Some(LogLevel::Debug),
            ..Settings::default()
        };
        let low = Settings {
            mode: Some(Mode::Smc),
            spin: Some(Spin::Never),
            log_file: Some("/var/log/sidestep.log".into()),
            ..Settings::default()
        };
        let merged = high.or(low);
        assert_eq!(merged.mode, Some(Mode::Tcp));
        assert_eq!(merged.spin, Some(Spin::Never));
        assert_eq!(merged.log_level, Some(LogLevel::Debug));
        assert_eq!(merged.log_file, Some("/var/log/sidestep.log".into()));
        assert_eq!(merged.promotion, None);
    }

    #[test]
    fn rmbe_sizes_are_the_six_of_zos() {
        let allowed = (0..=64)
            .map(|i| i * (16 << 10))
            .chain([65_535, 2 << 20, u64::MAX])
            .filter_map(RmbeSize::new)
            .map(|size| size.0 >> 10);
        assert_eq!(allowed.collect::<Vec<_>>(), [32, 64, 128, 256, 512, 1024]);
    }

    #[test]
    fn a_memory_limit_holds_at_least_one_ring() {
        assert_eq!(MemoryLimit::new(0), Some(MemoryLimit(0)));
        assert_eq!(MemoryLimit::new((2 << 20) - 1), None);
        assert_eq!(MemoryLimit::new(2 << 20), Some(MemoryLimit(2 << 20)));
    }

    #[test]
    fn eids_follow_the_character_set() {
        let longest = "A".repeat(32);
        for good in ["A", "9", "PROD.EU-1", &longest] {
            assert!(Eid::new(good).is_some(), "{good}");
        }
        let too_long = "A".repeat(33);
        for bad in ["", ".A", "-A", "prod", "A B", "A_B", "É", &too_long] {
            assert!(Eid::new(bad).is_none(), "{bad}");
        }
    }
}
