//! What a runtime and its plugin say to each other: the parts of it that this plugin reads or writes. The rest of what
//! comes is passed over, as Protocol Buffers mean it.
//!
//! *Source*: `request.proto` of ttrpc 1.2; `api.proto` of NRI, package `nri.pkg.api.v1alpha1`, version 0.13, from whose first
//! versions these parts have stayed as they are.

use std::collections::BTreeMap;

use prost::Message;

/// The service that the runtime has.
pub(super) const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
/// The service that a plugin has.
pub(super) const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

/// A call.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(string, tag = "1")]
    pub(super) service: String,
    #[prost(string, tag = "2")]
    pub(super) method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) payload: Vec<u8>,
}

/// What came of it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    /// `None`: it went well.
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) payload: Vec<u8>,
}

/// Why it did not.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

impl Status {
    pub(super) const OK: i32 = 0;
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const UNIMPLEMENTED: i32 = 12;
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegisterPluginRequest {
    #[prost(string, tag = "1")]
    pub(super) plugin_name: String,
    /// Two digits: plugins are asked in this order.
    #[prost(string, tag = "2")]
    pub(super) plugin_idx: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ConfigureResponse {
    /// A bit for each event that the plugin is to be asked about.
    #[prost(int32, tag = "2")]
    pub(super) events: i32,
}

impl ConfigureResponse {
    /// Event 4, and bits begin with event 1.
    pub(super) const CREATE_CONTAINER: i32 = 1 << 3;
}

/// The containers that are there, in parts. They run, so nothing of them can be adjusted.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SynchronizeRequest {
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SynchronizeResponse {
    /// That the plugin knows of parts, if more follow.
    #[prost(bool, tag = "2")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateContainerRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub(super) container: Option<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PodSandbox {
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) namespace: String,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Container {
    #[prost(string, tag = "3")]
    pub(super) name: String,
    /// `NAME=value`.
    #[prost(string, repeated, tag = "8")]
    pub(super) env: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CreateContainerResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) adjust: Option<ContainerAdjustment>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ContainerAdjustment {
    #[prost(message, repeated, tag = "3")]
    pub(super) mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "4")]
    pub(super) env: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Mount {
    #[prost(string, tag = "1")]
    pub(super) destination: String,
    #[prost(string, tag = "2")]
    pub(super) r#type: String,
    #[prost(string, tag = "3")]
    pub(super) source: String,
    #[prost(string, repeated, tag = "4")]
    pub(super) options: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}
