//! The bad network in which the gateway's adapters can be tried: what of their datagrams is lost,
//! doubled, late or slow.
//!
//! It is written as words, `loss=1% duplication=0.1% delay=5ms jitter=500us bandwidth=10MB seed=7`,
//! any of which may be left out. The same seed leads to the same fate.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sidestep_rdma::faults::Plan;

use crate::words::{parse_size, shown_size};

/// A plan that was written as words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultPlan {
    seed: u64,
    loss: Millionths,
    duplication: Millionths,
    delay: Duration,
    jitter: Duration,
    /// Bytes a second.
    bandwidth: Option<u64>,
}

/// A part of all: `0..=1_000_000`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Millionths(u32);

impl FaultPlan {
    const ALLOWED: &str =
        "words such as loss=1% duplication=0.1% delay=5ms jitter=500us bandwidth=10MB seed=7";

    /// As the adapters understand it.
    pub(crate) fn plan(self) -> Plan {
        let Self { seed, loss, duplication, delay, jitter, bandwidth } = self;
        let [loss, duplication] = [loss, duplication].map(|part| f64::from(part.0) / 1e6);
        Plan { seed, loss, duplication, delay, jitter, bandwidth }
    }

    fn set(&mut self, word: &str) -> Option<()> {
        let (key, value) = word.split_once('=')?;
        match key {
            "seed" => self.seed = value.parse().ok()?,
            "loss" => self.loss = Millionths::parse(value)?,
            "duplication" => self.duplication = Millionths::parse(value)?,
            "delay" => self.delay = parse_time(value)?,
            "jitter" => self.jitter = parse_time(value)?,
            "bandwidth" => self.bandwidth = Some(parse_size(value).filter(|it| *it > 0)?),
            _ => return None,
        }
        Some(())
    }
}

/// A sentence with the words that would do.
impl FromStr for FaultPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut plan = Self::default();
        let mut words = text.split_whitespace();
        match words.try_for_each(|word| plan.set(word)) {
            Some(()) => Ok(plan),
            None => Err(format!("use {}", Self::ALLOWED)),
        }
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |it: Millionths| (it.0 > 0).then(|| format!("{}%", f64::from(it.0) / 1e4));
        let time = |it: Duration| (!it.is_zero()).then(|| format!("{}us", it.as_micros()));
        let words = [
            ("loss", part(self.loss)),
            ("duplication", part(self.duplication)),
            ("delay", time(self.delay)),
            ("jitter", time(self.jitter)),
            ("bandwidth", self.bandwidth.map(shown_size)),
            ("seed", Some(self.seed.to_string())),
        ];
        let words = words.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        f.write_str(&words.collect::<Vec<_>>().join(" "))
    }
}

impl Millionths {
    fn parse(text: &str) -> Option<Self> {
        let percent: f64 = text.strip_suffix('%')?.parse().ok()?;
        (0.0..=100.0).contains(&percent).then(|| Self((percent * 1e4).round() as u32))
    }
}

/// In `us`, `ms` or `s`.
fn parse_time(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number = number.parse().ok()?;
    match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_make_a_plan() {
        let text = "loss=1% duplication=0.5% delay=5ms jitter=20us bandwidth=10MB seed=7";
        let plan: FaultPlan = text.parse().unwrap();
        let expected = Plan {
            seed: 7,
            loss: 0.01,
            duplication: 0.005,
            delay: Duration::from_millis(5),
            jitter: Duration::from_micros(20),
            bandwidth: Some(10 << 20),
        };
        assert_eq!(plan.plan(), expected);
        assert_eq!(plan.to_string().parse(), Ok(plan));
        assert_eq!(FaultPlan::from_str("").unwrap().plan(), Plan::PERFECT);
    }

    #[test]
    fn what_makes_no_plan_says_what_would() {
        for bad in ["loss", "loss=1", "loss=101%", "loss=-1%", "delay=5", "lag=1ms", "bandwidth=0"]
        {
            let error = FaultPlan::from_str(bad).unwrap_err();
            assert!(error.starts_with("use words such as loss=1%"), "{bad}: {error}");
        }
    }
}
