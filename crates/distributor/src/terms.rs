//! The terms of a VIP: what the operator writes, and what is refused before anything is changed.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

/// VIPs of one set.
pub const VIPS_MAX: usize = 32;
/// Targets of one VIP.
pub const TARGETS_MAX: usize = 64;
/// The weight of a target at most.
pub const WEIGHT_MAX: u16 = 100;
/// Bytes of a name at most.
pub const NAME_LEN_MAX: usize = 32;

/// An address for many servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vip {
    /// What the operator calls it.
    pub name: String,
    /// Where clients connect.
    pub address: SocketAddr,
    /// What they speak.
    pub protocol: Protocol,
    /// What its targets are.
    pub kind: TargetKind,
    /// Which target takes the next connection.
    pub method: Method,
    /// A client that connects again within this time meets the same target (`TIMEDAFFINITY`). Zero: it
    /// need not.
    pub affinity: Duration,
    /// Under [`Method::HotStandby`]: the preferred target takes over again when it is back.
    pub switch_back: bool,
    /// How a target shows that it serves.
    pub probe: Probe,
    /// Whether it has to speak SMC for that.
    pub smc: SmcUse,
    /// How much the host that has the VIP keeps of its own connections to it (`OPTLOCAL`). `None`: all of them.
    pub opt_local: Option<OptLocal>,
    /// Who serves; under [`Method::HotStandby`] the weight is the rank, and the first of equals leads.
    pub targets: Vec<Target>,
}

/// A server behind a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// What the operator calls it.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its share beside the others', from 1 to [`WEIGHT_MAX`].
    pub weight: u16,
}

/// What clients of a VIP speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Connections.
    #[default]
    Tcp,
    /// Datagrams. What one client's end sends goes to one target.
    Udp,
}

impl Protocol {
    /// Its number in a header of IP.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }

    /// As displays have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// What the targets of a VIP are: all of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetKind {
    /// Listeners of the host that has the VIP, each at an address and port of its own.
    #[default]
    Listeners,
    /// Hosts on the link of the host that has the VIP. Each has the VIP as an address too, and the port is the VIP's.
    Hosts,
}

/// Which target takes the next connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// `BASEWLM`: by weight. The connection's addresses choose the place in a Maglev table.
    #[default]
    BaseWlm,
    /// `ROUNDROBIN`: one after the other, whatever they weigh.
    RoundRobin,
    /// `WEIGHTEDACTIVE`: the one with the fewest live connections for its weight.
    WeightedActive,
    /// `HOTSTANDBY`: all to one, the others when it is gone.
    HotStandby,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::BaseWlm, Self::RoundRobin, Self::WeightedActive, Self::HotStandby];

    /// IBM's word, in small letters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BaseWlm => "basewlm",
            Self::RoundRobin => "roundrobin",
            Self::WeightedActive => "weightedactive",
            Self::HotStandby => "hotstandby",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = UnknownMethod;

    /// IBM's word, in letters of either size.
    fn from_str(text: &str) -> Result<Self, UnknownMethod> {
        let method = Self::ALL.into_iter().find(|method| method.name().eq_ignore_ascii_case(text));
        method.ok_or(UnknownMethod)
    }
}

/// It is none of the methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("is not one of: basewlm, roundrobin, weightedactive, hotstandby")]
pub struct UnknownMethod;

impl Vip {
    /// Whether targets are asked if they serve. A listener is seen, and whether its program speaks SMC as well; of a host both is
    /// to be asked.
    #[must_use]
    pub fn is_probed(&self) -> bool {
        let asks_for_smc = self.smc == SmcUse::Require && self.kind == TargetKind::Hosts;
        self.probe.kind != ProbeKind::Listens || asks_for_smc
    }
}

/// How much of its own connections to a VIP a host keeps that is a target of it: IBM's number, `OPTLOCAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptLocal(u8);

impl OptLocal {
    /// Its own server takes them as long as it serves.
    pub const ALWAYS: Self = Self(0);
    /// The greatest.
    pub const MAX: u8 = 16;

    /// `None`: there is no such number.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        u8::try_from(number).ok().filter(|number| *number <= Self::MAX).map(Self)
    }

    /// IBM's number.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// How many times its weight the own server has.
    pub(crate) fn factor(self) -> u16 {
        u16::from(self.0.max(1))
    }
}

