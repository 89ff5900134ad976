//! x86-64: instructions of any length, `syscall` with the number in `eax`.
//!
//! Each `0f 05` may be a call. From a few bytes before it, loads of `eax` are tried, the
//! nearest first: one counts if the instructions behind it, cut as the processor would cut
//! them, end exactly where `syscall` begins, and leave `eax` as it is. A load from another
//! register is followed to the load of that one. Only those instructions are known that
//! compilers put between: moves, arithmetic, conditional jumps, and calls of functions, of
//! which some registers know nothing. With anything else, it was no code.
//!
//! *Source*: Intel's Software Developer's Manual, volume 2, chapter 2 and appendix A.

use super::call::{Number, Numbers, SocketCall};
use memchr::memmem;

const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// From the load of the number to the call, in bytes: six arguments of the longest moves
/// fit twice.
const LOAD_TO_CALL_MAX: usize = 128;

/// The number of this register in instructions.
const RAX: u8 = 0;

/// Bits of the prefix `REX`: operands are wide, and the registers are upper ones.
const REX_W: u8 = 8;
const REX_R: u8 = 4;
const REX_B: u8 = 1;

/// Calls that move bytes, wait for them or set options. Those that make a socket or ask
/// about one do no harm: a socket that libc has not made is none of ours.
const ON_SOCKETS: &Numbers = &[
    (0, "read"),
    (1, "write"),
    (7, "poll"),
    (19, "readv"),
    (20, "writev"),
    (23, "select"),
    (40, "sendfile"),
    (44, "sendto"),
    (45, "recvfrom"),
    (46, "sendmsg"),
    (47, "recvmsg"),
    (48, "shutdown"),
    (54, "setsockopt"),
    (232, "epoll_wait"),
    (233, "epoll_ctl"),
    (270, "pselect6"),
    (271, "ppoll"),
    (275, "splice"),
    (281, "epoll_pwait"),
    (299, "recvmmsg"),
    (307, "sendmmsg"),
    (425, "io_uring_setup"),
    (426, "io_uring_enter"),
    (441, "epoll_pwait2"),
];

pub(super) fn first_socket_call(code: &[u8]) -> Option<SocketCall> {
    memmem::find_iter(code, &SYSCALL).find_map(|offset| {
        let before = &code[offset.saturating_sub(LOAD_TO_CALL_MAX)..offset];
        let name = number(before)?.name(ON_SOCKETS)?;
        Some(SocketCall { offset, name })
    })
}

/// The number of the call that stands behind this code.
fn number(before: &[u8]) -> Option<Number> {
    if ends_with_load_from_stack(before) {
        return (!loads_sixth_argument(before)).then_some(Number::Variable);
    }
    constant_in(RAX, before).map(Number::Constant)
}

/// What a register holds at the end of this code, if that is a constant.
fn constant_in(register: u8, code: &[u8]) -> Option<u32> {
    (0..code.len()).rev().find_map(|at| {
        let (before, load) = code.split_at(at);
        // Otherwise the instruction begins there.
        if before.last().is_some_and(|byte| is_rex(*byte)) {
            return None;
        }
        let (len, value) = Instruction::first(load)?.load_of(register)?;
        if !leads_to_the_end(load.get(len..)?, register) {
            return None;
        }
        match value {
            Value::Constant(number) => Some(number),
            Value::Of(other) => constant_in(other, before),
        }
    })
}

/// What an instruction puts into a register.
enum Value {
    Constant(u32),
    /// What another register holds.
    Of(u8),
}

/// Whether the last instruction loads `rax` from the stack.
fn ends_with_load_from_stack(code: &[u8]) -> bool {
    matches!(
        code,
        [.., 0x48, 0x8b, 0x04, 0x24]
            | [.., 0x48, 0x8b, 0x44, 0x24, _]
            | [.., 0x48, 0x8b, 0x84, 0x24, _, _, 0, 0]
            | [.., 0x48, 0x8b, 0x45, _]
            | [.., 0x48, 0x8b, 0x85, _, _, 0xff, 0xff]
    )
}

/// Whether `r9` is loaded from the stack.
fn loads_sixth_argument(code: &[u8]) -> bool {
    code.windows(3).any(|at| matches!(at, [0x4c, 0x8b, 0x0c | 0x4c | 0x4d | 0x8c | 0x8d]))
}

