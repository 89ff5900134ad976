//! A TCP connection on one host, as Linux has it: what arrives arrives at once.
//!
//! Written from what `tcp_sendmsg_locked`, `tcp_recvmsg_locked`, `tcp_close`, `tcp_reset`, `tcp_fin`, `tcp_poll` and
//! `inet_shutdown` do, and from nothing of the library. It is the kernel below the two ends, and what
//! they are checked against.

pub(crate) const EPIPE: i32 = 32;
pub(crate) const EAGAIN: i32 = 11;
pub(crate) const ECONNABORTED: i32 = 103;
pub(crate) const ECONNRESET: i32 = 104;
pub(crate) const ENOTCONN: i32 = 107;
pub(crate) const ETIMEDOUT: i32 = 110;

/// One end of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct End {
    /// Bytes that were received and not read.
    pub(crate) queue: usize,
    /// FIN has come (`SOCK_DONE`).
    pub(crate) fin: bool,
    /// `sk_err`.
    pub(crate) error: i32,
    pub(crate) read_shut: bool,
    pub(crate) write_shut: bool,
    /// FIN_WAIT2 and `RCV_SHUTDOWN`: data is answered with a reset (`TCPABORTONDATA`).
    pub(crate) refuses: bool,
    /// It was reset: CLOSE.
    pub(crate) reset: bool,
    pub(crate) linger_zero: bool,
    /// The program has no descriptor any more.
    pub(crate) closed: bool,
    /// Not of TCP: the process had read everything when it began to end, and so many bytes have come since.
    pub(crate) late: Option<usize>,
}

impl End {
    /// Neither side sends, or there was a reset.
    pub(crate) fn is_over(&self) -> bool {
        self.reset || (self.fin && self.write_shut)
    }

    /// `tcp_reset`, or an error of its own (`tcp_done_with_error`).
    fn breaks(&mut self, errno: i32) {
        if !self.is_over() {
            let is_rst = errno == ECONNRESET;
            self.error = if is_rst && self.fin { EPIPE } else { errno };
            self.reset = true;
        }
    }
}

/// Both ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tcp {
    pub(crate) ends: [End; 2],
    /// Not of TCP: what is sent to an end that was torn down from outside is answered with a reset late, or never.
    pub(crate) answers_late: bool,
}

impl Tcp {
    fn both(&mut self, end: usize) -> (&mut End, &mut End) {
        let [first, second] = &mut self.ends;
        if end == 0 { (first, second) } else { (second, first) }
    }

    /// Sends one byte, or none.
    pub(crate) fn send(&mut self, end: usize, len: usize) -> Result<usize, i32> {
        let answers_late = self.answers_late;
        let (own, peer) = self.both(end);
        if own.error != 0 {
            return Err(core::mem::take(&mut own.error));
        }
        if own.write_shut || own.reset {
            return Err(EPIPE);
        }
        if len == 0 {
            return Ok(0);
        }
        if peer.closed || peer.reset {
            if peer.closed || !answers_late {
                own.breaks(ECONNRESET);
            }
        } else if peer.refuses {
            peer.breaks(ECONNRESET);
            own.breaks(ECONNRESET);
        } else if let Some(late) = &mut peer.late {
            *late += len;
        } else {
            peer.queue += len;
        }
        Ok(len)
    }

    /// Receives one byte; 0: the end.
    pub(crate) fn receive(&mut self, end: usize) -> Result<usize, i32> {
        let own = &mut self.ends[end];
        if own.queue > 0 {
            own.queue -= 1;
            return Ok(1);
        }
        match own.error {
            _ if own.fin => Ok(0),
            0 if own.read_shut || own.reset => Ok(0),
            0 => Err(EAGAIN),
            _ => Err(core::mem::take(&mut own.error)),
        }
    }

    /// `SO_ERROR`.
    pub(crate) fn take_error(&mut self, end: usize) -> i32 {
        core::mem::take(&mut self.ends[end].error)
    }

    /// RDHUP, HUP, ERR.
    pub(crate) fn poll(&self, end: usize) -> [bool; 3] {
        let own = &self.ends[end];
        let no_input = own.fin || own.read_shut || own.reset;
        [no_input, own.reset || (own.write_shut && no_input), own.error != 0]
    }

    pub(crate) fn shutdown(&mut self, end: usize, reading: bool, writing: bool) -> Result<(), i32> {
        self.begins_shutdown(end, reading, writing)?;
        self.knows_shutdown(end, reading, writing);
        Ok(())
    }

    /// Of a shutdown, what the peer finds. In TCP the rest comes with it.
    pub(crate) fn begins_shutdown(
        &mut self,
        end: usize,
        reading: bool,
        writing: bool,
    ) -> Result<(), i32> {
        let (own, peer) = self.both(end);
        if own.is_over() {
            return Err(ENOTCONN);
        }
        own.refuses |= (own.read_shut || reading) && (own.write_shut || writing);
        if writing && !own.write_shut {
            peer.fin |= !peer.reset;
        }
        Ok(())
    }

    /// The rest.
    pub(crate) fn knows_shutdown(&mut self, end: usize, reading: bool, writing: bool) {
        let own = &mut self.ends[end];
        own.read_shut |= reading;
        own.write_shut |= writing;
    }

    /// The last descriptor goes. `has_more`: something lies in the queue that is not counted there.
    pub(crate) fn close(&mut self, end: usize, has_more: bool) {
        let (own, peer) = self.both(end);
        if core::mem::replace(&mut own.closed, true) || own.is_over() {
            return;
        }
        if own.queue > 0 || has_more || own.linger_zero {
            peer.breaks(ECONNRESET);
        } else if !peer.reset {
            let is_answered = own.late.is_some_and(|late| late > 0) && !peer.is_over();
            peer.fin = true;
            if is_answered {
                (peer.error, peer.reset) = (EPIPE, true);
            }
        }
    }

    /// A reset from outside, or no answer.
    pub(crate) fn breaks(&mut self, end: usize, errno: i32) {
        if !self.ends[end].closed {
            self.ends[end].breaks(errno);
        }
    }

    /// FIN or RST has come.
    pub(crate) fn is_peer_gone(&self, end: usize) -> bool {
        self.ends[end].fin || self.ends[end].reset
    }
}