/// What SMC is to a VIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SmcUse {
    /// Connections move where both ends can.
    #[default]
    Prefer,
    /// A target serves only while it speaks SMC. With none that does a client is refused, as if no server listened.
    Require,
}

impl SmcUse {
    /// As the operator writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefer => "prefer",
            Self::Require => "require",
        }
    }
}

/// How a target shows that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What is tried.
    pub kind: ProbeKind,
    /// The time from one probe to the next.
    pub interval: Duration,
    /// A probe that has no answer by then has failed.
    pub timeout: Duration,
    /// So many in a row that pass have the target up.
    pub rise: u32,
    /// So many in a row that fail have it down.
    pub fall: u32,
}

/// What is tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProbeKind {
    /// Nothing: a target that listens serves.
    #[default]
    Listens,
    /// A connection is made, and closed.
    Tcp,
    /// `GET` of this path is answered by a status from 200 to 399.
    Http(String),
    /// This command, with its arguments, exits with status 0.
    Command(Vec<String>),
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            kind: ProbeKind::Listens,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            rise: 2,
            fall: 3,
        }
    }
}

/// VIPs that can be in force together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VipSet(Vec<Vip>);

impl VipSet {
    /// # Errors
    /// A VIP that makes no sense, or two that cannot be together.
    pub fn new(vips: Vec<Vip>) -> Result<Self, TermsError> {
        if vips.len() > VIPS_MAX {
            return Err(TermsError::TooManyVips);
        }
        for (place, vip) in vips.iter().enumerate() {
            check(vip)?;
            for other in &vips[..place] {
                check_pair(other, vip)?;
            }
        }
        Ok(Self(vips))
    }

    /// The VIPs.
    #[must_use]
    pub fn vips(&self) -> &[Vip] {
        &self.0
    }

    /// Leaves out the others.
    pub fn retain(&mut self, is_wanted: impl FnMut(&Vip) -> bool) {
        self.0.retain(is_wanted);
    }
}

/// Why a set of VIPs is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TermsError {
    /// Too many of them.
    #[error("there are more than {VIPS_MAX} VIPs")]
    TooManyVips,
    /// One of them.
    #[error("vip.{vip}: {fault}")]
    Vip {
        /// Its name.
        vip: String,
        /// What is wrong with it.
        fault: Fault,
    },
}

/// What is wrong with a VIP.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// A name that has no place in a display.
    #[error(
        "`{0}` is no name; use 1 to {NAME_LEN_MAX} letters, digits, `-`, `_` and `.`, the first a \
         letter or digit"
    )]
    Name(String),
    /// All addresses, or no port.
    #[error("{0} is not allowed as address; use one address and a port from 1 to 65535")]
    Address(SocketAddr),
    /// Another VIP has it.
    #[error("{address} is the address of vip.{other} already; use another address or port")]
    Overlap {
        /// The address of both.
        address: SocketAddr,
        /// The name of the other.
        other: String,
    },
    /// No target serves.
    #[error("has no targets; add [vip.NAME.targets.T] with the address of a server")]
    NoTargets,
    /// Too many serve.
    #[error("has more than {TARGETS_MAX} targets")]
    TooManyTargets,
    /// Two targets of one name.
    #[error("two targets are called {0}")]
    TwoTargets(String),
    /// Two targets at one address.
    #[error("targets {0} and {1} have the same address")]
    SameAddress(String, String),
    /// A target that is a VIP.
    #[error("the address of target {0} is that of a VIP; use that of the server itself")]
    TargetIsVip(String),
    /// Datagrams have no listener that the kernel could be given.
    #[error(
        "protocol \"udp\" takes targets that are hosts, named by an address without a port; a target with a \
         port is a listener of this host, for \"tcp\""
    )]
    Datagrams,
    /// SMC is for connections.
    #[error(
        "smc = \"require\" takes protocol \"tcp\": there is no SMC for datagrams; leave it out"
    )]
    SmcForDatagrams,
    /// The marker that the VIP has for clients is by the port, and so would be taken for the target's.
    #[error(
        "target {0} has the port of the VIP, by which it cannot be seen whether it speaks SMC; with smc = \"require\" \
         have it listen at another port"
    )]
    PortOfVip(String),
    /// All clients meet one target.
    #[error(
        "timedaffinity has no meaning under hotstandby, where all clients meet one target; leave it out"
    )]
    Affinity,
    /// All targets are on this host.
    #[error(
        "optlocal takes targets that are hosts, named by an address without a port; of listeners each is on this host, \
         so leave it out"
    )]
    AllLocal,
    /// A target would serve beside the one that leads.
    #[error(
        "optlocal has no meaning under hotstandby, where a target that stands by serves no one; leave it out"
    )]
    LocalStandby,
    /// A weight beyond the bounds.
    #[error("target {0}: weight {1} is not allowed; use 1 to {WEIGHT_MAX}")]
    Weight(String, u16),
    /// The address family of a target cannot serve clients of the VIP.
    #[error(
        "target {0} is of another address family than the VIP; a listener of IPv6 serves both if it is \
         not for IPv6 only, so name it by an IPv6 address"
    )]
    Family(String),
    /// Packets go to a host as they came.
    #[error(
        "target {0} is of another address family than the VIP; name the host by an address of the VIP's family"
    )]
    HostFamily(String),
    /// A probe that could never count.
    #[error("a probe that rises after {rise} and falls after {fall} is not allowed; use 1 to 100")]
    Counts {
        /// As written.
        rise: u32,
        /// As written.
        fall: u32,
    },
    /// A probe without time.
    #[error("the times of a probe are from 100ms to 1h")]
    Times,
}