/// Whether the code consists of whole instructions that leave a register as it is.
fn leads_to_the_end(mut code: &[u8], register: u8) -> bool {
    while !code.is_empty() {
        let Some(instruction) = Instruction::first(code) else { return false };
        match instruction.len().and_then(|len| code.get(len..)) {
            Some(rest) if !instruction.writes(register) => code = rest,
            _ => return false,
        }
    }
    true
}

/// An instruction, and what follows it.
struct Instruction<'a> {
    /// Bytes before the opcode.
    prefixes: usize,
    /// Constants have two bytes instead of four.
    is_narrow: bool,
    /// `REX`, 0 = none.
    rex: u8,
    /// From the opcode on.
    code: &'a [u8],
}

impl<'a> Instruction<'a> {
    fn first(code: &'a [u8]) -> Option<Self> {
        const OPERAND_SIZE: u8 = 0x66;
        let is_legacy = |byte: &&u8| matches!(**byte, OPERAND_SIZE | 0xf2 | 0xf3 | 0x64);
        let legacy = code.iter().take_while(is_legacy).count();
        let rex = code.get(legacy).copied().filter(|byte| is_rex(*byte));
        let prefixes = legacy + usize::from(rex.is_some());
        Some(Self {
            prefixes,
            is_narrow: code[..legacy].contains(&OPERAND_SIZE),
            rex: rex.unwrap_or(0),
            code: code.get(prefixes..)?,
        })
    }

    /// Its length. `None`: it is not one that may stand before a call.
    fn len(&self) -> Option<usize> {
        let (opcode, rest) = self.code.split_first()?;
        let constant = if self.is_narrow { 2 } else { 4 };
        let kind = rest.first().map_or(0, |modrm| extension(*modrm));
        let operands = match *opcode {
            0x0f => len_behind_0f(rest)?,
            // Arithmetic: with a register and memory, or al or eax and a constant.
            0x00..=0x3f => match opcode & 7 {
                0..=3 => len_of_modrm(rest)?,
                4 => 1,
                5 => constant,
                _ => return None,
            },
            // push, pop, nop, cltq, cqto
            0x50..=0x5f | 0x90 | 0x98 | 0x99 => 0,
            // movslq, test, xchg, mov, lea, shifts
            0x63 | 0x84..=0x8b | 0x8d | 0xd0..=0xd3 => len_of_modrm(rest)?,
            // push, test
            0x68 | 0xa9 => constant,
            // imul, arithmetic, mov
            0x69 | 0x81 | 0xc7 => len_of_modrm(rest)? + constant,
            0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => len_of_modrm(rest)? + 1,
            // push, conditional jumps, test, mov
            0x6a | 0x70..=0x7f | 0xa8 | 0xb0..=0xb7 => 1,
            0xb8..=0xbf if self.rex & REX_W != 0 => 8,
            0xb8..=0xbf => constant,
            // test has a constant; not, neg, mul and div have none.
            0xf6 if kind < 2 => len_of_modrm(rest)? + 1,
            0xf7 if kind < 2 => len_of_modrm(rest)? + constant,
            0xf6 | 0xf7 => len_of_modrm(rest)?,
            // call
            0xe8 => 4,
            // inc, dec, call, push; not the jumps.
            0xfe | 0xff if matches!(kind, 0..=2 | 6) => len_of_modrm(rest)?,
            _ => return None,
        };
        Some(self.prefixes + 1 + operands)
    }

    /// Its length and what it loads, if it only loads a register.
    fn load_of(&self, register: u8) -> Option<(usize, Value)> {
        let constant = |bytes| Value::Constant(u32::from_le_bytes(bytes));
        let value = match *self.code {
            [opcode @ 0xb8..=0xbf, a, b, c, d, ..] if self.rex & REX_W == 0 => {
                (self.base(opcode) == register).then_some(constant([a, b, c, d]))?
            }
            [0xc7, modrm, a, b, c, d, ..] if is_direct(modrm) => {
                (self.base(modrm) == register).then_some(constant([a, b, c, d]))?
            }
            // xor with itself.
            [0x31 | 0x33, modrm, ..] if is_direct(modrm) => {
                let both = [self.base(modrm), self.register(modrm)];
                (both == [register; 2]).then_some(Value::Constant(0))?
            }
            [0x89, modrm, ..] if is_direct(modrm) && self.base(modrm) == register => {
                Value::Of(self.register(modrm))
            }
            [0x8b, modrm, ..] if is_direct(modrm) && self.register(modrm) == register => {
                Value::Of(self.base(modrm))
            }
            // push, pop: what compilers write for size.
            [0x6a, number, pop @ 0x58..=0x5f, ..] if pop & 7 == register => {
                return Some((self.prefixes + 3, Value::Constant(u32::from(number))));
            }
            _ => return None,
        };
        Some((self.len()?, value))
    }

