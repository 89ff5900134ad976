//! A link has come: connections move to it.
//!
//! After a failure all connections are on the links that have survived, and new ones alone would not
//! spread the load again for as long as the old ones live. So some time after a link has come, each
//! side moves connections of its own, as RFC 7609 §2.3 leaves it to do, until no symmetric link has
//! two more than another.
//!
//! - A link that comes and goes again at once moves no connection: it is waited for [`BALANCE_AFTER`].
//! - A few move at a time ([`BALANCE_STEP`], [`BALANCE_PAUSE`]), so the others go on meanwhile.
//! - Nothing moves but after a link has come, and each move makes the difference smaller: so it ends,
//!   and connections that come and go do not make others wander.
//!
//! *Source*: RFC 7609 §2.3, §4.6.

use core::time::Duration;

use sidestep_wire::LinkUserId;

use super::link::{Link, LinkState, symmetric};
use super::output::Event;
use super::state::{Connection, LinkGroup};
use super::timers::{BALANCE_AFTER, BALANCE_PAUSE, BALANCE_STEP};

impl LinkGroup {
    /// A further link carries connections now.
    pub(super) fn balance_soon(&mut self, now: Duration) {
        self.balance_due = Some(now + BALANCE_AFTER);
    }

    /// Moves some connections, and no more if it is not time.
    pub(super) fn balance(&mut self, now: Duration) {
        if self.balance_due.is_none_or(|due| now < due) {
            return;
        }
        for _ in 0..BALANCE_STEP {
            let Some((Connection { token, link: from, .. }, to)) = self.next_to_balance() else {
                self.balance_due = None;
                return;
            };
            self.move_connection(token, to);
            self.event(Event::Moved { connection: token, from, to });
        }
        self.balance_due = Some(now + BALANCE_PAUSE);
    }

    /// One of the fullest link, if the emptiest has at least two fewer, and leads to the buffer that
    /// it writes to.
    fn next_to_balance(&self) -> Option<(Connection, LinkUserId)> {
        let stays = |link: &&Link| link.state == LinkState::Active && link.resigns.is_none();
        let links = || symmetric(&self.links, self.version()).filter(stays).map(Link::user_id);
        let fullest = links().max_by_key(|link| self.connections_on(*link))?;
        let emptiest = links().min_by_key(|link| self.connections_on(*link))?;
        if self.connections_on(fullest) < self.connections_on(emptiest) + 2 {
            return None;
        }
        let leads_there =
            |it: &&Connection| it.peer_rmb.and_then(|rmb| self.peer_rmbs.rtoken(rmb, emptiest));
        let mut movable = self.connections.iter().filter(|it| it.link == fullest);
        movable.rfind(|it| leads_there(it).is_some()).map(|it| (*it, emptiest))
    }
}
