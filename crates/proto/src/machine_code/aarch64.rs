//! AArch64: instructions of four bytes, `svc #0` with the number in `x8`.
//!
//! The last instruction before the call that writes `x8` says what the number is, if the
//! way from there to the call is straight.
//!
//! *Source*: Arm Architecture Reference Manual, C4.1.

use super::call::{Number, Numbers, SocketCall};

const SVC: u32 = 0xd400_0001;

/// Instructions between the load of the number and the call.
const LOAD_TO_CALL_MAX: usize = 16;

/// Calls that move bytes, wait for them or set options. Those that make a socket or ask
/// about one do no harm: a socket that libc has not made is none of ours.
const ON_SOCKETS: &Numbers = &[
    (21, "epoll_ctl"),
    (22, "epoll_pwait"),
    (63, "read"),
    (64, "write"),
    (65, "readv"),
    (66, "writev"),
    (71, "sendfile"),
    (72, "pselect6"),
    (73, "ppoll"),
    (76, "splice"),
    (206, "sendto"),
    (207, "recvfrom"),
    (208, "setsockopt"),
    (210, "shutdown"),
    (211, "sendmsg"),
    (212, "recvmsg"),
    (243, "recvmmsg"),
    (269, "sendmmsg"),
    (425, "io_uring_setup"),
    (426, "io_uring_enter"),
    (441, "epoll_pwait2"),
];

pub(super) fn first_socket_call(code: &[u8]) -> Option<SocketCall> {
    let (words, _) = code.as_chunks();
    let is_call = |(_, word): &(usize, &[u8; 4])| u32::from_le_bytes(**word) == SVC;
    words.iter().enumerate().filter(is_call).find_map(|(index, _)| {
        let before = &words[index.saturating_sub(LOAD_TO_CALL_MAX)..index];
        let name = number(before)?.name(ON_SOCKETS)?;
        Some(SocketCall { offset: index * 4, name })
    })
}

/// The number of the call that stands behind these instructions.
fn number(before: &[[u8; 4]]) -> Option<Number> {
    let mut words = before.iter().rev().map(|word| u32::from_le_bytes(*word));
    let decisive = words.find(|word| register(*word) == 8 || is_jump(*word))?;
    match decisive {
        _ if is_jump(decisive) => None,
        // mov w8, #n; mov x8, #n
        _ if decisive & 0x7fe0_0000 == 0x5280_0000 => {
            Some(Number::Constant(decisive >> 5 & 0xffff))
        }
        // ldr x8, [sp, #n], and no ldr x5, [sp, #n].
        _ if is_load_from_stack(decisive) => {
            let mut others = before.iter().map(|word| u32::from_le_bytes(*word));
            let has_six = others.any(|word| is_load_from_stack(word) && register(word) == 5);
            (!has_six).then_some(Number::Variable)
        }
        _ => None,
    }
}

/// The register that an instruction writes, of most.
fn register(word: u32) -> u32 {
    word & 31
}

fn is_load_from_stack(word: u32) -> bool {
    word & 0xffc0_03e0 == 0xf940_03e0
}

/// b, bl, br, blr, ret; not the conditional ones, behind which the code goes on.
fn is_jump(word: u32) -> bool {
    word & 0x7c00_0000 == 0x1400_0000 || word & 0xff80_0000 == 0xd600_0000
}
