//! Two connections and a link between them, with the bytes in rings as hardware would put them
//! there.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec::Vec;

const TOKENS: [AlertToken; 2] = [AlertToken(0xA), AlertToken(0xB)];

/// What is on its way: bytes that were written, then the message.
struct Sent {
    writes: Vec<(usize, Vec<u8>)>,
    message: CdcMessage,
    receipt: Receipt,
}

/// A host: its end, what its program has sent and received, its RMBE.
struct Host {
    connection: Connection,
    sent: Vec<u8>,
    received: Vec<u8>,
    rmbe: Vec<u8>,
    /// To the other host.
    under_way: VecDeque<Sent>,
}

struct Pair([Host; 2]);

impl Pair {
    fn new(len: u32) -> Self {
        Self([1, 0].map(|peer| Host {
            connection: Connection::new(TOKENS[peer], len, len),
            sent: Vec::new(),
            received: Vec::new(),
            rmbe: std::vec![0; len as usize],
            under_way: VecDeque::new(),
        }))
    }

    fn at(&mut self, host: usize) -> &mut Connection {
        &mut self.0[host].connection
    }

    /// The program sends bytes that tell their positions.
    fn queue(&mut self, host: usize, n: u64) {
        self.at(host).queue(n).unwrap();
        self.fill(host, n);
    }

    fn queue_urgent(&mut self, host: usize, n: u64) {
        self.at(host).queue_urgent(n).unwrap();
        self.fill(host, n);
    }

    fn fill(&mut self, host: usize, n: u64) {
        let sent = &mut self.0[host].sent;
        let begin = sent.len() as u64;
        sent.extend((begin..begin + n).map(|at| (at * 7 + at / 251 + host as u64) as u8));
    }

    /// Takes all that a host wants to send; the messages.
    fn post(&mut self, host: usize) -> Vec<CdcMessage> {
        let mut messages = Vec::new();
        while let Some(Transmit { writes, message, receipt }) = self.at(host).poll_transmit() {
            let host = &mut self.0[host];
            let bytes = |write: Write| {
                let from = write.from as usize;
                (write.to as usize, host.sent[from..from + write.len as usize].to_vec())
            };
            let writes = writes.into_iter().flatten().map(bytes).collect();
            host.under_way.push_back(Sent { writes, message, receipt });
            messages.push(message);
        }
        messages
    }

    /// The next that is on its way arrives, and if `is_acknowledged` its sender knows it.
    fn deliver(&mut self, from: usize, is_acknowledged: bool) -> Option<Result<News, Misbehaved>> {
        let Sent { writes, message, receipt } = self.0[from].under_way.pop_front()?;
        let to = &mut self.0[1 - from];
        for (at, bytes) in writes {
            to.rmbe[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        assert_eq!(message.alert_token, TOKENS[1 - from]);
        let news = to.connection.handle(&message);
        if is_acknowledged {
            self.at(from).completed(receipt);
        }
        Some(news)
    }

    /// The program reads up to so many bytes.
    fn read(&mut self, host: usize, most: u64) {
        let host = &mut self.0[host];
        let n = host.connection.readable().min(most);
        for at in host.connection.read_position()..host.connection.read_position() + n {
            host.received.push(host.rmbe[at as usize % host.rmbe.len()]);
        }
        host.connection.consume(n);
    }

    /// One message of a host, which is the only one.
    fn one(&mut self, from: usize) -> (CdcMessage, News) {
        let messages = self.post(from);
        assert_eq!(messages.len(), 1, "{messages:?}");
        (messages[0], self.deliver(from, true).unwrap().unwrap())
    }

    fn is_silent(&mut self, host: usize) -> bool {
        self.post(host).is_empty()
    }

    fn states(&self) -> [State; 2] {
        [0, 1].map(|host| self.0[host].connection.state())
    }
}

fn at(wrap: u16, count: u32) -> Cursor {
    Cursor { wrap, count }
}

fn flags(of: &CdcMessage) -> (bool, bool, bool) {
    let ProducerFlags { writer_blocked, urgent_pending, urgent_present, .. } = of.producer_flags;
    (writer_blocked, urgent_pending, urgent_present)
}

const NONE: (bool, bool, bool) = (false, false, false);

// RFC 7609 §4.7. Its cursors begin behind an eye catcher of 4 bytes, ours at 0.

#[test]
fn scenario_1_send_flow_window_size_unconstrained() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 1000);
    let (message, news) = pair.one(0);
    assert_eq!((message.seqno, message.producer), (1, at(0, 1000)));
    assert_eq!(news, News { readable: true, ..News::default() });
    pair.read(1, 10_000);
    assert!(pair.is_silent(1), "the window is more than half open");
    assert_eq!(pair.0[1].received, pair.0[0].sent);
}

