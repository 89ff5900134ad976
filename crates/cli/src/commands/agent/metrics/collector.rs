//! Looks at the programs of the host when a client asks, and remembers what they have had.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sidestep_gateway::status::Status;
use sidestep_observe::Watch;

use super::ledger::Ledger;
use super::{exposition, filter, tunnels, vips};
use crate::commands::agent::enforcement::dropped;
use crate::commands::filter as ip_filter;
use crate::commands::vip_status::{in_force, tunnelled};

/// Looks, and remembers.
#[derive(Default)]
pub(super) struct Collector {
    watch: Watch,
    ledger: Ledger,
    /// The last text, and when it was made.
    last: Option<(Instant, Rc<str>)>,
}

impl Collector {
    /// The text for who asks now.
    ///
    /// # Errors
    ///
    /// The processes of the host cannot be listed.
    pub(super) fn scrape(&mut self) -> io::Result<Rc<str>> {
        let begun = Instant::now();
        if let Some((at, text)) = &self.last
            && begun.duration_since(*at) < FRESH
        {
            return Ok(Rc::clone(text));
        }
        let watched = self.watch.look()?;
        self.ledger.enter(&watched);
        let mut others = exposition::gauges(&watched.snapshot, &self.ledger, begun.elapsed());
        others.extend(vips::families(&in_force()));
        others.extend(tunnels::families(tunnelled()));
        others.extend(ip_filter::figures().iter().flat_map(filter::families));
        others.extend(exposition::of_enforcement(&dropped()));
        if let Ok(gateway) = Status::ask() {
            others.extend(exposition::of_gateway(&gateway));
        }
        let text: Rc<str> = exposition::text(&self.ledger, others).into();
        self.last = Some((Instant::now(), Rc::clone(&text)));
        Ok(text)
    }

    /// No scrape has come for long.
    pub(super) fn rest(&mut self) {
        self.last = None;
        if !self.watch.is_holding() {
            return;
        }
        match self.watch.look() {
            Ok(watched) => self.ledger.enter(&watched),
            Err(error) => log::warn!("cannot list the processes: {error}"),
        }
        self.watch.let_go();
    }
}

/// Who asks again so soon gets the same text: a look costs time for each process of the host,
/// and anybody on it may ask.
const FRESH: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_parse::Scrape;

    #[test]
    fn a_text_is_good_for_a_moment_and_memory_for_some_minutes() {
        let mut collector = Collector::default();
        let text = collector.scrape().unwrap();
        assert!(Rc::ptr_eq(&text, &collector.scrape().unwrap()));
        collector.last = None;
        assert!(!Rc::ptr_eq(&text, &collector.scrape().unwrap()));
        collector.rest();
        assert!(!collector.watch.is_holding() && collector.last.is_none());
        let lines = text.lines().map(|line| Ok(line.to_owned()));
        let samples = Scrape::parse(lines).unwrap().samples;
        assert!(samples.iter().any(|sample| sample.metric == "sidestep_build_info"), "{text}");
    }
}
