//! A connection of SMC-R whose peer says anything in its CDC messages: what is readable lies in the
//! ring, and what is written lies in the peer's.
//!
//! `cargo xtask fuzz connection`

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sidestep_proto::connection::Connection;
use sidestep_wire::AlertToken;
use sidestep_wire::cdc::CdcMessage;

const LEN: u32 = 1 << 14;

#[derive(Arbitrary, Debug)]
enum Step {
    Hear([u8; 26]),
    Queue(u16),
    QueueUrgent(u16),
    Read(u16),
    Acknowledge,
    ChangeLink,
    Shut,
    Close,
    Abort,
}

fuzz_target!(|steps: Vec<Step>| {
    let mut connection = Connection::new(AlertToken(1), LEN, LEN);
    let mut receipts = Vec::new();
    for step in steps {
        match step {
            Step::Hear(bytes) => {
                let mut whole = [0; 44];
                whole[..26].copy_from_slice(&bytes);
                [whole[0], whole[1]] = [0xFE, 44];
                let message = CdcMessage::parse(&whole).expect("any cursors and flags");
                let _ = connection.handle(&message);
            }
            Step::Queue(n) => _ = connection.queue(n.into()),
            Step::QueueUrgent(n) => _ = connection.queue_urgent(n.into()),
            Step::Read(most) => connection.consume(connection.readable().min(most.into())),
            Step::Acknowledge => {
                receipts.drain(..).for_each(|receipt| connection.completed(receipt))
            }
            Step::ChangeLink => {
                receipts.clear();
                connection.change_link();
            }
            Step::Shut => connection.shut(),
            Step::Close => connection.close(),
            Step::Abort => connection.abort(),
        }
        while let Some(transmit) = connection.poll_transmit() {
            for write in transmit.writes.into_iter().flatten() {
                assert!(write.len > 0 && write.to + write.len <= LEN);
            }
            receipts.push(transmit.receipt);
        }
        assert!(connection.readable() <= LEN.into());
    }
});
