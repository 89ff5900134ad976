//! Whether a target serves: probes with rise and fall, and its listener.
//!
//! A target without a listener serves no client, and a host knows that exactly, so it falls at once. One that
//! listens may still not serve; so many probes in a row say that it does, or does not any more.

use crate::state::Event;
use crate::terms::Vip;

/// What is known of a target's health.
#[derive(Clone, Debug)]
pub struct Health {
    /// Without probes a listener is enough.
    is_probed: bool,
    rise: u32,
    fall: u32,
    is_listening: bool,
    is_up: bool,
    /// Probes in a row that contradict what is believed.
    against: u32,
}

impl Health {
    /// That of a target of this VIP of which nothing was seen.
    #[must_use]
    pub fn new(vip: &Vip) -> Self {
        let (is_probed, rise, fall) = (vip.is_probed(), vip.probe.rise, vip.probe.fall);
        Self { is_probed, rise, fall, is_listening: false, is_up: false, against: 0 }
    }

    /// It was seen whether the target listens.
    pub fn listens(&mut self, is_listening: bool) -> Option<Event> {
        if self.is_listening != is_listening {
            self.against = 0;
        }
        self.is_listening = is_listening;
        match (is_listening, self.is_up) {
            (false, true) => self.turn(false),
            (true, false) if !self.is_probed => self.turn(true),
            _ => None,
        }
    }

    /// A probe has passed, or failed. One that began before the listener was gone says nothing.
    pub fn probed(&mut self, has_passed: bool) -> Option<Event> {
        if !self.is_listening || !self.is_probed {
            return None;
        }
        if has_passed == self.is_up {
            self.against = 0;
            return None;
        }
        self.against += 1;
        let needed = if self.is_up { self.fall } else { self.rise };
        if self.against < needed { None } else { self.turn(has_passed) }
    }

    fn turn(&mut self, is_up: bool) -> Option<Event> {
        (self.is_up, self.against) = (is_up, 0);
        Some(if is_up { Event::Rose } else { Event::Fell })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terms::tests::vip;
    use crate::terms::{Method, Probe, ProbeKind, SmcUse, TargetKind};

    fn probed(rise: u32, fall: u32) -> Health {
        let probe = Probe { kind: ProbeKind::Tcp, rise, fall, ..Probe::default() };
        Health::new(&Vip { probe, ..vip(Method::BaseWlm, &[1]) })
    }

    #[test]
    fn without_probes_a_listener_is_enough() {
        let mut health = Health::new(&vip(Method::BaseWlm, &[1]));
        assert_eq!(health.listens(true), Some(Event::Rose));
        assert_eq!(health.listens(true), None);
        assert_eq!(health.probed(false), None);
        assert_eq!(health.listens(false), Some(Event::Fell));
        assert_eq!(health.listens(false), None);
    }

    #[test]
    fn a_host_that_has_to_speak_smc_is_asked_whatever_its_probe() {
        let (kind, smc) = (TargetKind::Hosts, SmcUse::Require);
        let mut health = Health::new(&Vip { kind, smc, ..vip(Method::BaseWlm, &[1]) });
        assert_eq!(health.listens(true), None);
        assert_eq!([true, true].map(|speaks| health.probed(speaks)), [None, Some(Event::Rose)]);
    }

    #[test]
    fn so_many_in_a_row_rise_and_fall() {
        let mut health = probed(2, 3);
        health.listens(true);
        let answers = [true, false, true, true, false, false, true, false, false, false];
        let events = answers.map(|answer| health.probed(answer));
        let (rose, fell) = (Some(Event::Rose), Some(Event::Fell));
        assert_eq!(events, [None, None, None, rose, None, None, None, None, None, fell]);
    }

    #[test]
    fn a_listener_that_goes_does_not_wait_for_probes() {
        let mut health = probed(1, 100);
        assert_eq!(health.probed(true), None, "no listener yet");
        health.listens(true);
        assert_eq!(health.probed(true), Some(Event::Rose));
        assert_eq!(health.listens(false), Some(Event::Fell));
        assert_eq!(health.listens(true), None, "one that comes back is probed again");
        assert_eq!(health.probed(true), Some(Event::Rose));
    }
}
