//! How the value of each key of a suite is written, and what is allowed.
//!
//! serde calls these functions by the names that stand at the fields.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{Deserializer, Error, IntoDeserializer, SeqAccess, Unexpected, Visitor};

use crate::contention::{CPU_QUOTA_MAX, CPU_WEIGHT_MAX, CpuList, Neighbours};
use crate::figure::Figure;
use crate::plan::{FILTER_RULES_MAX, Model, Requirement};
use crate::workload::{Units, Workload, parse_len};

pub(super) fn workload<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Workload, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(Error::custom)
}

/// What runs when an entry names no model: next to IBM's process for each client, and
/// cheaper to start.
pub(super) fn default_models() -> Vec<Model> {
    vec![Model::Threads]
}

pub(super) fn models<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Model>, D::Error> {
    one_or_more(deserializer, "\"threads\", \"processes\", \"event-loop\" or a list of some")
}

pub(super) fn rmbe_lens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    let expected = "a length from \"32KB\" to \"1MB\" or a list of some";
    let lens: Vec<RmbeLen> = one_or_more(deserializer, expected)?;
    Ok(lens.into_iter().map(|RmbeLen(len)| len).collect())
}

pub(super) fn rmbe_len<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    RmbeLen::deserialize(deserializer).map(|RmbeLen(len)| Some(len))
}

pub(super) fn chunk_len<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<usize>, D::Error> {
    let chunk = Written {
        expected: "a length such as \"64KB\", from \"1B\" to \"1GB\"",
        read: |text| usize::try_from(parse_len(text, Units::Ibm).ok()?).ok(),
    };
    deserializer.deserialize_str(chunk).map(Some)
}

pub(super) fn time<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let time = Written { expected: "a time such as \"10ms\", at most \"1h\"", read: read_time };
    deserializer.deserialize_str(time).map(Some)
}

pub(super) fn positive_time<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let time = Written {
        expected: "a time such as \"2s\", more than 0 and at most \"1h\"",
        read: |text| read_time(text).filter(|time| !time.is_zero()),
    };
    deserializer.deserialize_str(time).map(Some)
}

pub(super) fn per_second<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    let rate = f64::deserialize(deserializer)?;
    if rate > 0.0 && rate <= PER_SECOND_MAX {
        return Ok(Some(rate));
    }
    let expected = "transactions per second, more than 0 and at most 1e9";
    Err(Error::invalid_value(Unexpected::Float(rate), &expected))
}

pub(super) fn neighbours<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Neighbours>, D::Error> {
    let levels: Vec<Level> = Deserialize::deserialize(deserializer)?;
    let levels = levels.into_iter().map(|level| match level {
        Level::Number(count) => count.to_string(),
        Level::Text(text) => text,
    });
    levels.map(|level| level.parse().map_err(Error::custom)).collect()
}

/// Neighbours, with or without a priority.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected neighbours such as 4, \"4:nice=19\" or \"4:idle\"")]
enum Level {
    Number(u32),
    Text(String),
}

pub(super) fn filter_rules<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<u32>, D::Error> {
    let numbers: Vec<u32> = Deserialize::deserialize(deserializer)?;
    numbers.into_iter().map(|number| within(0..=FILTER_RULES_MAX, number)).collect()
}

pub(super) fn some_filter_rules<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    within(1..=FILTER_RULES_MAX, u32::deserialize(deserializer)?).map(Some)
}

pub(super) fn cpu_quota<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    from_one_to(CPU_QUOTA_MAX, deserializer)
}

pub(super) fn cpu_weight<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    from_one_to(CPU_WEIGHT_MAX, deserializer)
}

fn from_one_to<'de, D: Deserializer<'de>>(
    max: u32,
    deserializer: D,
) -> Result<Option<u32>, D::Error> {
    within(1..=max, u32::deserialize(deserializer)?).map(Some)
}

fn within<E: Error>(range: RangeInclusive<u32>, number: u32) -> Result<u32, E> {
    if range.contains(&number) {
        return Ok(number);
    }
    let expected = format!("a number from {} to {}", range.start(), range.end());
    Err(Error::invalid_value(Unexpected::Unsigned(number.into()), &expected.as_str()))
}

