//! Where the other end is, and so how it can be found: by the connection's name, or by the agent.
//!
//! A name is for two ends in one network namespace, of one user, that see the same addresses. Addresses of this host
//! are no proof of that. A translation (a published port, a redirection) leads to another address, here or in a
//! container. And processes of two users share memory only by their own lists, unless the policy of the host lets
//! them, which the agent knows.
//!
//! Where an agent tells connections apart, the kernel is asked who holds the other end ([`inet_diag`]): both ends come
//! to the same answer by themselves, and so look in the same place for each other.
//!
//! | the other end's socket | way |
//! |---|---|
//! | in another network namespace, or its address is not this host's | agent |
//! | in this one, of our user | name |
//! | in this one, of another user | agent, at the client if the port has a marker |
//! | in this one, and not accepted yet | asked again at the next call |
//! | not to be found: the addresses are translated | agent |
//!
//! Without an agent, or if it cannot be reached, the way is the name, as is where the kernel does not say.

use crate::process::tcp::{self, netns_cookie};
use crate::rendezvous::attempt::Look;
use crate::rendezvous::{lookup, marker, tcp_option};
use core::net::{IpAddr, SocketAddr};
use sidestep_device::inet_diag::{self, Holder};
use sidestep_device::sys::{self, Errno};
use sidestep_proto::fallback::{OperatorSaid, PeerCannot, Reason};

/// How the other end can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// By the connection's name.
    Named,
    /// Not by its name, for this reason, which is why the connection stays on TCP if there is no other way.
    Nameless(Reason),
    /// No program has accepted the connection yet.
    NoProgramYet,
}

/// Asks what has to be asked to know it.
pub(super) fn of_other_end(look: &mut Look) -> Result<Whereabouts, Reason> {
    let (process, (local, peer)) = (look.process()?, look.addresses()?);
    (look.is_by_loopback, look.is_translated) = (false, false);
    if !tcp::is_same_host(local, peer) {
        return Ok(Whereabouts::Nameless(PeerCannot::RemotePeer.into()));
    }
    if netns_cookie(look.fd) != process.netns_cookie {
        return Ok(Whereabouts::Nameless(PeerCannot::OtherNamespace.into()));
    }
    look.is_by_loopback = true;
    if !tcp_option::tells_identity(look.fd) {
        return Ok(Whereabouts::Named);
    }
    let whereabouts = match holder_of_other_end(local, peer) {
        Err(Errno(libc::ENOENT)) => {
            (look.is_by_loopback, look.is_translated) = (false, true);
            Whereabouts::Nameless(PeerCannot::PeerNotSmc.into())
        }
        // A client that has no program any more says nothing to the server that has accepted it.
        Ok(Holder::NoProgram) if !look.is_server => Whereabouts::NoProgramYet,
        Ok(Holder::User(user)) if ![sys::uid(), sys::effective_uid()].contains(&user) => {
            let is_served = look.is_server || marker::is_there(process, peer.port());
            match is_served {
                true => Whereabouts::Nameless(OperatorSaid::OtherUser.into()),
                false => Whereabouts::Named,
            }
        }
        Ok(_) | Err(_) => Whereabouts::Named,
    };
    Ok(match whereabouts {
        Whereabouts::Nameless(_) if !lookup::is_possible(process) => {
            (look.is_by_loopback, look.is_translated) = (true, false);
            Whereabouts::Named
        }
        whereabouts => whereabouts,
    })
}

/// Who holds the other end; `ENOENT`: it is not in this network namespace.
fn holder_of_other_end(local: SocketAddr, peer: SocketAddr) -> sys::Result<Holder> {
    // Such addresses mean something on one interface only.
    if is_link_local(peer.ip()) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let holder = inet_diag::holder_of(peer, local);
    if holder == Err(Errno(libc::ENOENT)) {
        // Nor would the kernel tell of our own end, if it tells of none, or of none of its interface.
        inet_diag::holder_of(local, peer).map_err(|_| Errno(libc::EOPNOTSUPP))?;
    }
    holder
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_holder_of_the_other_end_is_found_by_the_addresses_turned_round() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let client = TcpStream::connect(at).unwrap();
        let from = client.local_addr().unwrap();
        if inet_diag::holder_of(from, at).is_err() {
            return println!("skipped: the kernel has no INET_TCP_DIAG");
        }
        assert_eq!(holder_of_other_end(from, at), Ok(Holder::NoProgram), "it is not accepted");
        let server = listener.accept().unwrap();
        let own = Ok(Holder::User(sys::effective_uid()));
        assert_eq!((holder_of_other_end(from, at), holder_of_other_end(at, from)), (own, own));
        drop(server);
    }

    /// As of a kernel that tells of none, or of a socket that is bound to an interface.
    #[test]
    fn where_the_own_end_is_not_told_the_other_one_is_not_said_to_be_elsewhere() {
        let unknown = Err(Errno(libc::EOPNOTSUPP));
        for [local, peer] in [["127.0.0.1:1", "127.0.0.1:2"], ["[fe80::1]:1", "[fe80::2]:2"]] {
            let ends = [local, peer].map(|end| end.parse().unwrap());
            assert_eq!(holder_of_other_end(ends[0], ends[1]), unknown, "{local}");
        }
    }
}
