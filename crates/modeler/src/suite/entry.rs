//! An entry of a suite: a workload, and what it says of the clients' conduct.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use serde::Deserialize;

use super::publication::Publication;
use super::value;
use crate::contention::{Contention, CpuList, Neighbours};
use crate::figure::Figure;
use crate::plan::{Conduct, Extent, Model, Pace, Requirement};
use crate::workload::Workload;

/// One workload of a suite, and what it says about the clients' conduct: `None`
/// leaves that to the command line.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteEntry {
    /// What the clients do.
    #[serde(deserialize_with = "value::workload")]
    pub workload: Workload,
    /// The models in which it runs: at least one.
    #[serde(rename = "model", default = "value::default_models")]
    #[serde(deserialize_with = "value::models")]
    pub models: Vec<Model>,
    /// The receive buffers with which it runs, in bytes; none: that of the command
    /// line.
    #[serde(rename = "rmbe", default, deserialize_with = "value::rmbe_lens")]
    pub rmbe_lens: Vec<u32>,
    /// See [`Conduct::connections_per_loop`].
    #[serde(default)]
    pub connections_per_loop: Option<NonZeroU32>,
    /// See [`Conduct::chunk_len`].
    #[serde(rename = "chunk", default, deserialize_with = "value::chunk_len")]
    pub chunk_len: Option<usize>,
    /// See [`Conduct::think`].
    #[serde(default, deserialize_with = "value::time")]
    pub think: Option<Duration>,
    /// See [`Pace::Open`].
    #[serde(rename = "rate", default, deserialize_with = "value::per_second")]
    pub per_second: Option<f64>,
    /// See [`Conduct::wait_all`].
    #[serde(default)]
    pub wait_all: Option<bool>,
    /// See [`Conduct::blocking`].
    #[serde(default)]
    pub blocking: Option<bool>,
    /// See [`Extent::Time`].
    #[serde(default, deserialize_with = "value::time")]
    pub warmup: Option<Duration>,
    /// See [`Extent::Time`].
    #[serde(rename = "duration", default, deserialize_with = "value::positive_time")]
    pub measured: Option<Duration>,
    /// The neighbours beside which it runs, one after the other; none: those of the command
    /// line.
    #[serde(default, deserialize_with = "value::neighbours")]
    pub neighbours: Vec<Neighbours>,
    /// See [`Contention::cpu_quota`].
    #[serde(default, deserialize_with = "value::cpu_quota")]
    pub cpu_quota: Option<u32>,
    /// See [`Contention::cpu_weight`].
    #[serde(default, deserialize_with = "value::cpu_weight")]
    pub cpu_weight: Option<u32>,
    /// See [`Contention::cpus`].
    #[serde(default, deserialize_with = "value::cpus")]
    pub cpus: Option<CpuList>,
    /// The filters under which it runs, by turns, see [`Entry::filter_rules`]; none: those of the
    /// command line.
    ///
    /// [`Entry::filter_rules`]: crate::plan::Entry::filter_rules
    #[serde(default, deserialize_with = "value::filter_rules")]
    pub filter_rules: Vec<u32>,
    /// What is required of SMC against TCP, whatever the neighbours.
    #[serde(default, deserialize_with = "value::required")]
    pub required: BTreeMap<Figure, Requirement>,
    /// What was published for this workload.
    #[serde(default)]
    pub published: Vec<Publication>,
}

impl SuiteEntry {
    /// `base` with what this entry says: one for each receive buffer.
    pub(super) fn conducts(&self, base: &Conduct) -> Vec<Conduct> {
        let conduct = Conduct {
            extent: self.extent(base.extent),
            pace: self.per_second.map_or(base.pace, |per_second| Pace::Open { per_second }),
            think: self.think.unwrap_or(base.think),
            blocking: self.blocking.unwrap_or(base.blocking),
            wait_all: self.wait_all.unwrap_or(base.wait_all),
            chunk_len: self.chunk_len.unwrap_or(base.chunk_len),
            connections_per_loop: self
                .connections_per_loop
                .map(NonZeroU32::get)
                .or(base.connections_per_loop),
            ..base.clone()
        };
        if self.rmbe_lens.is_empty() {
            return vec![conduct];
        }
        let with = |&len| Conduct { rmbe_len: Some(len), ..conduct.clone() };
        self.rmbe_lens.iter().map(with).collect()
    }

    /// `base` with what this entry says: one for each level of neighbours.
    pub(super) fn contentions(
        &self,
        base: &Contention,
        chosen: Option<&[Neighbours]>,
    ) -> Vec<Contention> {
        let alone = Contention {
            neighbours: base.neighbours,
            cpu_quota: self.cpu_quota.or(base.cpu_quota),
            cpu_weight: self.cpu_weight.or(base.cpu_weight),
            cpus: self.cpus.as_ref().unwrap_or(&base.cpus).clone(),
        };
        match chosen.unwrap_or(&self.neighbours) {
            [] => vec![alone],
            levels => levels
                .iter()
                .map(|&neighbours| Contention { neighbours, ..alone.clone() })
                .collect(),
        }
    }

    /// Who asks for a number of transactions gets it: no time of an entry takes its
    /// place.
    fn extent(&self, base: Extent) -> Extent {
        match base {
            Extent::Time { warmup, measured } => Extent::Time {
                warmup: self.warmup.unwrap_or(warmup),
                measured: self.measured.unwrap_or(measured),
            },
            Extent::Count { .. } => base,
        }
    }
}