fn check(vip: &Vip) -> Result<(), TermsError> {
    let wrong = |fault| Err(TermsError::Vip { vip: vip.name.clone(), fault });
    if !is_name(&vip.name) {
        return wrong(Fault::Name(vip.name.clone()));
    }
    if vip.address.ip().is_unspecified()
        || vip.address.ip().is_multicast()
        || vip.address.port() == 0
    {
        return wrong(Fault::Address(vip.address));
    }
    if vip.targets.is_empty() {
        return wrong(Fault::NoTargets);
    }
    if vip.targets.len() > TARGETS_MAX {
        return wrong(Fault::TooManyTargets);
    }
    if vip.protocol == Protocol::Udp && vip.kind == TargetKind::Listeners {
        return wrong(Fault::Datagrams);
    }
    if vip.protocol == Protocol::Udp && vip.smc == SmcUse::Require {
        return wrong(Fault::SmcForDatagrams);
    }
    if vip.method == Method::HotStandby && !vip.affinity.is_zero() {
        return wrong(Fault::Affinity);
    }
    if vip.opt_local.is_some() && vip.kind == TargetKind::Listeners {
        return wrong(Fault::AllLocal);
    }
    if vip.opt_local.is_some() && vip.method == Method::HotStandby {
        return wrong(Fault::LocalStandby);
    }
    let Probe { interval, timeout, rise, fall, .. } = vip.probe;
    if ![rise, fall].iter().all(|count| (1..=100).contains(count)) {
        return wrong(Fault::Counts { rise, fall });
    }
    let times = Duration::from_millis(100)..=Duration::from_secs(3600);
    if ![interval, timeout].iter().all(|time| times.contains(time)) {
        return wrong(Fault::Times);
    }
    vip.targets.iter().enumerate().try_for_each(|(place, target)| {
        check_target(vip, target, &vip.targets[..place])
            .map_err(|fault| TermsError::Vip { vip: vip.name.clone(), fault })
    })
}

