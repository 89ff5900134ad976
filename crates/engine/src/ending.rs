//! How a connection gives back what it had.
//!
//! | What happens | The program is told | The buffer |
//! |---|---|---|
//! | C or A of both sides | `Gone`, once it has closed | zeroed, and free for the next |
//! | the same, and the peer has just changed links | the same | taken out of the group |
//! | the peer aborts, or says what cannot be | `Reset` | as above, when our A has arrived |
//! | no link leads to the peer any more | `Reset`, unless all was said and done | goes with the group |
//! | the program has closed, and the peer says nothing | `Gone` | taken out of the group |
//!
//! *Source*: RFC 7609 §4.8.

use std::time::Duration;

use sidestep_rdma::device::Device;
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
    /// Neither side writes into it.
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

impl<D: Device> Host<D> {
    /// The program needs a connection no more.
    pub(crate) fn let_go(&mut self, token: AlertToken, is_abort: bool, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token).filter(|stream| stream.is_held) else {
            return self.withdraw(token);
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
            Stage::Over => self.forget_if_done(token),
            _ => self.set_patience(token, Some(now + PEER_PATIENCE)),
        }
        self.rouse(token);
        self.settle(now);
    }

    /// A connection will not begin; its program is told why, unless it was abandoned meanwhile.
    pub(crate) fn decline(&mut self, token: AlertToken, diagnosis: Diagnosis, now: Duration) {
        if self.streams.get(&token).is_some_and(|stream| stream.is_held) {
            self.events.push_back(Event::Declined(token, diagnosis));
        }
        self.give_up(token, now);
    }

    /// A connection will not begin.
    pub(crate) fn give_up(&mut self, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        stream.is_held = false;
        // A peer that was told of it may think otherwise.
        let buffer = match stream.stage {
            Stage::Introduced => Buffer::Suspect,
            _ => Buffer::Reusable,
        };
        let (group, is_first) = (stream.group, stream.is_first);
        if let Some(engine) = self.engine(group).filter(|_| is_first) {
            engine.abandon();
        }
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
            self.set_patience(token, Some(now + PEER_PATIENCE));
            self.rouse(token);
        }
    }

    /// If both sides have said the last word, and ours has arrived, the connection is over.
    pub(crate) fn finish_if_agreed(&mut self, token: AlertToken, now: Duration) {
        let Some(stream) = self.streams.get(&token) else { return };
        let is_idle = stream.under_way == 0 && !stream.moving && !stream.is_ready;
        if stream.stage == Stage::Open && is_idle && stream.is_agreed() {
            // Over a link that the peer has left something may still come that it has sent before.
            let is_reusable = stream.left.is_empty();
            let buffer = if is_reusable { Buffer::Reusable } else { Buffer::Suspect };
            self.give_back(token, buffer, now);
        }
    }

    /// How long the peer of a connection is waited for.
    pub(crate) fn set_patience(&mut self, token: AlertToken, until: Option<Duration>) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        if let Some(before) = std::mem::replace(&mut stream.patience, until) {
            self.patience.remove(&(before, token));
        }
        self.patience.extend(until.map(|until| (until, token)));
    }

    /// Connections whose peers have been silent for too long are over.
    pub(crate) fn lose_patience(&mut self, now: Duration) {
        while let Some((until, token)) = self.patience.first().copied()
            && until <= now
        {
            self.set_patience(token, None);
            let stream = self.streams.get_mut(&token);
            if let Some(connection) = stream.and_then(|stream| stream.connection.as_mut()) {
                connection.abort();
            }
            self.rouse(token);
            self.settle(now);
            self.give_back(token, Buffer::Suspect, now);
            self.settle(now);
        }
    }

    /// A connection gives back its place in the group and its buffer. What the program may still
    /// receive it keeps.
    fn give_back(&mut self, token: AlertToken, buffer: Buffer, now: Duration) {
        self.set_patience(token, None);
        let Some(stream) = self.streams.get_mut(&token) else { return };
        if stream.stage != Stage::Over {
            stream.stage = Stage::Over;
            stream.to = None;
            (stream.moving, stream.probed) = (false, None);
            stream.left.clear();
            let (id, rmb) = (stream.group, stream.rmb);
            if let Some(engine) = self.engine(id) {
                engine.close(token, now);
                if buffer == Buffer::Suspect {
                    // A group that is ending lets go of all its buffers by itself.
                    let _ = engine.remove_rmb(rmb, now);
                }
            }
            if let Some(rmb) = self.groups.get_mut(&id).and_then(|it| it.rmbs.get_mut(&rmb)) {
                rmb.user = None;
                if buffer == Buffer::Reusable {
                    rmb.memory.clear();
                }
            }
        }
        self.forget_if_done(token);
    }

    /// A connection that is over keeps its send buffer while an adapter may read it, and its name
    /// while its program has it, too.
    pub(crate) fn forget_if_done(&mut self, token: AlertToken) {
        let is_over = |stream: &&mut Stream| stream.stage == Stage::Over && stream.under_way == 0;
        let Some(stream) = self.streams.get_mut(&token).filter(is_over) else { return };
        stream.source = None;
        let (id, is_held, buffer) = (stream.group, stream.is_held, stream.outgoing.take());
        let lent = stream.lent.take();
        if let Some(lent) = lent {
            self.scrap(lent.ring);
        }
        if let Some(buffer) = buffer {
            match self.groups.get_mut(&id) {
                Some(group) => group.send_buffers.push(buffer),
                None => self.scrap(buffer),
            }
        }
        if !is_held {
            self.streams.remove(&token);
            self.events.push_back(Event::Gone(token));
        }
    }
}