#[test]
fn scenario_2_send_receive_flow_window_size_unconstrained() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 1000);
    pair.one(0);
    pair.read(1, 10_000);
    pair.queue(1, 500);
    let (message, news) = pair.one(1);
    assert_eq!((message.producer, message.consumer), (at(0, 500), at(0, 1000)));
    assert!(news.readable && news.writable, "the answer says what was read as well");
}

#[test]
fn scenario_3_send_flow_window_size_constrained() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 3000);
    pair.one(0);
    pair.read(1, 10_000);
    assert!(pair.is_silent(1), "7000 bytes are open");
    pair.queue(0, 4000);
    pair.one(0);
    pair.read(1, 10_000);
    let (message, news) = pair.one(1);
    assert_eq!((message.consumer, news.writable), (at(0, 7000), true), "3000 were");
}

#[test]
fn a_window_that_would_gain_less_than_a_tenth_is_not_told() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 7000);
    pair.one(0);
    pair.read(1, 999);
    assert!(pair.is_silent(1));
    pair.read(1, 1);
    assert_eq!(pair.one(1).0.consumer, at(0, 1000));
}

#[test]
fn scenario_4_large_send_flow_control_full_window_size_writes() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 1000);
    pair.one(0);
    pair.read(1, 1000);
    pair.queue(1, 1);
    pair.one(1);

    pair.queue(0, 20_008);
    let transmit = pair.at(0).clone().poll_transmit().unwrap();
    let write = |from, to, len| Some(Write { from, to, len });
    assert_eq!(transmit.writes, [write(1000, 1000, 9000), write(10_000, 0, 1000)]);
    for wrap in 1..=2 {
        let (message, _) = pair.one(0);
        assert_eq!((message.producer, flags(&message).0), (at(wrap, 1000), true), "blocked");
        assert!(pair.is_silent(0), "no room");
        pair.read(1, 10_000);
        assert_eq!(pair.one(1).0.consumer, at(wrap, 1000));
    }
    let (message, _) = pair.one(0);
    assert_eq!((message.producer, flags(&message)), (at(2, 1008), NONE));
    pair.read(1, 8);
    assert_eq!(pair.0[1].received, pair.0[0].sent);
}

#[test]
fn a_blocked_writer_is_told_of_every_byte() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 10_001);
    pair.one(0);
    pair.read(1, 1);
    assert_eq!(pair.one(1).0.consumer, at(0, 1));
}

#[test]
fn scenario_5_send_flow_urgent_data_window_size_open() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 1000);
    pair.one(0);
    pair.read(1, 1000);
    pair.queue_urgent(0, 500);
    pair.queue(0, 1000);
    let (message, news) = pair.one(0);
    assert_eq!((message.producer, flags(&message)), (at(0, 1500), (false, true, true)));
    assert!(news.urgent && pair.at(1).urgent_byte() == Some(1499));
    assert!(pair.is_silent(0), "nothing follows before it is read");
    pair.read(1, 499);
    assert!(pair.is_silent(1));
    pair.read(1, 1);
    let (message, _) = pair.one(1);
    assert_eq!(message.consumer, at(0, 1500), "whatever the window");
    let (message, _) = pair.one(0);
    assert_eq!((message.producer, flags(&message)), (at(0, 2500), NONE));
}

#[test]
fn scenario_6_send_flow_urgent_data_window_size_closed() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 10_000);
    pair.one(0);
    pair.queue_urgent(0, 500);
    pair.queue(0, 1000);
    let (message, news) = pair.one(0);
    assert_eq!((message.producer, flags(&message)), (at(1, 0), (true, true, false)));
    assert!(news.urgent && pair.at(1).urgent_is_pending());
    pair.read(1, 10_000);
    pair.one(1);
    let (message, _) = pair.one(0);
    assert_eq!((message.producer, flags(&message)), (at(1, 500), (false, true, true)));
    pair.read(1, 500);
    assert_eq!(pair.one(1).0.consumer, at(1, 500));
    let (message, _) = pair.one(0);
    assert_eq!((message.producer, flags(&message)), (at(1, 1500), NONE));
}