pub(super) fn cpus<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<CpuList>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(Error::custom)
}

pub(super) fn required<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<Figure, Requirement>, D::Error> {
    let required: BTreeMap<Figure, Wanted> = Deserialize::deserialize(deserializer)?;
    let required: BTreeMap<Figure, Requirement> =
        required.into_iter().map(|(figure, wanted)| (figure, wanted.into())).collect();
    let ratios = required.values().flat_map(|it| [Some(it.ratio), it.bound]).flatten();
    match ratios.into_iter().find(|ratio| !(ratio.is_finite() && *ratio > 0.0)) {
        Some(wrong) => Err(Error::invalid_value(Unexpected::Float(wrong), &WANTED)),
        None => Ok(required),
    }
}

/// A requirement of the median alone, or of the interval too.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a ratio above 0 such as 1.0, or { ratio = 1.0, bound = 0.9 }"
)]
enum Wanted {
    Ratio(f64),
    Both(Requirement),
}

const WANTED: &str = "a ratio above 0 such as 1.0, or { ratio = 1.0, bound = 0.9 }";

impl From<Wanted> for Requirement {
    fn from(wanted: Wanted) -> Self {
        match wanted {
            Wanted::Ratio(ratio) => Self { ratio, bound: None },
            Wanted::Both(both) => both,
        }
    }
}

pub(super) fn changes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<Figure, f64>, D::Error> {
    let changes: BTreeMap<Figure, Change> = Deserialize::deserialize(deserializer)?;
    Ok(changes.into_iter().map(|(figure, Change(change))| (figure, change)).collect())
}

/// The length of a receive buffer in bytes: one of the six that there are.
struct RmbeLen(u32);

impl<'de> Deserialize<'de> for RmbeLen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let len = Written {
            expected: "\"32KB\", \"64KB\", \"128KB\", \"256KB\", \"512KB\" or \"1MB\"",
            read: |text| {
                let known = RMBE_LENS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
                known.map(|(_, len)| *len)
            },
        };
        deserializer.deserialize_str(len).map(Self)
    }
}

/// A published change: +7.32 is +732 %.
struct Change(f64);

impl<'de> Deserialize<'de> for Change {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let change = f64::deserialize(deserializer)?;
        // Nothing can fall by more than all of it: -88 was meant to be -0.88.
        if change.is_finite() && change >= -1.0 {
            return Ok(Self(change));
        }
        let expected = "a change such as +7.32 for +732 % or -0.88 for -88 %";
        Err(Error::invalid_value(Unexpected::Float(change), &expected))
    }
}

/// A value that is written as a string.
struct Written<T> {
    /// What is allowed, with examples.
    expected: &'static str,
    read: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for Written<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.read)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// A string, or a list of strings that is not empty; `expected` says what they may be.
fn one_or_more<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
    expected: &'static str,
) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_any(OneOrMore { expected, items: PhantomData })
}

struct OneOrMore<T> {
    expected: &'static str,
    items: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrMore<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        let one: StrDeserializer<'_, E> = text.into_deserializer();
        Ok(vec![T::deserialize(one)?])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = list.next_element()? {
            all.push(one);
        }
        if all.is_empty() {
            return Err(Error::invalid_length(0, &self));
        }
        Ok(all)
    }
}

fn read_time(text: &str) -> Option<Duration> {
    let time: SignedDuration = text.parse().ok()?;
    Duration::try_from(time).ok().filter(|time| *time <= TIME_MAX)
}

/// The receive buffers that `rmbe_size` may ask for (docs/configuration.md). As powers
/// of two they have names of their own: this MB is not the one of a workload's name.
const RMBE_LENS: [(&str, u32); 6] = [
    ("32KB", 32 << 10),
    ("64KB", 64 << 10),
    ("128KB", 128 << 10),
    ("256KB", 256 << 10),
    ("512KB", 512 << 10),
    ("1MB", 1 << 20),
];

/// The longest time of any kind. A client that sleeps longer, or a run that takes
/// longer, is a slip of the hand.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// The highest rate: one transaction in each nanosecond, the grain of the clock.
const PER_SECOND_MAX: f64 = 1e9;
