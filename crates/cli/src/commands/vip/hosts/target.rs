//! `sidestep distributor target`: has this host serve VIPs that a distributor sends it packets for.
//!
//! Such a host has the VIP as an address, so that its servers can take it, and does not answer for it on the
//! link: the distributor does. IPv4 needs two settings for that, which are in force before the address is there:
//! `arp_ignore` = 1 (answer only for addresses of the interface that was asked by) and `arp_announce` = 2 (never
//! ask in the name of an address of another interface). By IPv6 that is so without settings.
//!
//! Beyond a router packets come through a tunnel, out of which [`receiving`](super::receiving) takes them.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::net::IpAddr;

use sd_notify::NotifyState;
use sidestep_distributor::{TargetKind, VipSet};

use super::addresses::{Addresses, RENEW_EVERY};
use super::link::{self, Own};
use super::receiving::Receiving;
use crate::args::DistributorTargetArgs;
use crate::commands::systemd::tell_systemd;
use crate::commands::vip::daemon;
use crate::commands::vip::error::VipError;
use crate::commands::vip::greeting::Acquaintances;
use crate::commands::vip::inquiry;
use crate::commands::{logging, signals};

/// Until SIGTERM or SIGINT.
pub(super) fn execute(args: &DistributorTargetArgs) -> Result<(), VipError> {
    let mut stop = signals::stop().map_err(VipError::of("cannot wait for signals"))?;
    signals::ignore_sigpipe();
    logging::begin(args.log.as_ref())?;
    let looked = VipError::of("the addresses of this host are not to be seen");
    let own = link::addresses().map_err(looked)?;
    let mut settings = daemon::configured(args.config.as_deref())?;
    let hosts = settings.hosts.take().unwrap_or_default();
    let is_own = |ip| own.iter().any(|own| own.ip == ip);
    let set = daemon::vips_of(settings, TargetKind::Hosts);
    let vips = if args.vips.is_empty() { served_by(&set, is_own)? } else { args.vips.clone() };
    let loopback = link::interface("lo").map_err(VipError::of("there is no `lo`"))?;
    if let Some(own) = own.iter().find(|it| vips.contains(&it.ip) && it.index != loopback.index) {
        return Err(VipError::Refused(format!(
            "{} is on another interface than `lo`, by which this host answers for it in the distributor's place: take \
             it off there",
            own.ip
        )));
    }
    // Restored behind the addresses, because it is dropped behind them.
    let _silence = if vips.iter().any(IpAddr::is_ipv4) { Some(Silence::begin()?) } else { None };
    let mut addresses = Addresses::new(loopback.index);
    addresses.keep(&vips, &own);
    if let Some(missing) = vips.iter().find(|vip| !addresses.has(**vip)) {
        return Err(VipError::Refused(format!(
            "{missing} cannot be put on `lo`: run as root, or with CAP_NET_ADMIN"
        )));
    }
    let (mut receiving, known) = if hosts.is_empty() {
        (None, Acquaintances::default())
    } else {
        let at = reached_at(&set, &vips, &own, loopback.index);
        let (receiving, known) = Receiving::begin(&hosts, &vips, &at)?;
        receiving.tell()?;
        (Some(receiving), known)
    };
    if let Err(error) = inquiry::answer_all(vips.iter().any(IpAddr::is_ipv6), known) {
        log::warn!(
            "distributors that ask whether servers here speak SMC have no answer, on UDP port {}: {error}; VIPs with smc = \
             \"require\" take this host for one that does not, and a distributor beyond a router for one that is not there",
            inquiry::PORT
        );
    }
    let names: Vec<String> = vips.iter().map(IpAddr::to_string).collect();
    daemon::say("sidestep distributor", &format!("this host serves {}", names.join(", ")))?;
    tell_systemd(NotifyState::Ready);
    let now_and_then = || {
        addresses.keep(&vips, &own);
        receiving.iter_mut().for_each(Receiving::report);
    };
    wait(&mut stop, now_and_then).map_err(VipError::of("cannot wait for signals"))?;
    tell_systemd(NotifyState::Stopping);
    Ok(())
}

/// Does something now and then until a byte comes.
fn wait(
    stop: &mut std::os::unix::net::UnixStream,
    mut now_and_then: impl FnMut(),
) -> io::Result<()> {
    stop.set_read_timeout(Some(RENEW_EVERY / 2))?;
    loop {
        match stop.read(&mut [0]) {
            Ok(_) => return Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                now_and_then();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The VIPs that have an address of this host as a target.
fn served_by(set: &VipSet, is_own: impl Fn(IpAddr) -> bool) -> Result<Vec<IpAddr>, VipError> {
    let mut served: Vec<IpAddr> = set
        .vips()
        .iter()
        .filter(|vip| vip.targets.iter().any(|target| is_own(target.address.ip())))
        .map(|vip| vip.address.ip())
        .collect();
    served.sort();
    served.dedup();
    if served.is_empty() {
        return Err(VipError::Refused(
            "no VIP of the configuration has an address of this host as a target; name the VIPs on the command line, \
             or give this the configuration of the distributor"
                .to_owned(),
        ));
    }
    Ok(served)
}

/// At which of our addresses tunnels come: those of targets, or all if the VIPs were named on the command line.
fn reached_at(set: &VipSet, vips: &[IpAddr], own: &[Own], loopback: u32) -> Vec<Own> {
    let targets = set.vips().iter().flat_map(|vip| &vip.targets);
    let targets: Vec<IpAddr> = targets.map(|target| target.address.ip()).collect();
    let named: Vec<Own> = own.iter().filter(|own| targets.contains(&own.ip)).copied().collect();
    if !named.is_empty() {
        return named;
    }
    let is_ethernet = |index| link::interface_of(index).is_ok_and(|it| it.address.is_some());
    let is_reached =
        |own: &&Own| own.index != loopback && !vips.contains(&own.ip) && is_ethernet(own.index);
    own.iter().filter(is_reached).copied().collect()
}

/// Settings of ARP, which are what they were when this is dropped.
struct Silence(Vec<(String, String)>);

impl Silence {
    fn begin() -> Result<Self, VipError> {
        let mut before = Self(Vec::new());
        for (name, least) in [("arp_ignore", 1), ("arp_announce", 2)] {
            let path = format!("/proc/sys/net/ipv4/conf/all/{name}");
            let refused = |error: io::Error| {
                VipError::Refused(format!(
                    "{path} cannot be set to {least}: {error}; without it this host would answer for the VIP in the \
                     distributor's place. Run as root, or with CAP_NET_ADMIN, or set it yourself"
                ))
            };
            let value = fs::read_to_string(&path).map_err(refused)?;
            if value.trim().parse::<u32>().is_ok_and(|value| value >= least) {
                continue;
            }
            fs::write(&path, least.to_string()).map_err(refused)?;
            before.0.push((path, value));
        }
        Ok(before)
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        for (path, value) in &self.0 {
            if let Err(error) = fs::write(path, value) {
                log::warn!("{path} is not set back: {error}");
            }
        }
    }
}
