//! What connections say and do by RDMA: WRITEs into receive buffers, and CDC messages about them.
//!
//! A WRITE names a key and an address, a CDC message a token. The CLC messages announced them, so
//! both lead to a connection: the token is in the receiver's message, and so is the buffer.
//! Of each side a [`Voice`] remembers what it said last, and a CDC message is judged by it: what a
//! cursor gained must have been written, and must have had room.

use sidestep_wire::cdc::{CdcMessage, Cursor, ProducerFlags, StateFlags};

use super::super::fields::Field;
use super::super::streams::Side;

/// A TCP connection that goes by SMC-R.
#[derive(Debug)]
pub(super) struct Talk {
    /// Its client and server, as in its figure.
    pub(super) name: String,
    /// Of client and server.
    pub(super) voices: [Voice; 2],
}

/// One side of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Voice {
    /// Bytes of its receive buffer.
    size: u64,
    last: Option<CdcMessage>,
    /// The last cursors that were in their rings.
    cursors: Cursors,
    /// Bytes of its life that it said to have written, and to have read.
    producer: u64,
    consumer: u64,
    /// Bytes that were written and not told yet, if that is known.
    written: Option<u64>,
}

/// Of a producer and a consumer.
#[derive(Debug, Clone, Copy, Default)]
struct Cursors {
    producer: Cursor,
    consumer: Cursor,
}

impl Voice {
    pub(super) fn new(size: usize) -> Self {
        Self {
            size: size as u64,
            last: None,
            cursors: Cursors::default(),
            producer: 0,
            consumer: 0,
            written: Some(0),
        }
    }

    pub(super) fn write(&mut self, len: u64) {
        self.written = self.written.map(|written| written.saturating_add(len));
    }

    /// Not everything that it said is in the capture.
    pub(super) fn forget(&mut self) {
        self.written = None;
    }
}

impl Talk {
    /// The rules that a CDC message from this side breaks.
    pub(super) fn judge(&mut self, from: Side, message: &CdcMessage) -> Vec<String> {
        let [mine, peer] = self.pair(from);
        if message.producer_flags.failover_validation {
            // What was not acknowledged is written again, under new numbers.
            mine.forget();
            return Vec::new();
        }
        let mut broken = Vec::new();
        let is_followed = mine.written.is_some();
        check_seqno(mine.last.as_ref(), message, is_followed, &mut broken);
        check_states(mine.last.as_ref(), message, &mut broken);
        mine.last = Some(*message);
        let outside = outside("producer", message.producer, peer.size)
            .or_else(|| outside("consumer", message.consumer, mine.size));
        if let Some(rule) = outside {
            mine.forget();
            broken.push(rule);
            return broken;
        }
        let produced = gain(mine.cursors.producer, message.producer, peer.size);
        let consumed = gain(mine.cursors.consumer, message.consumer, mine.size);
        check_producer(mine, peer, produced, &mut broken);
        check_consumer(mine, peer, consumed, &mut broken);
        mine.producer = mine.producer.saturating_add_signed(produced);
        mine.consumer = mine.consumer.saturating_add_signed(consumed);
        mine.cursors = Cursors { producer: message.producer, consumer: message.consumer };
        mine.written = Some(0);
        broken
    }

    /// The voice of this side, and that of the other.
    fn pair(&mut self, from: Side) -> [&mut Voice; 2] {
        let [client, server] = &mut self.voices;
        match from {
            Side::Client => [client, server],
            Side::Server => [server, client],
        }
    }
}

fn check_seqno(
    last: Option<&CdcMessage>,
    message: &CdcMessage,
    is_followed: bool,
    broken: &mut Vec<String>,
) {
    let due = last.map_or(1, |last| last.seqno.wrapping_add(1));
    if is_followed && message.seqno != due {
        let seqno = message.seqno;
        broken.push(format!("sequence number {seqno} where {due} was due (RFC 7609 §A.4)"));
    }
}

