//! Listeners: clients on this host may meet them as long as the settings let their connections move.
//!
//! The operator may change those while the program runs; the library looks for a change when a connection
//! begins or the program listens ([`reload`]).

use crate::process::reload;
use crate::rendezvous::{autocache, marker};
use crate::table::descriptors;
use crate::table::sock::{Phase, Sock};

/// A program listens on a port: leaves the marker that tells clients on this host that they may meet us.
/// Called again with every connection it accepts, until there is one: of many listeners on a port two leave
/// markers, and others take over when those are gone.
pub fn mark(sock: &Sock, fd: i32) {
    if !sock.is_marked() {
        follow_settings();
        marker::leave(sock, fd);
    }
}

/// Looks for new settings, and does what follows from them.
pub(crate) fn follow_settings() {
    if !reload::look() {
        return;
    }
    autocache::forget_all();
    // Whether clients may look for a listener is among what has changed.
    descriptors::for_each_sock(|fd, sock| {
        if sock.phase() == Phase::Listener {
            sock.withdraw_marker();
            marker::leave(sock, fd);
        }
    });
}
