//! The figures of a measurement that are compared, required and published.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The figures that are compared.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Transactions per second: more is better.
    Throughput,
    /// Mean response time: less is better.
    Response,
    /// 99th percentile of response times: less is better.
    ResponseP99,
    /// CPU time for one transaction, both sides together: less is better.
    Cpu,
    /// CPU time for one transaction, client side: less is better.
    CpuClient,
    /// CPU time for one transaction, server side: less is better.
    CpuServer,
}

impl Figure {
    /// Whether a larger value is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        self == Self::Throughput
    }
}
