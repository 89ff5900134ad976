//! What an interface's driver can do of XDP, as generic netlink's family `netdev` tells (Linux 6.3).
//!
//! It tells of veth what is hard to see otherwise: whether the other end of the cable, in a network namespace that is not ours, takes
//! frames that XDP sends. It does where it receives by NAPI.
//!
//! *Source*: `Documentation/netlink/specs/netdev.yaml`, `linux/netdev.h`.

use std::io::{self, ErrorKind};

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_REQUEST, NetlinkMessage, Nla, NlasIterator, Parseable,
    ParseableParametrized,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlHeader, GenlMessage};
use netlink_sys::protocols::NETLINK_GENERIC;
use sidestep_gateway::netlink;

/// What a driver can do of XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct XdpFeatures(u64);

impl XdpFeatures {
    #[cfg(test)]
    pub(super) fn of_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// It calls a program, and can drop a frame, pass it on and send it back.
    pub(super) fn is_native(self) -> bool {
        /// `NETDEV_XDP_ACT_BASIC`
        const BASIC: u64 = 1;
        self.0 & BASIC != 0
    }

    /// It takes frames that others send by it; of veth: the other end takes those that XDP sends.
    pub(super) fn takes_frames(self) -> bool {
        /// `NETDEV_XDP_ACT_NDO_XMIT`
        const XMIT: u64 = 4;
        self.0 & XMIT != 0
    }
}

/// What the driver of this interface can do; `None`: the kernel is too old to tell.
///
/// # Errors
/// There is no such interface, or the kernel does not tell.
pub(super) fn xdp_features(index: u32) -> io::Result<Option<XdpFeatures>> {
    let Some(family) = family()? else { return Ok(None) };
    let asked = DefaultNla::new(attribute::INDEX, index.to_ne_bytes().to_vec());
    let mut question = GenlMessage::from_payload(Device(vec![asked]));
    question.set_resolved_family_id(family);
    let mut found = None;
    let question = NetlinkMessage::from(question);
    netlink::exchange(NETLINK_GENERIC, question, NLM_F_REQUEST, |answer: GenlMessage<Device>| {
        found = answer.payload.xdp_features();
    })?;
    Ok(found)
}

/// The number that the kernel has given the family; `None`: it knows none of this name.
fn family() -> io::Result<Option<u16>> {
    let nlas = vec![GenlCtrlAttrs::FamilyName(Device::family_name().to_owned())];
    let question = GenlMessage::from_payload(GenlCtrl { cmd: GenlCtrlCmd::GetFamily, nlas });
    let mut found = None;
    let question = NetlinkMessage::from(question);
    let told = netlink::exchange(
        NETLINK_GENERIC,
        question,
        NLM_F_REQUEST,
        |answer: GenlMessage<GenlCtrl>| {
            found = answer.payload.nlas.iter().find_map(|nla| match nla {
                GenlCtrlAttrs::FamilyId(id) => Some(*id),
                _ => None,
            });
        },
    );
    match told {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        told => told.map(|()| found),
    }
}

/// An interface, as the family tells of it.
#[derive(Clone, Debug)]
struct Device(Vec<DefaultNla>);

mod attribute {
    pub(super) const INDEX: u16 = 1;
    pub(super) const XDP_FEATURES: u16 = 3;
}

impl Device {
    fn xdp_features(&self) -> Option<XdpFeatures> {
        let told = self.0.iter().find(|nla| nla.kind() == attribute::XDP_FEATURES)?;
        let mut value = [0; 8];
        if told.value_len() != value.len() {
            return None;
        }
        told.emit_value(&mut value);
        Some(XdpFeatures(u64::from_ne_bytes(value)))
    }
}

impl GenlFamily for Device {
    fn family_name() -> &'static str {
        "netdev"
    }

    /// `NETDEV_CMD_DEV_GET`
    fn command(&self) -> u8 {
        1
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for Device {
    fn buffer_len(&self) -> usize {
        self.0.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.0.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for Device {
    fn parse_with_param(bytes: &[u8], _: GenlHeader) -> Result<Self, DecodeError> {
        let nlas = NlasIterator::new(bytes).map(|nla| DefaultNla::parse(&nla?));
        nlas.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_has_no_xdp_of_its_own() {
        // `None`: before Linux 6.3.
        if let Some(features) = xdp_features(1).unwrap() {
            assert!(!features.is_native() && !features.takes_frames(), "{features:?}");
        }
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        if family().unwrap().is_some() {
            assert_eq!(xdp_features(0x7fff_fff0).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        }
    }
}
