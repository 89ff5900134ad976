//! Addresses that an interface has for us.
//!
//! The kernel lends them for a time, and the loan is renewed while we live. So they are gone soon after us, however
//! we end: nothing answers for an address that nothing looks after. An address that the operator has put there stays.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::link::{self, Own};

/// How long an interface has an address that is not renewed, and when it is.
const LOAN: Duration = Duration::from_secs(15);
pub(super) const RENEW_EVERY: Duration = Duration::from_secs(5);

/// Those of one interface; given back on drop.
pub(super) struct Addresses {
    index: u32,
    taken: Vec<Taken>,
}

struct Taken {
    ip: IpAddr,
    /// `None`: it is not ours to give back.
    renewed: Option<Instant>,
}

impl Addresses {
    /// None yet, on an interface.
    pub(super) fn new(index: u32) -> Self {
        Self { index, taken: Vec::new() }
    }

    /// Whether the interface has it.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.taken.iter().any(|taken| taken.ip == ip)
    }

    /// Takes these, renews them, and gives others back, which are returned.
    pub(super) fn keep(&mut self, wanted: &[IpAddr], own: &[Own]) -> Vec<IpAddr> {
        for ip in wanted.iter().filter(|ip| !self.has(**ip)).copied().collect::<Vec<_>>() {
            let is_operators =
                own.iter().any(|it| it.ip == ip && it.index == self.index && it.is_permanent);
            if is_operators {
                self.taken.push(Taken { ip, renewed: None });
            } else if self.lend(ip) {
                log::info!("takes {ip}");
                self.taken.push(Taken { ip, renewed: Some(Instant::now()) });
            }
        }
        let (kept, gone): (Vec<Taken>, Vec<Taken>) =
            self.taken.drain(..).partition(|taken| wanted.contains(&taken.ip));
        self.taken = kept;
        self.renew();
        gone.iter().for_each(|taken| self.give_back(taken));
        gone.into_iter().map(|taken| taken.ip).collect()
    }

    fn renew(&mut self) {
        for at in 0..self.taken.len() {
            let Taken { ip, renewed } = self.taken[at];
            if renewed.is_some_and(|renewed| renewed.elapsed() >= RENEW_EVERY) && self.lend(ip) {
                self.taken[at].renewed = Some(Instant::now());
            }
        }
    }

    fn lend(&self, ip: IpAddr) -> bool {
        let lent = link::lend(self.index, ip, LOAN);
        if let Err(error) = &lent {
            log::error!("{ip} cannot be taken: {error}");
        }
        lent.is_ok()
    }

    fn give_back(&self, taken: &Taken) {
        if taken.renewed.is_some()
            && let Err(error) = link::take_back(self.index, taken.ip)
        {
            log::warn!("{} is not given back: {error}", taken.ip);
        }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        self.taken.iter().for_each(|taken| self.give_back(taken));
    }
}
