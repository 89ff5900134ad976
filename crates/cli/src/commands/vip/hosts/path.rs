//! The data path: which program of the kernel sends packets on, by the key `path`.
//!
//! | `path` | What looks at packets first | Where |
//! |---|---|---|
//! | `"auto"` | XDP of the driver, if it has that; otherwise traffic control | XDP only at interfaces that are no virtual ones |
//! | `"tc"` | traffic control | everywhere |
//! | `"xdp"` | XDP of the driver | refused where the driver has none; at veth the other end has to take what XDP sends |
//! | `"xdp-generic"` | XDP of the kernel | everywhere |
//!
//! Traffic control is there in any case, behind XDP. So a distributor whose XDP is taken away goes on without a lost packet.
//!
//! # What XDP goes past
//!
//! What XDP sends on, programs of traffic control at the interface do not see, those of `sidestep filter` among them. `"auto"` leaves an
//! interface that has some to traffic control; where XDP was asked for, they are named. A driver may take the tag of a VLAN off a frame
//! before XDP sees it, so `"auto"` leaves an interface with VLANs to traffic control, too.
//!
//! # What veth needs
//!
//! A frame that XDP sends by veth is taken by NAPI of the other end, which has it only while it has a program of XDP itself, or GRO is
//! on. Both can change at any time. A frame that is sent without it is lost, so XDP is taken away as soon as the kernel says that
//! NAPI is gone, and is back with it.

use netlink_packet_route::link::InfoKind;
use sidestep_bpf::{Forwarding, XdpMode, interface_programs};

use super::driver::{self, XdpFeatures};
use super::link::{self, Interface};
use crate::options::DataPath;
use crate::words::keyword;

/// The data path of an interface.
#[derive(Debug)]
pub(super) struct Path {
    name: String,
    wanted: DataPath,
    /// XDP that is in force.
    mode: Option<XdpMode>,
    /// It was said that senders leave checksums open.
    has_told_of_sums: bool,
}

impl Path {
    /// Has packets of an interface be looked at by XDP, if that is wanted and there.
    ///
    /// # Errors
    /// What is wanted cannot be had: why, and what to do.
    pub(super) fn begin(
        wanted: DataPath,
        interface: &Interface,
        forwarding: &mut Forwarding,
    ) -> Result<Self, String> {
        let (name, has_told_of_sums) = (interface.name.clone(), false);
        let mut path = Self { name, wanted, mode: None, has_told_of_sums };
        let mode = match wanted {
            DataPath::Tc => return Ok(path),
            DataPath::XdpGeneric => XdpMode::Generic,
            DataPath::Xdp if interface.kind == Some(InfoKind::Veth) => XdpMode::Veth,
            DataPath::Xdp | DataPath::Auto => XdpMode::Native,
        };
        if let Some(lack) = path.lack(interface) {
            return path.without_xdp(lack);
        }
        match forwarding.attach_xdp(&interface.name, mode) {
            Ok(()) => {
                path.mode = Some(mode);
                path.warn_of_others(interface);
            }
            Err(error) => return path.without_xdp(format!("{}: {error}", interface.name)),
        }
        Ok(path)
    }

    /// What an interface lacks for what is wanted.
    fn lack(&self, interface: &Interface) -> Option<String> {
        if self.wanted == DataPath::XdpGeneric {
            return None;
        }
        if self.wanted == DataPath::Auto
            && let Some(lack) = self.lack_unasked(interface)
        {
            return Some(lack);
        }
        match driver::xdp_features(interface.index) {
            Ok(features) => lack(&self.name, interface.kind.as_ref(), features),
            Err(error) => Some(format!("{} does not tell of its XDP: {error}", self.name)),
        }
    }

    /// The same where XDP was not asked for: it is to change nothing but the way of packets.
    fn lack_unasked(&self, interface: &Interface) -> Option<String> {
        if interface.kind.is_some() {
            return Some(format!("{} is a virtual interface", self.name));
        }
        if let Some(others) = others(interface) {
            return Some(format!("{others} at {} would not see what XDP sends", self.name));
        }
        vlans(interface).map(|vlans| format!("XDP may send frames of {vlans} without their tags"))
    }

    /// Names the programs that do not see what XDP sends.
    fn warn_of_others(&self, interface: &Interface) {
        if let Some(others) = others(interface) {
            log::warn!(
                "{others} at {} do not see what XDP sends; path = \"tc\" in [distributor] has them see it as it leaves",
                self.name
            );
        }
    }

