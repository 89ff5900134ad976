//! The program that chooses the process of a datagram: classic BPF, which any user may attach.
//!
//! ```text
//!   A = destination QPN          word 4 of the datagram, without the byte before it
//!   A >= 0xFFFF00?               a question of ours: return its low bits
//!   A = slot of the QPN
//!   A == slot of a member?       return where its socket is in the group
//!   …
//!   return nowhere               the kernel takes any member, by the addresses
//! ```
//!
//! A compare for each member: some nanoseconds. A datagram that is too short for the load goes to
//! the first member.
//!
//! *Source*: Linux `net/core/sock_reuseport.c`, `Documentation/networking/filter.rst`.

use super::{Places, SLOT_MASK};

/// Destination QPNs from here on are no QPs: the low bits say for which place of the group a
/// question is.
pub(super) const FIRST_QUESTION: u32 = 0x00FF_FF00;

const QPN_AT: u32 = 4;
const QPN_MASK: u32 = 0x00FF_FFFF;
const NOWHERE: u32 = u32::MAX;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Returns A. Its flag has no name in the library.
const RETURN_A: u16 = libc::BPF_RET as u16 | 0x10;

/// The program for these members.
pub(super) fn choosing(places: &Places) -> Vec<libc::sock_filter> {
    let step = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    // Goes on with the next step, or skips so many.
    let unless = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
    let mut steps = vec![
        step(LOAD_WORD, QPN_AT),
        step(AND, QPN_MASK),
        unless(IF_AT_LEAST, FIRST_QUESTION, 2),
        step(AND, SLOT_MASK.into()),
        step(RETURN_A, 0),
        step(AND, SLOT_MASK.into()),
    ];
    for (slot, place) in places {
        steps.push(unless(IF_EQUAL, slot.0.into(), 1));
        steps.push(step(RETURN, (*place).into()));
    }
    steps.push(step(RETURN, NOWHERE));
    steps
}

#[cfg(test)]
mod tests {
    use super::super::Slot;
    use super::*;

    /// What the kernel would do.
    fn run(program: &[libc::sock_filter], datagram: &[u8]) -> u32 {
        let (mut a, mut at) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                LOAD_WORD => match datagram.get(step.k as usize..step.k as usize + 4) {
                    Some(word) => a = u32::from_be_bytes(word.try_into().unwrap()),
                    None => return 0,
                },
                AND => a &= step.k,
                IF_EQUAL | IF_AT_LEAST => {
                    let holds = if step.code == IF_EQUAL { a == step.k } else { a >= step.k };
                    at += usize::from(if holds { step.jt } else { step.jf });
                }
                RETURN => return step.k,
                RETURN_A => return a,
                code => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn a_datagram_goes_to_the_place_of_its_slot() {
        let places: Places = [(0, 2), (5, 0), (127, 1)].map(|(s, place)| (Slot(s), place)).into();
        let program = choosing(&places);
        let to =
            |qpn: [u8; 3]| run(&program, &[&[4, 0, 0xFF, 0xFF, 0xEE], &qpn[..], &[0; 8]].concat());
        assert_eq!(to([1, 2, 0x80]), 2, "the highest bit of the last byte is not the slot's");
        assert_eq!(to([0xFF, 0xFE, 0x05]), 0);
        assert_eq!(to([0, 0, 0xFF]), 1);
        assert_eq!(to([0, 0, 0x06]), NOWHERE);
        assert_eq!(to([0xFF, 0xFF, 0x06]), 6, "a question");
        assert_eq!(run(&program, &[0; 7]), 0, "too short");
    }
}
