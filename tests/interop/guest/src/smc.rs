//! The kernel's SMC: what it is told, and what it tells of its sockets and link groups.
//!
//! | Family | What |
//! |---|---|
//! | `SMC_PNETID` | which interfaces and RDMA devices belong to one network |
//! | `SMC_GEN_NETLINK` | UEIDs, link groups and their links |
//! | socket diagnosis for `AF_SMC` | sockets: what they have become, and why |
//!
//! Commands and attributes are those of `uapi/linux/smc.h` and `smc_diag.h`.

use anyhow::{Context, Result};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use sidestep_guest::{Link, LinkGroup, Mode, Role, SmcR, SmcSocket};

use crate::netlink::{Attributes, Generic, Netlink, text_of};
use crate::network::{self, RDMA_PORT};

/// Puts a card's interface, and its RDMA device if there is one, into the network of this name.
///
/// **Errors**: the kernel's: it is no PNET ID.
pub(crate) fn set_pnet_id(pnet_id: &str, card: u8, has_rdma: bool) -> Result<()> {
    const ADD: u8 = 2;
    const NAME: u16 = 1;
    const INTERFACE_NAME: u16 = 2;
    const DEVICE_NAME: u16 = 3;
    const DEVICE_PORT: u16 = 4;
    let (interface, device) = (network::interface(card), network::rdma_device(card));
    let mut texts = vec![(NAME, pnet_id), (INTERFACE_NAME, interface.as_str())];
    let mut bytes = Vec::new();
    if has_rdma {
        texts.push((DEVICE_NAME, device.as_str()));
        bytes.push((DEVICE_PORT, RDMA_PORT));
    }
    Generic::open("SMC_PNETID")?.order(ADD, &texts, &bytes)
}

const FAMILY: &str = "SMC_GEN_NETLINK";

/// **Errors**: the kernel's: it is no UEID, or there are 4 already.
pub(crate) fn add_ueid(ueid: &str) -> Result<()> {
    const ADD_UEID: u8 = 10;
    order_ueid(ADD_UEID, ueid)
}

/// **Errors**: the kernel's: it is not in the table.
pub(crate) fn remove_ueid(ueid: &str) -> Result<()> {
    const REMOVE_UEID: u8 = 11;
    order_ueid(REMOVE_UEID, ueid)
}

fn order_ueid(command: u8, ueid: &str) -> Result<()> {
    const ENTRY: u16 = 1;
    // As on the wire: 32 characters, with blanks behind the name.
    let padded = format!("{ueid:<32}");
    Generic::open(FAMILY)?.order(command, &[(ENTRY, &padded)], &[]).with_context(|| padded)
}

/// The link groups of SMC-R with their links.
pub(crate) fn link_groups() -> Result<Vec<LinkGroup>> {
    const GET_LINK_GROUPS: u8 = 2;
    const GET_LINKS: u8 = 3;
    let family = Generic::open(FAMILY)?;
    let mut groups = family.dump(GET_LINK_GROUPS, link_group)?;
    // The kernel lists links behind the group that they belong to.
    let mut owner = None;
    for (group, link) in family.dump(GET_LINKS, |it| Some((link_group(it), link(it))))? {
        owner = group.map(|it| it.id).or(owner);
        if let (Some(group), Some(link)) = (groups.iter_mut().find(|it| Some(it.id) == owner), link)
        {
            group.links.push(link);
        }
    }
    Ok(groups)
}

fn link_group(attributes: Attributes<'_>) -> Option<LinkGroup> {
    const LINK_GROUP: u16 = 2;
    const ID: u16 = 1;
    const ROLE: u16 = 2;
    const PNET_ID: u16 = 4;
    const CONNECTIONS: u16 = 6;
    const V2_COMMON: u16 = 7;
    // Of the nest of version 2.
    const VERSION: u16 = 0;
    const EID: u16 = 3;
    const SERVER: u8 = 1;
    let group = attributes.nest(LINK_GROUP);
    let v2 = group.nest(V2_COMMON);
    Some(LinkGroup {
        id: group.word(ID)?,
        role: if group.byte(ROLE)? == SERVER { Role::Server } else { Role::Client },
        connections: group.word(CONNECTIONS)?,
        pnet_id: group.text(PNET_ID)?,
        version: v2.byte(VERSION).unwrap_or(1),
        eid: v2.text(EID).unwrap_or_default(),
        links: Vec::new(),
    })
}

fn link(attributes: Attributes<'_>) -> Option<Link> {
    const LINK: u16 = 3;
    const ID: u16 = 1;
    const DEVICE: u16 = 2;
    const GID: u16 = 4;
    const PEER_GID: u16 = 5;
    const CONNECTIONS: u16 = 6;
    const STATE: u16 = 10;
    let link = attributes.nest(LINK);
    Some(Link {
        id: link.byte(ID)?,
        device: link.text(DEVICE)?,
        gid: link.text(GID)?,
        peer_gid: link.text(PEER_GID)?,
        connections: link.word(CONNECTIONS)?,
        state: link.word(STATE)?,
    })
}

