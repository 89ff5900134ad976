//! What IBM has published for a workload: the `published` of an entry.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::value;
use crate::figure::Figure;

/// Figures that were published together for a workload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    /// Where, and against what.
    pub source: String,
    /// The receive buffer with which they were measured, in bytes; `None`: they hold
    /// for any.
    #[serde(rename = "rmbe", default, deserialize_with = "value::rmbe_len")]
    pub rmbe_len: Option<u32>,
    /// The receive buffer of the SMC that `rmbe_len` is set against, in bytes; `None`:
    /// against TCP.
    #[serde(rename = "against_rmbe", default, deserialize_with = "value::rmbe_len")]
    pub against_rmbe_len: Option<u32>,
    /// The rules of the filter under which they were measured; they are changes of TCP then against TCP
    /// without a filter. `None`: of transports.
    #[serde(default, deserialize_with = "value::some_filter_rules")]
    pub filter_rules: Option<u32>,
    /// What ours must have in common with theirs; `None`: any place will do.
    #[serde(default)]
    pub setup: Option<Setup>,
    /// The changes: at least -1, finite.
    #[serde(deserialize_with = "value::changes")]
    pub changes: BTreeMap<Figure, f64>,
}

/// Between what figures were published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setup {
    /// A client and a server on two hosts: SMC-R.
    TwoHosts,
    /// TCP passed a distributor, which SMC leaves out after the handshake. There is none to be
    /// measured with here, so this is never met.
    Distributor,
}
