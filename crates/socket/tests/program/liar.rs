//! A peer that lies in every word of its memory.
//!
//! What one end reads of the other lies in that one's record: cursors, turns, flags, an urgent mark, who
//! sleeps. Here all of it is overwritten, word by word and at random, between calls of the honest end.
//! *Law*: each call returns, with an answer that Linux has for it, and brings no more bytes than it has
//! room for; the honest end can be closed, and another connection of the same two processes works.

use crate::call::{self, Returned};
use crate::operation::{Call, calls};
use crate::pair::{Pair, Stage};
use crate::seeds::{named_or, run};
use crate::twins::{Program, Waits};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseError;
use sidestep_device::slab::Record;
use sidestep_socket::table::descriptors;
use std::sync::atomic::Ordering::SeqCst;

/// No list takes longer on a busy machine, in seconds: a call that does not return ends the process.
const PATIENCE_S: u32 = 120;

/// The honest end.
const HONEST: usize = 0;
const LIAR: usize = 1;

/// A word of a record.
#[derive(Clone, Copy, Debug)]
enum Word {
    Producer,
    Consumer,
    Turns,
    Permit,
    Urgent,
    Cpu,
    Flags,
    Closes,
    ReadArm,
    WriteArm,
    NapArm,
    Channels,
    WriteWanted,
}

const WORDS: [Word; 13] = [
    Word::Producer,
    Word::Consumer,
    Word::Turns,
    Word::Permit,
    Word::Urgent,
    Word::Cpu,
    Word::Flags,
    Word::Closes,
    Word::ReadArm,
    Word::WriteArm,
    Word::NapArm,
    Word::Channels,
    Word::WriteWanted,
];

impl Word {
    /// Writes it, or adds to what is there.
    fn write(self, record: &Record, value: u64) {
        let (sending, waiting) = (&record.sending, &record.waiting);
        let short = value as u32;
        match self {
            Self::Producer => sending.producer.word().store(value, SeqCst),
            Self::Consumer => record.receiving.consumer.word().store(value, SeqCst),
            Self::Turns => sending.way.turn(short % 8, value),
            Self::Permit => _ = record.receiving.permit.grant(short),
            Self::Urgent => sending.urgent.store(value, SeqCst),
            Self::Cpu => sending.cpu.store(short, SeqCst),
            Self::Flags => sending.flags.store(short, SeqCst),
            Self::Closes => sending.closes.store(short, SeqCst),
            Self::ReadArm => waiting.read_arm.ask(short.max(1)),
            Self::WriteArm => waiting.write_arm.ask(short.max(1)),
            Self::NapArm => waiting.nap_arm.ask(short.max(1)),
            Self::Channels => waiting.channels.store(short, SeqCst),
            Self::WriteWanted => waiting.write_wanted.store(short, SeqCst),
        }
    }

    /// What it is about: a value beside this one is nearly true.
    fn truth(self, record: &Record) -> u64 {
        match self {
            Self::Consumer => record.receiving.consumer.position(),
            _ => record.sending.producer.position(),
        }
    }
}

/// What is written: near the truth, near the ends of the numbers, or anything.
#[derive(Clone, Copy, Debug)]
enum Value {
    Beside(i64),
    Number(u64),
}

fn value() -> impl Strategy<Value = Value> {
    let ring = crate::pair::RING as i64;
    prop_oneof![
        select(vec![-1, 0, 1, 2, 7, ring - 1, ring, ring + 1, 2 * ring, -ring])
            .prop_map(Value::Beside),
        (0..1u64 << 9).prop_map(Value::Number),
        select(vec![u64::MAX, u64::MAX - 1, 1 << 63, 1 << 32, u64::from(u32::MAX)])
            .prop_map(Value::Number),
        any::<u64>().prop_map(Value::Number),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Lie(Word, Value),
    Call(Call),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lie = (select(&WORDS[..]), value()).prop_map(|(word, value)| Step::Lie(word, value));
    proptest::collection::vec(prop_oneof![1 => lie, 2 => calls().prop_map(Step::Call)], 1..40)
}

fn lie(pair: &Pair, word: Word, value: Value) {
    let Some(fd) = pair.fd(LIAR) else { return };
    let Some(sock) = descriptors::object(fd) else { return };
    let Some(record) = sock.conn().map(|conn| conn.mine) else { return };
    word.write(
        record,
        match value {
            Value::Beside(by) => word.truth(record).wrapping_add_signed(by),
            Value::Number(number) => number,
        },
    );
}

/// What no call answers, whatever the peer says.
fn complaint(call: &Call, returned: &Returned) -> Option<String> {
    const ERRORS: [i32; 9] = [
        libc::EAGAIN,
        libc::EPIPE,
        libc::ECONNRESET,
        libc::ENOTCONN,
        libc::EINVAL,
        libc::EEXIST,
        libc::ENOENT,
        libc::ETIMEDOUT,
        libc::EIO,
    ];
    // The value of an option may be negative.
    let errno = if matches!(call, Call::Option(..)) { 0 } else { -returned.value };
    if errno > 0 {
        let is_known = ERRORS.iter().any(|known| i64::from(*known) == errno);
        return (!is_known).then(|| format!("{call:?} -> {returned:?}"));
    }
    let room = match call {
        Call::Send { len, .. }
        | Call::SendFile { len }
        | Call::SpliceIn { len }
        | Call::Receive { len, .. }
        | Call::SpliceOut { len } => *len as i64,
        _ => return None,
    };
    (returned.value > room).then(|| format!("{call:?} -> {returned:?}"))
}

fn play(stage: &Stage, steps: &[Step]) -> Result<(), TestCaseError> {
    // SAFETY: sets a timer that ends the process.
    unsafe { libc::alarm(PATIENCE_S) };
    let pair = stage.moved();
    let mut program = Program::new(pair, Waits::Never);
    for step in steps {
        match step {
            Step::Lie(word, value) => lie(&program.pair, *word, *value),
            Step::Call(Call::Close) => {}
            Step::Call(call) => {
                let Some(returned) = program.play(HONEST, call, 0) else { continue };
                if let Some(complaint) = complaint(call, &returned) {
                    return Err(TestCaseError::fail(complaint));
                }
            }
        }
    }
    program.pair.close(HONEST);
    drop(program);
    // Of the same two processes.
    let next = stage.moved();
    let [client, server] = next.fds();
    prop_assert_eq!(call::send(client, b"honest", &[], 0).value, 6);
    prop_assert_eq!(call::receive(server, 8, &[], 0).bytes, b"honest".to_vec());
    Ok(())
}

#[test]
fn no_word_of_a_peer_makes_a_call_fail_in_another_way_than_tcps() {
    let stage = Stage::enter();
    for seed in named_or(0..4) {
        run(seed, steps(), |steps| play(&stage, &steps));
    }
    // SAFETY: no memory.
    unsafe { libc::alarm(0) };
}