/// All sockets of SMC.
pub(crate) fn sockets() -> Result<Vec<SmcSocket>> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    let bodies =
        Netlink::open(NETLINK_SOCK_DIAG)?.dump(SOCK_DIAG_BY_FAMILY, diagnosis_request())?;
    Ok(bodies.iter().filter_map(|body| socket(body)).collect())
}

/// What the kernel says of the socket with these ports, if it is SMC's and connected.
pub(crate) fn socket_between(local_port: u16, peer_port: u16) -> Result<Option<SmcSocket>> {
    let is_it = |it: &SmcSocket| it.local_port == local_port && it.peer_port == peer_port;
    Ok(sockets()?.into_iter().find(is_it))
}

const AF_SMC: u8 = 43;

// What can be asked for beside the socket itself.
const CONNECTION: u16 = 1;
const LINK_GROUP: u16 = 2;
const FALLBACK: u16 = 5;

/// Bytes of an `inet_diag_sockid`: ports, addresses, interface, cookie.
const SOCKET_ID_LEN: usize = 48;

/// An `smc_diag_req`: family, two of nothing, what else is wanted, which socket (any).
fn diagnosis_request() -> Vec<u8> {
    let wanted = [CONNECTION, LINK_GROUP, FALLBACK].iter().fold(0, |all, it| all | 1 << (it - 1));
    let mut request = vec![AF_SMC, 0, 0, wanted];
    request.resize(4 + SOCKET_ID_LEN, 0);
    request
}

/// Reads an `smc_diag_msg`.
fn socket(body: &[u8]) -> Option<SmcSocket> {
    // family, state, mode, shutdown; the id, which begins with the ports; user, inode.
    const ID: usize = 4;
    const MESSAGE_LEN: usize = ID + SOCKET_ID_LEN + 12;
    let [_, state, mode, _] = *body.first_chunk()?;
    let port = |at: usize| Some(u16::from_be_bytes(*body.get(at..)?.first_chunk()?));
    let attributes = Attributes::behind(MESSAGE_LEN, body);
    Some(SmcSocket {
        local_port: port(ID)?,
        peer_port: port(ID + 2)?,
        state,
        mode: match mode {
            0 => Mode::SmcR(over_rdma(&attributes)),
            1 => fallback(attributes.value(FALLBACK)?)?,
            _ => Mode::SmcD,
        },
    })
}

fn over_rdma(attributes: &Attributes<'_>) -> Option<SmcR> {
    // An `smc_diag_conninfo`: token, send buffer, receive buffer, the peer's.
    let connection = attributes.value(CONNECTION)?;
    // An `smc_diag_linkinfo`: the link's number, device, port, GIDs as texts.
    const DEVICE: usize = 1;
    const DEVICE_LEN: usize = 64;
    const GID: usize = DEVICE + DEVICE_LEN + 1;
    const GID_LEN: usize = 40;
    let link = attributes.value(LINK_GROUP)?;
    let text = |at: usize, len: usize| link.get(at..at + len).map(text_of);
    Some(SmcR {
        rmbe_len: word_at(connection, 8)?,
        peer_rmbe_len: word_at(connection, 12)?,
        link: *link.first()?,
        device: text(DEVICE, DEVICE_LEN)?,
        gid: text(GID, GID_LEN)?,
        peer_gid: text(GID + GID_LEN, GID_LEN)?,
    })
}

/// Reads an `smc_diag_fallback`.
fn fallback(value: &[u8]) -> Option<Mode> {
    Some(Mode::Fallback { reason: word_at(value, 0)?, peer_diagnosis: word_at(value, 4)? })
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    fn message(mode: u8) -> Vec<u8> {
        let mut body = vec![AF_SMC, 1, mode, 0, 0x13, 0x88, 0x9c, 0x40];
        body.resize(64, 0);
        body
    }

    #[test]
    fn a_fallback_has_its_reasons() {
        let mut body = message(1);
        let reasons = [0x0500_0000_u32, 0x0303_0000].map(u32::to_ne_bytes).concat();
        attribute(&mut body, FALLBACK, &reasons);
        let mode = Mode::Fallback { reason: 0x0500_0000, peer_diagnosis: 0x0303_0000 };
        let expected = SmcSocket { local_port: 5_000, peer_port: 40_000, state: 1, mode };
        assert_eq!(socket(&body), Some(expected));
    }

    #[test]
    fn a_connection_over_rdma_has_buffers_and_a_link() {
        let mut body = message(0);
        assert_eq!(socket(&body).map(|it| it.mode), Some(Mode::SmcR(None)));
        let words = [1_u32, 16_384, 65_536, 32_768].map(u32::to_ne_bytes).concat();
        attribute(&mut body, CONNECTION, &words);
        let mut link = vec![0; 147];
        link[0] = 1;
        link[1..5].copy_from_slice(b"rxe0");
        link[66..84].copy_from_slice(b"0000:0000:0000:000");
        attribute(&mut body, LINK_GROUP, &link);
        let Some(Mode::SmcR(Some(over))) = socket(&body).map(|it| it.mode) else {
            panic!("it is over RDMA");
        };
        assert_eq!((over.rmbe_len, over.peer_rmbe_len, over.link), (65_536, 32_768, 1));
        assert_eq!((over.device.as_str(), over.gid.as_str()), ("rxe0", "0000:0000:0000:000"));
    }
}