#[test]
fn an_urgent_byte_before_another_is_ordinary_unless_it_was_written() {
    let mut pair = Pair::new(10_000);
    pair.queue_urgent(0, 5);
    pair.queue_urgent(0, 5);
    assert_eq!(pair.one(0).0.producer, at(0, 10));
    pair.queue_urgent(0, 5);
    assert!(pair.is_silent(0));
    pair.read(1, 10);
    pair.one(1);
    let (message, _) = pair.one(0);
    assert_eq!((message.producer, flags(&message)), (at(0, 15), (false, true, true)));
}

#[test]
fn an_urgent_byte_that_is_written_again_gives_way_to_a_newer_one() {
    let mut pair = Pair::new(10_000);
    pair.queue_urgent(0, 1);
    pair.post(0);
    pair.queue_urgent(0, 2);
    cut(&mut pair, [0, 0]);
    pair.queue_urgent(0, 2);
    pair.queue(0, 4);
    pair.post(0);
    while pair.deliver(0, true).is_some() {}
    assert_eq!(pair.at(1).urgent_byte(), Some(4));
    pair.read(1, 5);
    pair.post(1);
    while pair.deliver(1, true).is_some() {}
    assert_eq!(pair.one(0).0.producer, at(0, 9));
}

#[test]
fn an_update_is_sent_when_it_was_requested() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 10);
    pair.post(0);
    let message = &mut pair.0[0].under_way[0].message;
    message.producer_flags.cursor_update_requested = true;
    pair.deliver(0, true).unwrap().unwrap();
    assert!(pair.is_silent(1), "nothing was read");
    pair.read(1, 3);
    assert_eq!(pair.one(1).0.consumer, at(0, 3));
    pair.read(1, 3);
    assert!(pair.is_silent(1), "once");
}

// RFC 7609 §4.8.

#[test]
fn normal_termination_active_close_then_passive_close() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 100);
    pair.at(0).close();
    let (message, news) = pair.one(0);
    assert!(message.state_flags.closed && message.producer == at(0, 100) && news.readable);
    assert_eq!(pair.states(), [State::PeerCloseWait1, State::AppCloseWait1]);
    assert_eq!(pair.at(1).queue(1), Err(SendError::PeerClosed));
    assert_eq!(pair.at(0).queue(1), Err(SendError::Shut));
    pair.read(1, 100);
    assert!(pair.at(1).has_ended() && pair.is_silent(1));
    pair.at(1).close();
    pair.one(1);
    assert_eq!(pair.states(), [State::Closed; 2]);
    assert_eq!(pair.0[1].received, pair.0[0].sent);
}

#[test]
fn normal_termination_each_direction_by_itself() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 100);
    pair.at(0).shut();
    let (message, _) = pair.one(0);
    assert!(message.state_flags.done_writing && !message.state_flags.closed);
    pair.queue(1, 200);
    pair.at(1).shut();
    pair.one(1);
    assert_eq!(pair.states(), [State::PeerCloseWait2, State::AppCloseWait2]);
    pair.read(0, 200);
    pair.read(1, 100);
    pair.at(1).close();
    pair.one(1);
    assert_eq!(pair.states(), [State::AppFinCloseWait, State::PeerFinCloseWait]);
    pair.at(0).close();
    let (message, _) = pair.one(0);
    assert!(message.state_flags.done_writing && message.state_flags.closed, "it stays said");
    assert_eq!(pair.states(), [State::Closed; 2]);
}

#[test]
fn normal_termination_both_close_at_once() {
    let mut pair = Pair::new(10_000);
    for host in [0, 1] {
        pair.at(host).close();
        pair.post(host);
    }
    assert_eq!(pair.states(), [State::PeerCloseWait1; 2]);
    for host in [0, 1] {
        pair.deliver(host, true).unwrap().unwrap();
    }
    assert_eq!(pair.states(), [State::Closed; 2]);
    assert!(pair.is_silent(0) && pair.is_silent(1));
}