fn check_target(vip: &Vip, target: &Target, before: &[Target]) -> Result<(), Fault> {
    let name = || target.name.clone();
    if !is_name(&target.name) {
        return Err(Fault::Name(name()));
    }
    if before.iter().any(|other| other.name == target.name) {
        return Err(Fault::TwoTargets(name()));
    }
    if let Some(other) = before.iter().find(|other| other.address == target.address) {
        return Err(Fault::SameAddress(other.name.clone(), name()));
    }
    if target.address == vip.address {
        return Err(Fault::TargetIsVip(name()));
    }
    if target.address.port() == 0 {
        return Err(Fault::Address(target.address));
    }
    if !(1..=WEIGHT_MAX).contains(&target.weight) {
        return Err(Fault::Weight(name(), target.weight));
    }
    let (is_ipv6, is_target_ipv6) = (vip.address.is_ipv6(), target.address.is_ipv6());
    let has_vips_port = target.address.port() == vip.address.port();
    match vip.kind {
        TargetKind::Listeners if vip.smc == SmcUse::Require && has_vips_port => {
            Err(Fault::PortOfVip(name()))
        }
        // A listener of IPv6 may serve clients of IPv4, never the other way round.
        TargetKind::Listeners if is_ipv6 && !is_target_ipv6 => Err(Fault::Family(name())),
        TargetKind::Hosts if is_ipv6 != is_target_ipv6 => Err(Fault::HostFamily(name())),
        _ => Ok(()),
    }
}

fn check_pair(one: &Vip, other: &Vip) -> Result<(), TermsError> {
    let wrong = |fault| Err(TermsError::Vip { vip: other.name.clone(), fault });
    if one.name == other.name {
        return wrong(Fault::Name(other.name.clone()));
    }
    if (one.address, one.protocol) == (other.address, other.protocol) {
        return wrong(Fault::Overlap { address: other.address, other: one.name.clone() });
    }
    // A host is its address, whatever the port.
    let is_vip = |vip: &Vip, of: &Vip, target: &Target| match of.kind {
        TargetKind::Listeners => target.address == vip.address,
        TargetKind::Hosts => target.address.ip() == vip.address.ip(),
    };
    for (vip, of) in [(one, other), (other, one)] {
        if let Some(target) = of.targets.iter().find(|target| is_vip(vip, of, target)) {
            let fault = Fault::TargetIsVip(target.name.clone());
            return Err(TermsError::Vip { vip: of.name.clone(), fault });
        }
    }
    Ok(())
}

