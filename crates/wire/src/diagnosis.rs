//! Why a peer declined: the diagnosis word of a Decline.
//!
//! RFC 7609 leaves the values to each implementation. These are the ones the Linux kernel sends,
//! under the names it gives them; a peer may send any other.

use core::fmt;

/// The diagnosis word of a [`Decline`](crate::clc::Decline).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Diagnosis(pub u32);

macro_rules! diagnoses {
    ($($name:ident = $code:literal, $meaning:literal;)*) => {
        impl Diagnosis {
            $(
                #[doc = concat!("`", stringify!($code), "`: ", $meaning, ".")]
                pub const $name: Self = Self($code);
            )*

            /// Every value that has a name, in ascending order.
            pub const NAMED: &[Self] = &[$(Self::$name),*];

            /// The name Linux gives it, or `UNKNOWN`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    _ => "UNKNOWN",
                }
            }

            /// What it means, in words.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)*
                    _ => "a reason this version does not know",
                }
            }
        }
    };
}

diagnoses! {
    MEM = 0x0101_0000, "out of memory for a buffer or a link group";
    TIMEOUT_CL = 0x0201_0000, "timeout while waiting for or sending CONFIRM LINK";
    TIMEOUT_AL = 0x0202_0000, "timeout while waiting for ADD LINK";
    CNFERR = 0x0300_0000, "configuration error";
    PEERNOSMC = 0x0301_0000, "the peer does not offer SMC";
    IPSEC = 0x0302_0000, "IPsec is active on the connection";
    NOSMCDEV = 0x0303_0000, "no usable device, or no common UEID";
    NOSMCDDEV = 0x0303_0001, "no SMC-D device";
    NOSMCRDEV = 0x0303_0002, "no SMC-R device";
    NOISM2SUPP = 0x0303_0003, "no support for ISM version 2 here";
    NOV2EXT = 0x0303_0004, "the Proposal lacks its version 2 extension";
    NOV2DEXT = 0x0303_0005, "the Proposal lacks its SMC-D version 2 extension";
    NOSEID = 0x0303_0006, "the peer sent no SEID";
    NOSMCD2DEV = 0x0303_0007, "no ISM version 2 device in common";
    NOUEID = 0x0303_0008, "the peer sent no EID";
    RELEASEERR = 0x0303_0009, "the release in the Confirm is not the negotiated one";
    MAXCONNERR = 0x0303_000A, "the number of connections per link group is out of range";
    MAXLINKERR = 0x0303_000B, "the number of links per link group is out of range";
    MODEUNSUPP = 0x0304_0000, "the Accept chose a type or version that was not offered";
    RMBE_EC = 0x0305_0000, "the peer uses RMBE eyecatchers";
    OPTUNSUPP = 0x0306_0000, "a socket option cannot be had with SMC";
    DIFFPREFIX = 0x0307_0000, "the peers are in different subnets";
    GETVLANERR = 0x0308_0000, "the VLAN of the device is not known";
    ISMVLANERR = 0x0309_0000, "the ISM device refused the VLAN";
    NOACTLINK = 0x030A_0000, "the link group has no active link";
    NOSRVLINK = 0x030B_0000, "the link named in the Accept is not in the link group";
    VERSMISMAT = 0x030C_0000, "the versions do not match";
    MAX_DMB = 0x030D_0000, "the device has no DMB left";
    NOROUTE = 0x030E_0000, "no route to the server's GID";
    NOINDIRECT = 0x030F_0000, "the server sees a gateway between the RNICs where the client sees none";
    SYNCERR = 0x0400_0000, "the link groups of the peers are out of sync";
    PEERDECL = 0x0500_0000, "the peer declined";
    INTERR = 0x0999_0000, "internal error";
    ERR_RTOK = 0x0999_0001, "the RToken could not be stored";
    ERR_RDYLNK = 0x0999_0002, "the queue pair could not be made ready";
    ERR_REGBUF = 0x0999_0003, "a buffer could not be registered or confirmed";
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x} {} ({})", self.0, self.name(), self.meaning())
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn named_values_ascend_and_have_their_own_words() {
        for pair in Diagnosis::NAMED.windows(2) {
            assert!(pair[0] < pair[1]);
            assert_ne!(pair[0].meaning(), pair[1].meaning());
        }
        assert_eq!(Diagnosis::NAMED.len(), 36);
    }

    #[test]
    fn shows_code_name_and_words() {
        assert_eq!(
            Diagnosis(0x0303_0000).to_string(),
            "0x03030000 NOSMCDEV (no usable device, or no common UEID)"
        );
        assert_eq!(Diagnosis(7).name(), "UNKNOWN");
        assert!(!Diagnosis(7).meaning().is_empty());
    }
}