#[test]
fn a_close_waits_for_room_for_the_bytes_before_it() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 10_001);
    pair.at(0).close();
    assert!(!pair.one(0).0.state_flags.closed);
    pair.read(1, 10_000);
    pair.one(1);
    assert!(pair.one(0).0.state_flags.closed);
}

#[test]
fn abnormal_termination_active_and_passive_abort() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 20_000);
    pair.one(0);
    pair.at(0).abort();
    let (message, news) = pair.one(0);
    assert!(message.state_flags.abnormal_close && news.aborted);
    assert_eq!(pair.states(), [State::PeerAbortWait, State::ProcessAbort]);
    assert_eq!(pair.at(1).queue(1), Err(SendError::Aborted));
    let (message, _) = pair.one(1);
    assert!(message.state_flags.abnormal_close, "the answer");
    assert_eq!(pair.states(), [State::Closed; 2]);
    assert!(pair.is_silent(0) && pair.is_silent(1));
}

#[test]
fn abnormal_termination_both_abort_at_once() {
    let mut pair = Pair::new(10_000);
    for host in [0, 1] {
        pair.at(host).abort();
        pair.post(host);
    }
    for host in [0, 1] {
        pair.deliver(host, true).unwrap().unwrap();
    }
    assert_eq!(pair.states(), [State::Closed; 2]);
    assert!(pair.is_silent(0) && pair.is_silent(1));
}

#[test]
fn a_close_with_something_unread_is_an_abort() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 1);
    pair.one(0);
    pair.at(1).close();
    assert!(pair.one(1).0.state_flags.abnormal_close);
}

#[test]
fn bytes_that_a_closed_peer_would_not_read_are_an_abort() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 10_001);
    pair.one(0);
    pair.read(1, 10_000);
    pair.at(1).close();
    let (message, _) = pair.one(1);
    assert!(message.state_flags.closed);
    assert!(pair.one(0).0.state_flags.abnormal_close);
    assert_eq!(pair.states(), [State::Closed; 2]);
}

// RFC 7609 §4.6.

#[test]
fn failover_repeats_what_nobody_knows_to_have_arrived() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 1000);
    pair.one(0);
    // One arrives and is not acknowledged, one is lost.
    pair.queue(0, 500);
    pair.post(0);
    pair.deliver(0, false).unwrap().unwrap();
    pair.read(1, 1200);
    pair.queue(0, 500);
    pair.at(0).close();
    pair.post(0);
    pair.0[0].under_way.clear();

    pair.at(0).change_link();
    let messages = pair.post(0);
    assert_eq!(messages.len(), 2);
    assert!(messages[0].producer_flags.failover_validation && messages[0].seqno == 1);
    assert_eq!((messages[1].seqno, messages[1].producer), (4, at(0, 2000)));
    assert!(messages[1].state_flags.closed);
    assert!(pair.deliver(0, true).unwrap().is_ok());
    pair.deliver(0, true).unwrap().unwrap();
    pair.read(1, 1000);
    assert_eq!(pair.0[1].received, pair.0[0].sent);
}

#[test]
fn failover_of_a_quiet_connection_validates_only() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 1000);
    pair.one(0);
    pair.at(0).change_link();
    let messages = pair.post(0);
    assert!(messages.len() == 1 && messages[0].producer_flags.failover_validation);
}

#[test]
fn failover_finds_bytes_that_were_acknowledged_and_lost() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 1000);
    pair.post(0);
    let lost = pair.0[0].under_way.pop_front().unwrap();
    pair.at(0).completed(lost.receipt);
    pair.at(0).change_link();
    pair.post(0);
    let lost = Misbehaved::DataLost { claimed: 1, last: 0 };
    assert_eq!(pair.deliver(0, true), Some(Err(lost)));
}

/// The last word is acknowledged by the adapter and lost behind it, too.
#[test]
fn failover_validates_behind_the_last_word() {
    let mut pair = Pair::new(10_000);
    pair.at(0).close();
    pair.post(0);
    let lost = pair.0[0].under_way.pop_front().unwrap();
    pair.at(0).completed(lost.receipt);
    assert!(pair.is_silent(0));
    pair.at(0).change_link();
    pair.post(0);
    let lost = Misbehaved::DataLost { claimed: 1, last: 0 };
    assert_eq!(pair.deliver(0, true), Some(Err(lost)));
    assert!(pair.is_silent(0), "nothing else is left to say");
}