fn is_name(text: &str) -> bool {
    let is_inside = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    (1..=NAME_LEN_MAX).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && text.bytes().all(is_inside)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A VIP with targets of these weights.
    pub(crate) fn vip(method: Method, weights: &[u16]) -> Vip {
        let target = |(place, &weight): (usize, &u16)| Target {
            name: format!("t{place}"),
            address: SocketAddr::from(([127, 0, 0, 1], 7001 + place as u16)),
            weight,
        };
        Vip {
            name: "web".to_owned(),
            address: "127.0.0.10:80".parse().unwrap(),
            protocol: Protocol::Tcp,
            kind: TargetKind::Listeners,
            method,
            affinity: Duration::ZERO,
            switch_back: true,
            probe: Probe::default(),
            smc: SmcUse::default(),
            opt_local: None,
            targets: weights.iter().enumerate().map(target).collect(),
        }
    }

    fn refusal(vips: Vec<Vip>) -> String {
        VipSet::new(vips).unwrap_err().to_string()
    }

    #[test]
    fn a_set_that_makes_sense_is_taken() {
        let mut other = vip(Method::RoundRobin, &[1]);
        (other.name, other.address) = ("db".to_owned(), "[::1]:5432".parse().unwrap());
        other.targets[0].address = "[::1]:5433".parse().unwrap();
        assert_eq!(
            VipSet::new(vec![vip(Method::BaseWlm, &[4, 2, 1]), other]).unwrap().vips().len(),
            2
        );
        assert_eq!(VipSet::default().vips(), []);
    }

    #[test]
    fn each_fault_says_what_would_do() {
        let of = |change: fn(&mut Vip)| {
            let mut vip = vip(Method::BaseWlm, &[1, 1]);
            change(&mut vip);
            refusal(vec![vip])
        };
        type Case = (fn(&mut Vip), &'static str);
        let cases: [Case; 17] = [
            (|v| v.name = "a b".into(), "vip.a b: `a b` is no name; use 1 to 32 letters"),
            (|v| v.address.set_port(0), "vip.web: 127.0.0.10:0 is not allowed as address"),
            (|v| v.address = "0.0.0.0:80".parse().unwrap(), "vip.web: 0.0.0.0:80 is not allowed"),
            (|v| v.targets.clear(), "vip.web: has no targets; add [vip.NAME.targets.T]"),
            (|v| v.targets[1].name = "t0".into(), "vip.web: two targets are called t0"),
            (|v| v.targets[1].address.set_port(7001), "vip.web: targets t0 and t1 have the same"),
            (
                |v| v.targets[1].address = v.address,
                "vip.web: the address of target t1 is that of a",
            ),
            (
                |v| v.targets[1].weight = 0,
                "vip.web: target t1: weight 0 is not allowed; use 1 to 100",
            ),
            (
                |v| v.address = "[::1]:80".parse().unwrap(),
                "vip.web: target t0 is of another address",
            ),
            (
                |v| v.protocol = Protocol::Udp,
                "vip.web: protocol \"udp\" takes targets that are hosts",
            ),
            (
                |v| (v.kind, v.address) = (TargetKind::Hosts, "[::1]:80".parse().unwrap()),
                "vip.web: target t0 is of another address family than the VIP; name the host",
            ),
            (
                |v| {
                    (v.kind, v.protocol, v.smc) =
                        (TargetKind::Hosts, Protocol::Udp, SmcUse::Require);
                },
                "vip.web: smc = \"require\" takes protocol \"tcp\"",
            ),
            (
                |v| {
                    (v.targets[1].address, v.smc) =
                        ("127.0.0.2:80".parse().unwrap(), SmcUse::Require)
                },
                "vip.web: target t1 has the port of the VIP",
            ),
            (
                |v| v.opt_local = Some(OptLocal::ALWAYS),
                "vip.web: optlocal takes targets that are hosts, named by an address without a port",
            ),
            (
                |v| {
                    (v.kind, v.method, v.opt_local) =
                        (TargetKind::Hosts, Method::HotStandby, OptLocal::new(1));
                },
                "vip.web: optlocal has no meaning under hotstandby",
            ),
            (|v| v.probe.rise = 0, "vip.web: a probe that rises after 0 and falls after 3"),
            (|v| v.probe.timeout = Duration::ZERO, "vip.web: the times of a probe"),
        ];
        for (change, expected) in cases {
            let text = of(change);
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn vips_that_overlap_are_refused() {
        let mut other = vip(Method::BaseWlm, &[1]);
        other.name = "www".to_owned();
        let text = refusal(vec![vip(Method::BaseWlm, &[1]), other.clone()]);
        assert_eq!(
            text,
            "vip.www: 127.0.0.10:80 is the address of vip.web already; use another address or port"
        );
        other.address = "127.0.0.1:7001".parse().unwrap();
        other.targets[0].address.set_port(9000);
        let text = refusal(vec![vip(Method::BaseWlm, &[1]), other]);
        assert!(text.starts_with("vip.web: the address of target t0 is that of a VIP"), "{text}");
        let mut hosts = vip(Method::BaseWlm, &[1]);
        (hosts.name, hosts.kind) = ("hosts".to_owned(), TargetKind::Hosts);
        hosts.address = "10.0.0.1:80".parse().unwrap();
        hosts.targets[0].address = "127.0.0.10:80".parse().unwrap();
        let text = refusal(vec![vip(Method::BaseWlm, &[1]), hosts.clone()]);
        assert!(text.starts_with("vip.hosts: the address of target t0 is that of a VIP"), "{text}");
        hosts.targets[0].address.set_ip([10, 0, 0, 2].into());
        let mut datagrams = hosts.clone();
        (datagrams.name, datagrams.protocol) = ("udp".to_owned(), Protocol::Udp);
        assert!(VipSet::new(vec![hosts, datagrams]).is_ok(), "another protocol is another service");
        let many = (0..=VIPS_MAX).map(|_| vip(Method::BaseWlm, &[1])).collect();
        assert_eq!(refusal(many), "there are more than 32 VIPs");
    }

    #[test]
    fn optlocal_has_ibms_numbers() {
        let numbers: Vec<u8> = (0..100).filter_map(OptLocal::new).map(OptLocal::number).collect();
        assert!(numbers.iter().copied().eq(0..=16), "{numbers:?}");
        assert_eq!(OptLocal::new(256), None);
    }

    #[test]
    fn methods_have_ibms_names() {
        for method in Method::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
            assert_eq!(method.name().to_uppercase().parse(), Ok(method));
        }
        assert_eq!("least".parse::<Method>(), Err(UnknownMethod));
    }
}
