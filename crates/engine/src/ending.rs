//! How a connection gives back what it had.
//!
//! | What happens | The program is told | The buffer |
//! |---|---|---|
//! | C or A of both sides | `Gone`, once it has closed | zeroed, and free for the next |
//! | the peer aborts, or says what cannot be | `Reset` | as above, when our A has arrived |
//! | no link leads to the peer any more | `Reset`, unless all was said and done | goes with the group |
//! | the program has closed, and the peer says nothing | `Gone` | taken out of the group |
//!
//! *Source*: RFC 7609 §4.8.

use std::time::Duration;

use sidestep_wire::{AlertToken, Diagnosis};

use crate::event::{Event, Reset};
use crate::host::Host;
use crate::stream::{Stage, Stream};

/// How long a connection that the program has closed waits for a word of the peer, as a socket of
/// Linux in FIN_WAIT2.
pub const PEER_PATIENCE: Duration = Duration::from_secs(60);

/// What becomes of the buffer of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Buffer {
    /// Nobody writes into it.
    Reusable,
    /// The peer may still do so.
    Suspect,
}

impl Stream {
    /// Whether it is still in CLC.
    pub(crate) const fn is_beginning(&self) -> bool {
        matches!(self.stage, Stage::Preparing | Stage::Introduced)
    }
}

impl Host {
    /// The program needs a connection no more.
    pub(crate) fn let_go(&mut self, token: AlertToken, is_abort: bool, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token).filter(|stream| stream.is_held) else {
            return;
        };
        if stream.is_beginning() {
            return self.abandon(token, now);
        }
        stream.is_held = false;
        match &mut stream.connection {
            Some(connection) if is_abort => connection.abort(),
            Some(connection) => connection.close(),
            None => {}
        }
        match stream.stage {
            Stage::Over => self.forget(token),
            _ => stream.patience = Some(now + PEER_PATIENCE),
        }
        self.rouse(token);
        self.settle(now);
    }

    /// A connection will not begin; its program is told why.
    pub(crate) fn decline(&mut self, token: AlertToken, diagnosis: Diagnosis, now: Duration) {
        self.events.push_back(Event::Declined(token, diagnosis));
        self.give_up(token, now);
    }

    /// A connection will not begin.
    pub(crate) fn give_up(&mut self, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        stream.is_held = false;
        let is_first = stream.is_first;
        if let Some(group) = self.groups.get_mut(&stream.group)
            && is_first
        {
            group.engine.abandon();
        }
        // A peer that was told of it may think otherwise.
        let buffer = match stream.stage {
            Stage::Introduced => Buffer::Suspect,
            _ => Buffer::Reusable,
        };
        self.give_back(token, buffer, now);
    }

    /// A connection has ended in disorder, unless it had ended before or nothing is left to do.
    pub(crate) fn reset(&mut self, token: AlertToken, reset: Reset, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        if stream.is_beginning() && stream.connection.is_none() {
            return self.decline(token, Diagnosis::NOACTLINK, now);
        }
        let is_cut = matches!(reset, Reset::Unreachable);
        let is_harmless = is_cut && stream.is_complete();
        if stream.stage != Stage::Over && stream.reset.is_none() && !is_harmless {
            stream.reset = Some(reset);
            if stream.is_held {
                self.events.push_back(Event::Reset(token, reset));
            }
        }
        if let Some(connection) = stream.connection.as_mut().filter(|_| !is_harmless) {
            connection.abort();
        }
        if is_cut || matches!(reset, Reset::Refused(_)) {
            self.give_back(token, Buffer::Suspect, now);
        } else {
            stream.patience = Some(now + PEER_PATIENCE);
            self.rouse(token);
        }
    }

    /// If both sides have said the last word, and ours has arrived, the connection is over.
    pub(crate) fn finish_if_agreed(&mut self, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get(&token) else { return };
        let is_idle = stream.under_way == 0 && !stream.moving && !stream.is_ready;
        if stream.stage == Stage::Open && is_idle && stream.is_agreed() {
            self.give_back(token, Buffer::Reusable, now);
        }
    }

    /// Connections whose peers have been silent for too long are over.
    pub(crate) fn lose_patience(&mut self, now: Duration) {
        let is_late = |stream: &Stream| stream.patience.is_some_and(|until| until <= now);
        let late: Vec<AlertToken> =
            self.streams.iter().filter(|(_, it)| is_late(it)).map(|(token, _)| *token).collect();
        for token in late {
            let Some(stream) = self.streams.get_mut(&token) else { continue };
            stream.patience = None;
            if let Some(connection) = &mut stream.connection {
                connection.abort();
            }
            self.rouse(token);
            self.settle(now);
            self.give_back(token, Buffer::Suspect, now);
        }
    }

    /// A connection gives back its place in the group and its buffer. What the program may still
    /// receive it keeps.
    fn give_back(&mut self, token: AlertToken, buffer: Buffer, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        if stream.stage != Stage::Over {
            stream.stage = Stage::Over;
            stream.patience = None;
            stream.to = None;
            stream.moving = false;
            if let Some(group) = self.groups.get_mut(&stream.group) {
                group.engine.close(token, now);
                if let Some(rmb) = group.rmbs.get_mut(&stream.rmb) {
                    rmb.user = None;
                    match buffer {
                        Buffer::Reusable => rmb.memory.clear(),
                        // A group that is ending lets go of all its buffers by itself.
                        Buffer::Suspect => drop(group.engine.remove_rmb(stream.rmb, now)),
                    }
                }
            }
        }
        if !stream.is_held {
            self.forget(token);
        }
    }

    fn forget(&mut self, token: AlertToken) {
        if self.streams.remove(&token).is_some() {
            self.events.push_back(Event::Gone(token));
        }
    }
}
