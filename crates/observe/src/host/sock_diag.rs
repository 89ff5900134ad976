//! The TCP sockets of our network namespace, asked of the kernel by `sock_diag(7)`.
//!
//! `/proc/net/tcp` has a line for each connection that has just ended (TIME-WAIT), and writing
//! those costs the kernel most of a second where there are many. Here it passes them over.

use core::net::SocketAddr;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::{Socket, protocols::NETLINK_SOCK_DIAG};
use std::collections::HashMap;
use std::io;

/// Both addresses of each socket, by its inode.
///
/// # Errors
/// The kernel does not say: it was built without `INET_DIAG`, or netlink is forbidden.
pub(crate) fn connections() -> io::Result<HashMap<u64, [SocketAddr; 2]>> {
    let mut found = HashMap::new();
    for (family, socket_id) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        let request = InetRequest {
            family,
            protocol: IPPROTO_TCP,
            extensions: ExtensionFlags::empty(),
            states: StateFlags::all() - StateFlags::TIME_WAIT,
            socket_id,
        };
        socket.send(&all_that_match(request), 0)?;
        while !read_piece(&socket.recv_from_full()?.0, &mut found)? {}
    }
    Ok(found)
}

fn all_that_match(request: InetRequest) -> Vec<u8> {
    let mut message = NetlinkMessage::from(SockDiagMessage::InetRequest(request));
    message.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Takes over what one datagram of the kernel says. True: it was the last one.
fn read_piece(mut bytes: &[u8], found: &mut HashMap<u64, [SocketAddr; 2]>) -> io::Result<bool> {
    while !bytes.is_empty() {
        let message = NetlinkMessage::deserialize(bytes).map_err(io::Error::other)?;
        match message.payload {
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                let ends = &response.header.socket_id;
                let local = SocketAddr::new(ends.source_address, ends.source_port);
                let peer = SocketAddr::new(ends.destination_address, ends.destination_port);
                found.insert(response.header.inode.into(), [local, peer]);
            }
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            _ => {}
        }
        // A message begins where a multiple of four bytes ends.
        let len = message.header.length.next_multiple_of(4) as usize;
        bytes = bytes.get(len.max(4)..).unwrap_or_default();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::{DoneMessage, ErrorMessage};

    /// The bytes of a message of the kernel.
    fn message(payload: NetlinkPayload<SockDiagMessage>) -> Vec<u8> {
        let mut message = NetlinkMessage::new(Default::default(), payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn a_dump_ends_when_the_kernel_says_so() {
        let mut found = HashMap::new();
        assert!(!read_piece(&[], &mut found).unwrap());
        let done = message(NetlinkPayload::Done(DoneMessage::default()));
        assert!(read_piece(&done, &mut found).unwrap());
        let noop = message(NetlinkPayload::Noop);
        assert!(read_piece(&[noop, done].concat(), &mut found).unwrap());
        assert!(found.is_empty());
    }

    #[test]
    fn what_the_kernel_refuses_or_cuts_off_is_an_error() {
        let mut found = HashMap::new();
        let mut refusal = ErrorMessage::default();
        refusal.code = core::num::NonZeroI32::new(-libc::EPERM);
        let refused = read_piece(&message(NetlinkPayload::Error(refusal)), &mut found);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
        let done = message(NetlinkPayload::Done(DoneMessage::default()));
        assert!(read_piece(&done[..done.len() - 1], &mut found).is_err());
    }
}
