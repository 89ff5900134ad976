//! How long things take.

use core::time::Duration;

/// For the answer to an LLC message, as in Linux.
pub(super) const LLC_WAIT: Duration = Duration::from_secs(2);
/// For the answer to TEST LINK over the only link: a host that stands still for some seconds, as a virtual
/// machine that moves to another machine does, is not gone. Linux gives it [`LLC_WAIT`].
pub(super) const ONLY_LINK_WAIT: Duration = Duration::from_secs(15);
/// Client: for the CONFIRM LINK of a first contact. Longer than the server may need to notice that
/// it cannot send it, and to decline (RFC 7609 §C.7).
pub(super) const FIRST_CONFIRM_LINK_WAIT: Duration = Duration::from_secs(4);
/// Server: the CONFIRM LINK of a first contact is sent again after this, for it may have come while
/// the client was still busy with its Confirm. Linux does not look before.
pub(super) const CONFIRM_LINK_REPEAT: Duration = Duration::from_millis(500);
/// Client: for the server's first ADD LINK. Without it the group begins with one link.
pub(super) const FIRST_ADD_LINK_WAIT: Duration = Duration::from_secs(2);
/// Server: for the response to CONFIRM LINK over an added link, as in Linux.
pub(super) const CONFIRM_LINK_WAIT: Duration = Duration::from_secs(5);
/// Client: for that CONFIRM LINK. Longer than the server's, so that its DELETE LINK comes first.
pub(super) const CONFIRM_LINK_WAIT_CLIENT: Duration = Duration::from_secs(7);
/// For a device to make a queue pair, or to register memory.
pub(super) const DEVICE_WAIT: Duration = Duration::from_secs(5);
/// Client: for the server to delete a link when asked. The server may have another flow under way,
/// and Linux gives those that wait for their turn as long.
pub(super) const ASK_WAIT: Duration = Duration::from_secs(20);
/// How often DELETE LINK is sent before the link it goes over is taken for failed …
pub(super) const DELETE_LINK_TRIES: u8 = 2;
/// … and if other messages come over it. On a slow path an answer waits behind the data.
pub(super) const DELETE_LINK_TRIES_HEARD: u8 = 10;
/// How often a peer is told of an RMB, or of its end.
pub(super) const RKEY_TRIES: u8 = 3;
/// Between two of these, when it refused.
pub(super) const RKEY_RETRY: Duration = Duration::from_millis(250);
/// Server: after a link was lost, until another is tried.
pub(super) const ADD_LINK_SOON: Duration = Duration::from_secs(1);
/// Server: after a try in vain; twice as long after each further one …
pub(super) const ADD_LINK_RETRY_FIRST: Duration = Duration::from_secs(60);
/// … up to this.
pub(super) const ADD_LINK_RETRY_MAX: Duration = Duration::from_secs(3600);
/// A link has come: until connections move to it. Longer than [`ADD_LINK_SOON`], so a link that fails
/// and comes again and again is not used by more than the new ones.
pub(super) const BALANCE_AFTER: Duration = Duration::from_secs(2);
/// Connections that move at once …
pub(super) const BALANCE_STEP: usize = 8;
/// … and until the next do.
pub(super) const BALANCE_PAUSE: Duration = Duration::from_millis(100);
/// How long a group lives without connections at the server, as in Linux.
pub(super) const IDLE_SERVER: Duration = Duration::from_secs(600);
/// At the client: a little longer, so that the server ends it.
pub(super) const IDLE_CLIENT: Duration = Duration::from_secs(610);

const _: () = assert!(CONFIRM_LINK_WAIT_CLIENT.as_secs() > CONFIRM_LINK_WAIT.as_secs());
const _: () = assert!(BALANCE_AFTER.as_secs() > ADD_LINK_SOON.as_secs());
const _: () = assert!(IDLE_CLIENT.as_secs() > IDLE_SERVER.as_secs());
const _: () = assert!(
    ASK_WAIT.as_secs()
        > DEVICE_WAIT.as_secs() + 2 * LLC_WAIT.as_secs() + CONFIRM_LINK_WAIT.as_secs(),
    "a server that is adding a link gets to it"
);

/// How long a link of a group is silent before it is tested, unless an operator wants it otherwise.
pub const KEEPALIVE: Duration = Duration::from_secs(30);