/// Whether a cursor is not in its ring.
fn outside(name: &str, cursor: Cursor, size: u64) -> Option<String> {
    let count = cursor.count;
    (u64::from(count) >= size)
        .then(|| format!("{name} count {count} in a buffer of {size} bytes (RFC 7609 §4.3)"))
}

fn check_producer(mine: &Voice, peer: &Voice, gain: i64, broken: &mut Vec<String>) {
    let Ok(gained) = u64::try_from(gain) else {
        broken.push(format!("the producer cursor goes back by {} (RFC 7609 §4.3)", -gain));
        return;
    };
    let waiting = (mine.producer + gained).saturating_sub(peer.consumer);
    if mine.written.is_some() && waiting > peer.size {
        broken.push(format!(
            "the producer cursor is {waiting} bytes before the peer's consumer cursor, in a buffer \
             of {} (RFC 7609 §4.5)",
            peer.size
        ));
    }
    if let Some(written) = mine.written.filter(|written| *written != gained) {
        broken.push(format!(
            "the producer cursor gained {gained} bytes, {written} were written (RFC 7609 §4.3)"
        ));
    }
}

fn check_consumer(mine: &Voice, peer: &Voice, gain: i64, broken: &mut Vec<String>) {
    let Ok(gained) = u64::try_from(gain) else {
        broken.push(format!("the consumer cursor goes back by {} (RFC 7609 §4.3)", -gain));
        return;
    };
    let unread = peer.producer.saturating_sub(mine.consumer);
    if mine.written.is_some() && peer.written.is_some() && gained > unread {
        broken.push(format!(
            "the consumer cursor gained {gained} bytes, {unread} were there to read (RFC 7609 §4.3)"
        ));
    }
}

/// What a side has ended stays ended.
fn check_states(last: Option<&CdcMessage>, message: &CdcMessage, broken: &mut Vec<String>) {
    let Some(last) = last else { return };
    let now = states(message.state_flags);
    for (letter, word) in states(last.state_flags) {
        if !now.contains(&(letter, word)) {
            broken.push(format!("takes back {letter}, {word} (RFC 7609 §4.8)"));
        }
    }
}

/// Bytes from one cursor to another; less than 0 if it goes back.
fn gain(from: Cursor, to: Cursor, size: u64) -> i64 {
    // No end is half of all laps ahead: that is a lap back.
    let laps = i64::from(to.wrap.wrapping_sub(from.wrap).cast_signed());
    let size = i64::try_from(size).unwrap_or(i64::MAX >> 16);
    laps * size + i64::from(to.count) - i64::from(from.count)
}

/// A CDC message in words.
pub(super) fn fields(message: &CdcMessage) -> Vec<Field> {
    let cursor = |it: Cursor| format!("{}, wrap {}", it.count, it.wrap);
    let mut fields =
        vec![("producer", cursor(message.producer)), ("consumer", cursor(message.consumer))];
    let flags: Vec<_> = producer_words(message.producer_flags)
        .into_iter()
        .chain(states(message.state_flags))
        .map(|(letter, word)| format!("{letter} {word}"))
        .collect();
    if !flags.is_empty() {
        fields.push(("flags", flags.join(", ")));
    }
    fields
}

type Flag = (char, &'static str);

fn producer_words(flags: ProducerFlags) -> Vec<Flag> {
    set([
        (flags.writer_blocked, ('B', "writer blocked")),
        (flags.urgent_pending, ('P', "urgent data pending")),
        (flags.urgent_present, ('U', "urgent data present")),
        (flags.cursor_update_requested, ('R', "consumer cursor update requested")),
        (flags.failover_validation, ('F', "failover validation")),
    ])
}

fn states(flags: StateFlags) -> Vec<Flag> {
    set([
        (flags.done_writing, ('D', "done writing")),
        (flags.closed, ('C', "connection closed")),
        (flags.abnormal_close, ('A', "abnormal close")),
    ])
}

fn set<const N: usize>(flags: [(bool, Flag); N]) -> Vec<Flag> {
    flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect()
}