// Claims.

/// Writes of before a failover may come late: nothing else is where they go.
#[test]
fn failover_is_told_of_no_room_before_the_old_link_is_done() {
    let mut pair = Pair::new(100);
    pair.queue(0, 150);
    pair.post(0);
    pair.deliver(0, true);
    pair.at(1).hold_window(true);
    pair.read(1, 100);
    assert!(pair.is_silent(1));
    // What it says for another reason tells nothing of it either.
    pair.queue(1, 5);
    let (message, news) = pair.one(1);
    assert_eq!((message.consumer, news.writable), (at(0, 0), false));
    assert!(pair.is_silent(0));
    pair.at(1).hold_window(false);
    let (message, news) = pair.one(1);
    assert_eq!((message.consumer, news.writable), (at(1, 0), true));
}

#[test]
fn impossible_cursors_change_nothing() {
    let mut pair = Pair::new(10_000);
    pair.queue(0, 1000);
    pair.one(0);
    let sound = pair.at(0).clone().abortion().message;
    let wrong = [
        CdcMessage { producer: at(0, 10_000), ..sound },
        CdcMessage { producer: at(1, 1), ..sound },
        CdcMessage { producer: at(7, 0), ..sound },
        CdcMessage { consumer: at(0, 1), ..sound },
        CdcMessage { consumer: at(1, 0), ..sound },
    ];
    for message in wrong {
        let before = pair.at(1).clone();
        assert!(pair.at(1).handle(&message).is_err(), "{message:?}");
        assert_eq!((pair.at(1).readable(), pair.at(1).state()), (before.readable(), State::Active));
    }
    let old = CdcMessage { seqno: 0, ..sound };
    assert_eq!(pair.at(1).handle(&old), Ok(News::default()), "overtaken");
}

