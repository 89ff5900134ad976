//! A target's end of tunnels: has the kernel take packets for VIPs out of those of distributors that the configuration names, and tells
//! how many.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sidestep_bpf::{Received, Reception, TUNNEL_PORT};

use super::link::{self, Own};
use super::ownership::random;
use crate::commands::vip::daemon;
use crate::commands::vip::error::VipError;
use crate::commands::vip::greeting::Acquaintances;
use crate::commands::vip_status::{self, Answer, Daemon, Request, Tunnelled};

/// From one report of packets that were refused to the next.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Programs in the kernel, as long as this lives.
pub(super) struct Receiving {
    reception: Arc<Reception>,
    refused: u64,
    due: Instant,
}

impl Receiving {
    /// Takes packets for VIPs that distributors of these hosts send through tunnels to addresses of ours.
    pub(super) fn begin(
        hosts: &[IpAddr],
        vips: &[IpAddr],
        at: &[Own],
    ) -> Result<(Self, Acquaintances), VipError> {
        let (mut reception, mut announcement) = Reception::load()?;
        let mut indices: Vec<u32> = at.iter().map(|own| own.index).collect();
        indices.sort_unstable();
        indices.dedup();
        for index in indices {
            let seen = VipError::of("an interface of this host is not to be seen");
            let interface = link::interface_of(index).map_err(seen)?;
            let name = &interface.name;
            if interface.address.is_none() {
                return Err(VipError::Refused(format!(
                    "{name} is no Ethernet interface, and packets can be taken out of tunnels only there: have the target's \
                     address on one, or leave `hosts` out of [distributor] if this host is on the distributor's link"
                )));
            }
            reception.attach(name)?;
            // Until distributors say how much their ways here carry.
            for own in at.iter().filter(|own| own.index == index) {
                announcement.fit(own.ip, interface.mtu)?;
            }
        }
        for own in at {
            reception.receive_at(own.ip)?;
        }
        for vip in vips {
            reception.serve(*vip)?;
        }
        let mut keys = HashMap::new();
        for host in hosts {
            let key = random().map_err(VipError::of("there are no random numbers"))?;
            let key = u64::from_ne_bytes(key);
            reception.admit(*host, key)?;
            keys.insert(*host, key);
        }
        let receiving = Self { reception: Arc::new(reception), refused: 0, due: Instant::now() };
        Ok((receiving, Acquaintances::new(keys, announcement)))
    }

    /// Tells who asks how many packets came, by a thread, for as long as the process lives.
    ///
    /// # Errors
    /// The name for questions is taken, or there is no thread.
    pub(super) fn tell(&self) -> Result<(), VipError> {
        let commands = vip_status::listen(Daemon::Target).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => VipError::Refused(format!(
                "another `{}` takes packets out of tunnels in this network namespace; end that one first",
                Daemon::Target.command()
            )),
            _ => VipError::of("cannot listen for questions")(error),
        })?;
        let reception = Arc::clone(&self.reception);
        let telling = thread::Builder::new().name("questions".to_owned());
        let told = telling.spawn(move || {
            daemon::answer_looks(commands, move |request| answer_to(request, &reception));
        });
        told.map(drop).map_err(VipError::of("cannot start a thread"))
    }

    /// Reports packets that were refused, now and then.
    pub(super) fn report(&mut self) {
        if Instant::now() < self.due {
            return;
        }
        self.due = Instant::now() + REPORT_EVERY;
        match self.reception.received() {
            Ok(received) if received.refused > self.refused => {
                log::warn!(
                    "{} packets of tunnels, to UDP port {TUNNEL_PORT}, were dropped since this was said last: their sender is no host of \
                     [distributor] hosts, has not the key of this process, they are for no VIP of this host, or an interface has put \
                     several into one (`ethtool -K INTERFACE rx-udp-gro-forwarding off` keeps it from that)",
                    received.refused - self.refused
                );
                self.refused = received.refused;
            }
            Ok(_) => {}
            Err(error) => log::error!("packets of tunnels are not counted: {error}"),
        }
    }
}

fn answer_to(request: &Request, reception: &Reception) -> Answer {
    if !matches!(request, Request::Tunnelled) {
        return Answer::Refused("no VIP is distributed by a target".to_owned());
    }
    match reception.received() {
        Ok(Received { taken, refused }) => Answer::Tunnelled(Tunnelled { taken, refused }),
        Err(error) => Answer::Refused(format!("packets of tunnels are not counted: {error}")),
    }
}
