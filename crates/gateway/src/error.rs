//! Why there is no gateway: what its operator can change.

use std::io;

use sidestep_proto::link_group::ADAPTERS_MAX;
use sidestep_rdma::soft::port;
use sidestep_rdma::verbs;
use thiserror::Error;

use crate::settings::AdapterChoice;

/// Why there is no gateway.
#[derive(Debug, Error)]
pub enum OpenError {
    /// None was wanted.
    #[error("there is no adapter: name an address or an interface of this host")]
    NoAdapter,
    /// A link group has room for no more.
    #[error("{0} adapters are too many; use at most {ADAPTERS_MAX}")]
    TooMany(usize),
    /// There is no such interface here, or none has the address.
    #[error("{0}: there is no such interface or address in this network namespace")]
    Unknown(AdapterChoice),
    /// The interface has nothing that an adapter could be at.
    #[error("{0}: the interface has no address")]
    NoAddress(AdapterChoice),
    /// An RDMA device is named, and none can be used.
    #[error("{0}: {1}")]
    NoRdma(AdapterChoice, String),
    /// It is not among those that can be used.
    #[error(
        "{0}: there is no such port of an RDMA device of Ethernet; `rdma link` lists them, and this \
         user has to be allowed to open /dev/infiniband/uverbs*"
    )]
    NoPort(AdapterChoice),
    /// Its port has no address that programs here could have.
    #[error("{0}: none of its interfaces has an address in this network namespace; give it one")]
    NoGid(AdapterChoice),
    /// RoCE needs longer packets.
    #[error("{choice}: the interface carries packets of {mtu} bytes, and RoCE needs 336")]
    TooNarrow {
        /// The adapter.
        choice: AdapterChoice,
        /// Of its interface.
        mtu: u32,
    },
    /// Two links over it would fail together.
    #[error("{0}: another name of the same adapter stands before it")]
    Twice(AdapterChoice),
    /// A host has one.
    #[error("{0}: the adapters are on different VLANs")]
    OtherVlan(AdapterChoice),
    /// Its UDP port cannot be had.
    #[error(transparent)]
    Adapter(#[from] port::OpenError),
    /// Its RDMA device cannot be used.
    #[error(transparent)]
    Rdma(#[from] verbs::OpenError),
    /// The library that RDMA devices are used by is not there any more.
    #[error(transparent)]
    Library(#[from] verbs::Unavailable),
    /// The name is taken.
    #[error("there is a gateway in this network namespace already")]
    InUse,
    /// The kernel refuses something that it should not.
    #[error("{what}: {error}")]
    Kernel {
        /// What was asked for.
        what: &'static str,
        /// What it says.
        error: io::Error,
    },
}

impl OpenError {
    /// The kernel refuses `what`.
    pub(crate) fn kernel<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Kernel { what, error: error.into() }
    }
}