#[derive(Clone, Debug)]
enum Step {
    Queue(usize, u64),
    Urgent(usize, u64),
    Read(usize, u64),
    Post(usize),
    Deliver(usize, bool),
    /// Another process goes on with this end, if it is at rest.
    Resume(usize),
    /// The link fails: this many of what is under way from either host arrive still.
    Cut(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let host = || 0usize..2;
    let step = prop_oneof![
        4 => (host(), 1u64..40_000).prop_map(|(host, n)| Step::Queue(host, n)),
        1 => (host(), 1u64..2000).prop_map(|(host, n)| Step::Urgent(host, n)),
        6 => (host(), 1u64..30_000).prop_map(|(host, n)| Step::Read(host, n)),
        6 => host().prop_map(Step::Post),
        6 => (host(), any::<bool>()).prop_map(|(host, known)| Step::Deliver(host, known)),
        2 => host().prop_map(Step::Resume),
        1 => (0usize..4, 0usize..4).prop_map(|(a, b)| Step::Cut(a, b)),
    ];
    prop::collection::vec(step, 0..120)
}

fn cut(pair: &mut Pair, arrive: [usize; 2]) {
    for (host, arrive) in arrive.into_iter().enumerate() {
        for _ in 0..arrive {
            pair.deliver(host, false).map(Result::unwrap);
        }
        pair.0[host].under_way.clear();
    }
    (0..2).for_each(|host| pair.at(host).change_link());
}

/// Until nothing moves any more; all is read.
fn settle(pair: &mut Pair) -> Result<(), TestCaseError> {
    for _ in 0..1000 {
        for host in 0..2 {
            pair.post(host);
            while let Some(news) = pair.deliver(host, true) {
                prop_assert!(news.is_ok(), "{:?}", news);
            }
            pair.read(1 - host, u64::MAX);
        }
        (0..2).for_each(|host| _ = pair.post(host));
        if pair.0.iter().all(|host| host.under_way.is_empty()) {
            return Ok(());
        }
    }
    Err(TestCaseError::fail("it goes on for ever"))
}

#[test]
fn no_connection_is_resumed_that_could_not_be() {
    let mut pair = Pair::new(1 << 14);
    pair.queue(0, 20_000);
    pair.post(0);
    assert_eq!(pair.at(0).at_rest(), None, "what it has written may not have arrived");
    pair.deliver(0, true).unwrap().unwrap();
    let rest = pair.at(0).at_rest().unwrap();
    let planted: [fn(&mut AtRest); 9] = [
        |it| it.lens[0] = 0,
        |it| it.written = it.furthest + 1,
        |it| it.furthest = it.queued + 1,
        |it| it.consumed_by_peer = it.written + 1,
        |it| it.lens[1] = 1 << 13,
        |it| it.told = it.consumed + 1,
        |it| it.produced = it.told + u64::from(it.lens[0]) + 1,
        |it| it.urgent_in = Some(it.produced),
        |it| (it.queued, it.urgent_out[0]) = (u64::MAX, Some(u64::MAX)),
    ];
    for (nth, plant) in planted.into_iter().enumerate() {
        let mut changed = rest;
        plant(&mut changed);
        assert!(Connection::resume(&changed).is_none(), "{nth}: {changed:?}");
    }
    assert!(Connection::resume(&rest).is_some());
}

proptest! {
    /// Whatever is sent, read, delayed and lost with links: all bytes come once and in order, and
    /// when nothing moves any more nothing is left.
    #[test]
    fn every_byte_once_and_in_order(steps in steps(), shift in 14u32..17) {
        let mut pair = Pair::new(1 << shift);
        // An acknowledgement is for all before it; behind one that is missing there is none.
        let mut acknowledged = [true; 2];
        for step in steps {
            match step {
                Step::Queue(host, n) => pair.queue(host, n),
                Step::Urgent(host, n) => pair.queue_urgent(host, n),
                Step::Read(host, most) => pair.read(host, most),
                Step::Post(host) => _ = pair.post(host),
                Step::Deliver(host, known) => {
                    acknowledged[host] &= known;
                    if let Some(news) = pair.deliver(host, acknowledged[host]) {
                        prop_assert!(news.is_ok(), "{:?}", news);
                    }
                }
                Step::Resume(host) => {
                    if let Some(rest) = pair.at(host).at_rest() {
                        let resumed = Connection::resume(&rest);
                        prop_assert_eq!(resumed.as_ref().and_then(Connection::at_rest), Some(rest));
                        *pair.at(host) = resumed.unwrap();
                    }
                }
                Step::Cut(a, b) => {
                    cut(&mut pair, [a, b]);
                    acknowledged = [true; 2];
                }
            }
        }
        settle(&mut pair)?;
        for host in 0..2 {
            prop_assert_eq!(&pair.0[1 - host].received, &pair.0[host].sent);
            pair.at(host).close();
        }
        settle(&mut pair)?;
        prop_assert_eq!(pair.states(), [State::Closed; 2]);
    }

    /// A peer may say anything: nothing panics, and what is readable lies in the ring.
    #[test]
    fn a_stranger_moves_nothing_out_of_the_ring(
        messages in prop::collection::vec(
            (any::<u16>(), any::<[u16; 2]>(), any::<[u32; 2]>(), any::<[u8; 2]>()), 0..40,
        ),
    ) {
        let mut pair = Pair::new(1 << 14);
        pair.queue(0, 20_000);
        for (seqno, wraps, counts, bits) in messages {
            pair.post(0);
            let [producer, consumer] =
                [0, 1].map(|i| at(wraps[i] % 3, counts[i] % (1 << 14) * u32::from(counts[i] % 5 != 0)));
            let message = CdcMessage {
                seqno: seqno % 64,
                alert_token: TOKENS[0],
                producer,
                consumer,
                producer_flags: ProducerFlags {
                    writer_blocked: bits[0] & 1 != 0,
                    urgent_pending: bits[0] & 2 != 0,
                    urgent_present: bits[0] & 4 != 0,
                    cursor_update_requested: bits[0] & 8 != 0,
                    failover_validation: bits[0] & 0x30 == 0x30,
                },
                state_flags: StateFlags {
                    done_writing: bits[1] & 3 == 3,
                    closed: bits[1] & 28 == 28,
                    abnormal_close: bits[1] & 0xE0 == 0xE0,
                },
            };
            let _ = pair.at(0).handle(&message);
            prop_assert!(pair.at(0).readable() <= 1 << 14);
            pair.read(0, 1000);
        }
    }
}