    /// Whether it may give a register another value.
    fn writes(&self, register: u8) -> bool {
        let to_register = |modrm| self.register(modrm) == register;
        let to_base = |modrm| is_direct(modrm) && self.base(modrm) == register;
        match *self.code {
            // cmov, imul, movzx, movsx; setcc
            [0x0f, 0x40..=0x4f | 0xaf | 0xb6 | 0xb7 | 0xbe | 0xbf, modrm, ..] => to_register(modrm),
            [0x0f, 0x90..=0x9f, modrm, ..] => to_base(modrm),
            [0x0f, ..] => false,
            // Arithmetic: with a constant to eax, cmp, to the register, to memory or another.
            [opcode @ 0x00..=0x3f, modrm, ..] => match opcode {
                _ if opcode & 4 != 0 => register == RAX,
                0x38..=0x3f => false,
                _ if opcode & 2 != 0 => to_register(modrm),
                _ => to_base(modrm),
            },
            // movslq, mov, lea, imul
            [0x63 | 0x8a | 0x8b | 0x8d | 0x69 | 0x6b, modrm, ..] => to_register(modrm),
            [0x86 | 0x87, modrm, ..] => to_register(modrm) || to_base(modrm),
            // call
            [0xe8, ..] => !is_kept_by_functions(register),
            [0xff, modrm, ..] if extension(modrm) == 2 => !is_kept_by_functions(register),
            // Arithmetic and mov with a constant, mov, shifts, neg, mul, inc
            [0x80..=0x83 | 0x88 | 0x89 | 0xc0..=0xc7 | 0xd0..=0xd3 | 0xf6..=0xff, modrm, ..] => {
                to_base(modrm)
            }
            // pop, mov of a constant
            [opcode @ (0x58..=0x5f | 0xb0..=0xbf), ..] => self.base(opcode) == register,
            // cltq
            [0x98, ..] => register == RAX,
            _ => false,
        }
    }

    /// The register that the last bits of a byte name.
    fn base(&self, byte: u8) -> u8 {
        (byte & 7) | (self.rex & REX_B) << 3
    }

    /// The register that the middle bits of the operand byte name.
    fn register(&self, modrm: u8) -> u8 {
        extension(modrm) | (self.rex & REX_R) << 1
    }
}

/// rbx, rbp, and r12 to r15.
fn is_kept_by_functions(register: u8) -> bool {
    matches!(register, 3 | 5 | 12..)
}

/// The operand byte names two registers, and no memory.
fn is_direct(modrm: u8) -> bool {
    modrm >> 6 == 3
}

fn is_rex(byte: u8) -> bool {
    byte & 0xf0 == 0x40
}

/// The length of what follows `0f`.
fn len_behind_0f(code: &[u8]) -> Option<usize> {
    let (opcode, rest) = code.split_first()?;
    let operands = match *opcode {
        // Vectors, nop, cmov, setcc, bits, imul, movzx, movsx
        0x10..=0x17
        | 0x1e
        | 0x1f
        | 0x28..=0x2f
        | 0x40..=0x6f
        | 0x74..=0x76
        | 0x7e
        | 0x7f
        | 0x90..=0x9f
        | 0xa3
        | 0xab
        | 0xaf
        | 0xb3
        | 0xb6
        | 0xb7
        | 0xbb..=0xbf
        | 0xd0..=0xfe => len_of_modrm(rest)?,
        0x70 | 0xba | 0xc6 => len_of_modrm(rest)? + 1,
        // Conditional jumps.
        0x80..=0x8f => 4,
        _ => return None,
    };
    Some(1 + operands)
}

/// The length of the byte that names the operands, and of the address that it asks for.
fn len_of_modrm(code: &[u8]) -> Option<usize> {
    const SIB: u8 = 4;
    const NO_BASE: u8 = 5;
    let modrm = *code.first()?;
    let (mode, base) = (modrm >> 6, modrm & 7);
    let has_sib = mode != 3 && base == SIB;
    let base = if has_sib { code.get(1)? & 7 } else { base };
    let displacement = match mode {
        0 if base == NO_BASE => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(1 + usize::from(has_sib) + displacement)
}

/// The middle bits of the operand byte, which tell instructions of one opcode apart.
fn extension(modrm: u8) -> u8 {
    modrm >> 3 & 7
}