    /// It goes on by traffic control, unless XDP was asked for.
    fn without_xdp(self, why: String) -> Result<Self, String> {
        if self.wanted == DataPath::Auto {
            log::info!("packets are sent on by traffic control: {why}");
            return Ok(self);
        }
        Err(format!(
            "path = \"{}\": {why}; path = \"tc\" in [distributor] needs nothing of an interface",
            keyword(&self.wanted)
        ))
    }

    /// Takes XDP away where it would lose frames, and has it back.
    pub(super) fn follow(&mut self, interface: &Interface, forwarding: &mut Forwarding) {
        if self.wanted != DataPath::Xdp || interface.kind != Some(InfoKind::Veth) {
            return;
        }
        match (self.lack(interface), self.mode) {
            (Some(lack), Some(_)) => {
                forwarding.detach_xdp();
                self.mode = None;
                log::error!("{lack}; until then packets are sent on by traffic control");
            }
            (None, None) => match forwarding.attach_xdp(&self.name, XdpMode::Veth) {
                Ok(()) => {
                    self.mode = Some(XdpMode::Veth);
                    log::info!("packets are sent on by XDP of {} again", self.name);
                }
                Err(error) => log::error!("packets are sent on by traffic control: {error}"),
            },
            _ => {}
        }
    }

    /// Tells, once, that so many packets had checksums which XDP cannot send on.
    pub(super) fn note_open_sums(&mut self, count: u64) {
        if count > 0 && !std::mem::replace(&mut self.has_told_of_sums, true) {
            log::warn!(
                "packets come by {} whose checksums their senders have left open; traffic control sends them on, which XDP \
                 would spare: `ethtool -K INTERFACE tx off` for the other end of the cable has them whole",
                self.name
            );
        }
    }

    /// What is in force, in the words of the key.
    pub(super) fn in_words(&self) -> String {
        keyword(&match self.mode {
            None => DataPath::Tc,
            Some(XdpMode::Native | XdpMode::Veth) => DataPath::Xdp,
            Some(XdpMode::Generic) => DataPath::XdpGeneric,
        })
    }
}

/// The programs of traffic control that others have attached to an interface; `None`: there are none.
fn others(interface: &Interface) -> Option<String> {
    let programs = match interface_programs(&[interface.index]) {
        Ok(programs) => programs,
        Err(error) => return Some(format!("programs that the kernel does not tell ({error})")),
    };
    let names = programs.iter().map(|(_, program)| program.name.as_str());
    let names: Vec<&str> = names.filter(|name| *name != Forwarding::NAME).collect();
    (!names.is_empty()).then(|| format!("programs of traffic control ({})", names.join(", ")))
}

/// The VLANs on an interface, which may take the tags off their frames before XDP sees them; `None`: there are none.
fn vlans(interface: &Interface) -> Option<String> {
    match link::vlans_on(interface.index) {
        Ok(names) => (!names.is_empty()).then(|| names.join(", ")),
        Err(error) => Some(format!("VLANs that the kernel does not tell ({error})")),
    }
}

/// Why a driver's XDP cannot send packets on, and what to do.
fn lack(name: &str, kind: Option<&InfoKind>, features: Option<XdpFeatures>) -> Option<String> {
    let is_veth = kind == Some(&InfoKind::Veth);
    match features {
        // The driver says it itself when the program is attached.
        None if !is_veth => None,
        None => Some(format!(
            "{name} is an end of a veth pair, and this kernel does not tell whether the other end takes frames of XDP: that takes \
             Linux 6.3; path = \"xdp-generic\" works on any"
        )),
        Some(features) if !features.is_native() => Some(format!(
            "the driver of {name} has no XDP; path = \"xdp-generic\" works with any driver"
        )),
        Some(features) if is_veth && !features.takes_frames() => Some(format!(
            "the other end of {name}, a veth pair, takes no frames of XDP: `ethtool -K INTERFACE gro on` there has it take them"
        )),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_said_with_what_to_do() {
        let veth = Some(&InfoKind::Veth);
        let of = |bits| Some(XdpFeatures::of_bits(bits));
        let says = |kind, features, words: &str| {
            let lack = lack("eth0", kind, features).unwrap_or_default();
            assert!(lack.contains(words), "{lack}");
        };
        says(None, of(0), "has no XDP");
        says(veth, of(0), "has no XDP");
        says(veth, of(0x23), "gro on");
        says(veth, None, "Linux 6.3");
        assert_eq!(lack("eth0", veth, of(0x67)), None);
        assert_eq!(lack("eth0", None, of(0x23)), None);
        assert_eq!(lack("eth0", None, None), None);
    }
}
