//! An assembler for the BPF instructions that our programs use.
//!
//! An instruction is eight bytes: an operation, two registers of four bits, an offset of
//! 16 bits and an immediate of 32 (*Source*: `Documentation/bpf/standardization/
//! instruction-set.rst`, also RFC 9669). Jumps are to labels; addresses of maps are left
//! open, with a relocation, because a map has a descriptor only after it was made.
//!
//! ```text
//!  byte     0         1          2 3       4 5 6 7
//!       operation  src:dst     offset     immediate
//! ```

use std::collections::BTreeMap;

/// Writes the instructions of one program, in their order.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    instructions: Vec<Instruction>,
    /// Where labels stand: the number of the instruction behind them.
    labels: BTreeMap<&'static str, usize>,
    /// Jumps whose offset is still open.
    jumps: Vec<(usize, &'static str)>,
    map_references: Vec<MapReference>,
}

/// The instructions of a program.
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) bytes: Vec<u8>,
    pub(crate) map_references: Vec<MapReference>,
}

/// A place where the address of a map has to be put.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MapReference {
    /// Where its instruction begins, in bytes.
    pub(crate) at: u64,
    /// The map's name.
    pub(crate) map: &'static str,
}

/// The registers. `R0` takes results, `R1` to `R5` arguments (a call destroys them),
/// `R6` to `R9` are kept, `R10` points behind the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Helper functions of the kernel (`enum bpf_func_id`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Helper {
    /// `R0` = address of the value in map `R1` under key `*R2`, or 0.
    MapLookup = 1,
    /// Puts `*R3` into map `R1` under key `*R2`, with flags `R4`.
    MapUpdate = 2,
    /// Removes key `*R2` from map `R1`.
    MapDelete = 3,
    /// `R0` = nanoseconds of the monotonic clock.
    KtimeGetNs = 5,
    /// `R0` = the number of the CPU.
    SmpProcessorId = 8,
    /// Writes `R4` bytes from `R3` to offset `R2` of packet `R1`, with flags `R5`; `R0` is negative if it cannot.
    SkbStoreBytes = 9,
    /// Has the checksum at offset `R2` of packet `R1` follow a change that sums up to `R4`, with `R3` and `R5` 0.
    L4CsumReplace = 11,
    /// Goes on in the program at place `R3` of map `R2`, with context `R1`; returns if there is none.
    TailCall = 12,
    /// `R0` = the user of the process that runs, and above it (32 bits) its group, as numbers of the host.
    CurrentUidGid = 15,
    /// The packet is to leave by the interface of number `R1`, with flags `R2`; `R0` is the verdict that says so.
    Redirect = 23,
    /// Copies `R4` bytes from offset `R2` of packet `R1` to `R3`; `R0` is negative if it is shorter.
    SkbLoadBytes = 26,
    /// `R0` = the cookie of the socket of packet `R1`: a number that the kernel gives no other socket; 0: it has none.
    SocketCookie = 46,
    /// `R0` = the user of the socket of packet `R1`.
    SocketUid = 47,
    /// `R0` = the sum `R5`, less `R2` bytes at `R1`, with `R4` bytes at `R3`: as checksums have it.
    CsumDiff = 28,
    /// Sets the events that connection `R1` (`bpf_sock_ops`) reports to `R2`.
    SockOpsCbFlagsSet = 59,
    /// Puts connection `R1` (`bpf_sock_ops`) into `R2` under key `*R3`, with flags `R4`.
    SockHashUpdate = 70,
    /// Says that message `R1` goes to the socket in `R2` under key `*R3`, with flags
    /// `R4`; `R0` is the verdict: to pass, or to drop it if there is none.
    MsgRedirectHash = 71,
    /// Makes room for `R2` bytes behind the header that mode `R3` names in packet `R1`, or takes so many away if there are fewer
    /// than none, with flags `R4`; `R0` is negative if it cannot.
    SkbAdjustRoom = 50,
    /// The same as [`Self::SkbLoadBytes`], but `R2` is counted from the header that `R5` names.
    SkbLoadBytesRelative = 68,
    /// `R0` = number of the cgroup of packet `R1`'s socket, or 0.
    SkbCgroupId = 79,
    /// `R0` = number of the cgroup at level `R2`, from the root at 0 on, of those around packet `R1`'s socket, or 0.
    SkbAncestorCgroupId = 83,
    /// Lets go of socket `R1`, which a look-up has returned.
    SkRelease = 86,
    /// `R0` = all that is known of socket `R1`, or 0.
    SkFullsock = 95,
    /// Marks packet `R1` as one that met congestion, if its ends know such marks.
    SkbEcnSetCe = 97,
    /// `R0` = what TCP knows of socket `R1` (`bpf_tcp_sock`), or 0.
    TcpSock = 96,
    /// `R0` = what map `R1` keeps for the socket `R2`, or 0. With flag 1 in `R4` it is made
    /// if there is none, from the value at `R3` or of zeroes.
    SkStorageGet = 107,
    /// `R0` = cookie of the network namespace of `R1`.
    NetnsCookie = 122,
    /// Says that the packet of context `R1` is for socket `R2`, with flags `R3`; `R0` is negative if that
    /// socket cannot take it.
    SkAssign = 124,
    /// The same as [`Self::KtimeGetNs`], but the clock goes on in suspension.
    KtimeGetBootNs = 125,
    /// Puts `R3` bytes at `R2` into ring `R1`, with flags `R4`; `R0` is negative if there is no room.
    RingBufOutput = 130,
    /// Looks for the TCP option `*R2` (of which `R3` bytes are told) in the packet that
    /// `R1` (`bpf_sock_ops`) is about, or with flag 1 in `R4` in the SYN that is answered;
    /// `R0` is negative if it is not there.
    LoadHdrOpt = 142,
    /// Writes the TCP option `*R2` of `R3` bytes into the packet; `R0` = 0 if it is there.
    StoreHdrOpt = 143,
    /// Asks for `R2` bytes in the header of the packet.
    ReserveHdrOpt = 144,
    /// The packet is to leave by the interface of number `R1`, to the next hop that the table of routes has for it (`R2` and `R3` 0),
    /// with flags `R4`; `R0` is the verdict that says so. Linux 5.10.
    RedirectNeigh = 152,
    /// The same as [`Self::KtimeGetNs`], at the last tick.
    KtimeGetCoarseNs = 160,
    /// `R0` = how long frame `R1` of XDP is, in all its pieces. Linux 5.18.
    XdpGetBuffLen = 188,
    /// Copies `R4` bytes from offset `R2` of frame `R1` of XDP to `R3`; `R0` is negative if it is shorter. Linux 5.18.
    XdpLoadBytes = 189,
    /// Writes `R4` bytes from `R3` to offset `R2` of frame `R1` of XDP; `R0` is negative if it is shorter. Linux 5.18.
    XdpStoreBytes = 190,
    /// The call that is asked about fails with error number `-R1`. Linux 5.18.
    SetRetval = 187,
}

#[derive(Clone, Copy, Debug)]
struct Instruction {
    operation: u8,
    destination: u8,
    source: u8,
    offset: i16,
    immediate: i32,
}

/// Operations: class, size or source, and mode, as the standard adds them up.
mod operation {
    const LD: u8 = 0x00;
    const LDX: u8 = 0x01;
    const ST: u8 = 0x02;
    const STX: u8 = 0x03;
    const ALU: u8 = 0x04;
    const JMP: u8 = 0x05;
    const ALU64: u8 = 0x07;
    const K: u8 = 0x00;
    const X: u8 = 0x08;
    const W: u8 = 0x00;
    const H: u8 = 0x08;
    const B: u8 = 0x10;
    const DW: u8 = 0x18;
    const IMM: u8 = 0x00;
    const MEM: u8 = 0x60;
    const ATOMIC: u8 = 0xc0;
    const TO_BIG_ENDIAN: u8 = 0x08;

    pub(super) const MOV: u8 = ALU64 | X | 0xb0;
    pub(super) const MOV_IMMEDIATE: u8 = ALU64 | K | 0xb0;
    pub(super) const ADD_IMMEDIATE: u8 = ALU64 | K;
    pub(super) const OR_IMMEDIATE: u8 = ALU64 | K | 0x40;
    pub(super) const ADD: u8 = ALU64 | X;
    pub(super) const SUB: u8 = ALU64 | X | 0x10;
    pub(super) const ADD_IMMEDIATE_32: u8 = ALU | K;
    pub(super) const SUB_32: u8 = ALU | X | 0x10;
    pub(super) const MUL: u8 = ALU64 | X | 0x20;
    pub(super) const MUL_IMMEDIATE: u8 = ALU64 | K | 0x20;
    pub(super) const MUL_IMMEDIATE_32: u8 = ALU | K | 0x20;
    pub(super) const REMAINDER_32: u8 = ALU | X | 0x90;
    pub(super) const XOR: u8 = ALU64 | X | 0xa0;
    pub(super) const OR: u8 = ALU64 | X | 0x40;
    pub(super) const SHIFT_LEFT_IMMEDIATE: u8 = ALU64 | K | 0x60;
    pub(super) const SHIFT_RIGHT_IMMEDIATE: u8 = ALU64 | K | 0x70;
    pub(super) const SHIFT_RIGHT: u8 = ALU64 | X | 0x70;
    pub(super) const SHIFT_RIGHT_SIGNED_IMMEDIATE: u8 = ALU64 | K | 0xc0;
    pub(super) const AND: u8 = ALU64 | X | 0x50;
    pub(super) const AND_IMMEDIATE: u8 = ALU64 | K | 0x50;
    pub(super) const END: u8 = ALU | TO_BIG_ENDIAN | 0xd0;
    pub(super) const LOAD_8: u8 = LDX | MEM | B;
    pub(super) const LOAD_16: u8 = LDX | MEM | H;
    pub(super) const LOAD_32: u8 = LDX | MEM | W;
    pub(super) const STORE_IMMEDIATE_32: u8 = ST | MEM | W;
    pub(super) const STORE_16: u8 = STX | MEM | H;
    pub(super) const STORE_32: u8 = STX | MEM | W;
    pub(super) const LOAD_64: u8 = LDX | MEM | DW;
    pub(super) const STORE_64: u8 = STX | MEM | DW;
    pub(super) const ATOMIC_64: u8 = STX | ATOMIC | DW;
    pub(super) const LOAD_IMMEDIATE_64: u8 = LD | IMM | DW;
    pub(super) const JUMP: u8 = JMP;
    pub(super) const JUMP_IF_EQUAL: u8 = JMP | K | 0x10;
    pub(super) const JUMP_IF_ABOVE: u8 = JMP | K | 0x20;
    pub(super) const JUMP_IF_NOT_EQUAL: u8 = JMP | K | 0x50;
    pub(super) const JUMP_IF_DIFFERENT: u8 = JMP | X | 0x50;
    pub(super) const JUMP_IF_BEYOND: u8 = JMP | X | 0x20;
    pub(super) const JUMP_IF_NEGATIVE: u8 = JMP | K | 0xc0;
    pub(super) const CALL: u8 = JMP | 0x80;
    pub(super) const EXIT: u8 = JMP | 0x90;
}

impl Assembler {
    /// `to = from`
    pub(crate) fn mov(&mut self, to: Register, from: Register) {
        self.push(operation::MOV, to, from, 0, 0);
    }

    /// `to = value`
    pub(crate) fn mov_immediate(&mut self, to: Register, value: i32) {
        self.push(operation::MOV_IMMEDIATE, to, Register::R0, 0, value);
    }

    /// `to = from + value`
    pub(crate) fn address(&mut self, to: Register, from: Register, value: i16) {
        self.mov(to, from);
        self.add_immediate(to, value.into());
    }

    /// `to |= value`
    pub(crate) fn or_immediate(&mut self, to: Register, value: i32) {
        self.push(operation::OR_IMMEDIATE, to, Register::R0, 0, value);
    }

    /// `to &= value`
    pub(crate) fn and_immediate(&mut self, to: Register, value: i32) {
        self.push(operation::AND_IMMEDIATE, to, Register::R0, 0, value);
    }

    /// `to &= from`
    pub(crate) fn and(&mut self, to: Register, from: Register) {
        self.push(operation::AND, to, from, 0, 0);
    }

    /// `to |= from`
    pub(crate) fn or(&mut self, to: Register, from: Register) {
        self.push(operation::OR, to, from, 0, 0);
    }

    /// `to += from`
    pub(crate) fn add(&mut self, to: Register, from: Register) {
        self.push(operation::ADD, to, from, 0, 0);
    }

    /// `to += value`
    pub(crate) fn add_immediate(&mut self, to: Register, value: i32) {
        self.push(operation::ADD_IMMEDIATE, to, Register::R0, 0, value);
    }

    /// `to = (to + value)` in the low 32 bits; the others become 0.
    pub(crate) fn add_immediate_32(&mut self, to: Register, value: i32) {
        self.push(operation::ADD_IMMEDIATE_32, to, Register::R0, 0, value);
    }

    /// `to = (to - from)` in the low 32 bits; the others become 0.
    pub(crate) fn sub_32(&mut self, to: Register, from: Register) {
        self.push(operation::SUB_32, to, from, 0, 0);
    }

    /// `to -= from`
    pub(crate) fn sub(&mut self, to: Register, from: Register) {
        self.push(operation::SUB, to, from, 0, 0);
    }

    /// `to *= value`
    pub(crate) fn mul_immediate(&mut self, to: Register, value: i32) {
        self.push(operation::MUL_IMMEDIATE, to, Register::R0, 0, value);
    }

    /// `to *= from`
    pub(crate) fn mul(&mut self, to: Register, from: Register) {
        self.push(operation::MUL, to, from, 0, 0);
    }

    /// `to = (to * value)` in the low 32 bits; the others become 0.
    pub(crate) fn mul_immediate_32(&mut self, to: Register, value: i32) {
        self.push(operation::MUL_IMMEDIATE_32, to, Register::R0, 0, value);
    }

    /// `to = (to % from)` in the low 32 bits, `to` if `from` is 0; the others become 0.
    pub(crate) fn remainder_32(&mut self, to: Register, from: Register) {
        self.push(operation::REMAINDER_32, to, from, 0, 0);
    }

    /// `to ^= from`
    pub(crate) fn xor(&mut self, to: Register, from: Register) {
        self.push(operation::XOR, to, from, 0, 0);
    }

    /// `to <<= bits`
    pub(crate) fn shift_left_immediate(&mut self, to: Register, bits: i32) {
        self.push(operation::SHIFT_LEFT_IMMEDIATE, to, Register::R0, 0, bits);
    }

    /// `to >>= bits`, with zeroes from above
    pub(crate) fn shift_right_immediate(&mut self, to: Register, bits: i32) {
        self.push(operation::SHIFT_RIGHT_IMMEDIATE, to, Register::R0, 0, bits);
    }

    /// `to >>= bits`, with zeroes from above
    pub(crate) fn shift_right(&mut self, to: Register, bits: Register) {
        self.push(operation::SHIFT_RIGHT, to, bits, 0, 0);
    }

    /// `to >>= bits`, with copies of its sign from above
    pub(crate) fn shift_right_signed_immediate(&mut self, to: Register, bits: i32) {
        self.push(operation::SHIFT_RIGHT_SIGNED_IMMEDIATE, to, Register::R0, 0, bits);
    }

    /// The low 32 bits of `register` from the machine's order to big endian, or back.
    pub(crate) fn swap_to_big_endian_32(&mut self, register: Register) {
        self.push(operation::END, register, Register::R0, 0, 32);
    }

    /// `to = *(u8 *)(from + offset)`
    pub(crate) fn load_8(&mut self, to: Register, from: Register, offset: i16) {
        self.push(operation::LOAD_8, to, from, offset, 0);
    }

    /// `to = *(u16 *)(from + offset)`
    pub(crate) fn load_16(&mut self, to: Register, from: Register, offset: i16) {
        self.push(operation::LOAD_16, to, from, offset, 0);
    }

    /// `to = *(u32 *)(from + offset)`
    pub(crate) fn load_32(&mut self, to: Register, from: Register, offset: i16) {
        self.push(operation::LOAD_32, to, from, offset, 0);
    }

    /// `*(u16 *)(to + offset) = from`
    pub(crate) fn store_16(&mut self, to: Register, offset: i16, from: Register) {
        self.push(operation::STORE_16, to, from, offset, 0);
    }

    /// `*(u32 *)(to + offset) = from`
    pub(crate) fn store_32(&mut self, to: Register, offset: i16, from: Register) {
        self.push(operation::STORE_32, to, from, offset, 0);
    }

    /// `*(u32 *)(to + offset) = value`
    pub(crate) fn store_immediate_32(&mut self, to: Register, offset: i16, value: i32) {
        self.push(operation::STORE_IMMEDIATE_32, to, Register::R0, offset, value);
    }

    /// `to = *(u64 *)(from + offset)`
    pub(crate) fn load_64(&mut self, to: Register, from: Register, offset: i16) {
        self.push(operation::LOAD_64, to, from, offset, 0);
    }

    /// `*(u64 *)(to + offset) = from`
    pub(crate) fn store_64(&mut self, to: Register, offset: i16, from: Register) {
        self.push(operation::STORE_64, to, from, offset, 0);
    }

    /// `*(u64 *)(to + offset) += from`, atomically
    pub(crate) fn atomic_add_64(&mut self, to: Register, offset: i16, from: Register) {
        self.push(operation::ATOMIC_64, to, from, offset, 0);
    }

    /// `*(u64 *)(to + offset) += from`, atomically, and `from` = what was there before. Linux 5.12.
    pub(crate) fn atomic_fetch_add_64(&mut self, to: Register, offset: i16, from: Register) {
        /// `BPF_FETCH`.
        const FETCH: i32 = 1;
        self.push(operation::ATOMIC_64, to, from, offset, FETCH);
    }

    /// `to =` the address of a map
    pub(crate) fn load_map(&mut self, to: Register, map: &'static str) {
        let at = (self.instructions.len() * INSTRUCTION_LEN) as u64;
        self.map_references.push(MapReference { at, map });
        // The address has 64 bits: its upper half is in a second instruction, which has
        // no operation.
        self.push(operation::LOAD_IMMEDIATE_64, to, Register::R0, 0, 0);
        self.push(0, Register::R0, Register::R0, 0, 0);
    }

    pub(crate) fn call(&mut self, helper: Helper) {
        self.push(operation::CALL, Register::R0, Register::R0, 0, helper as i32);
    }

    pub(crate) fn jump(&mut self, label: &'static str) {
        self.push_jump(operation::JUMP, Register::R0, 0, label);
    }

    /// If `register`, as a signed number, is below 0.
    pub(crate) fn jump_if_negative(&mut self, register: Register, label: &'static str) {
        self.push_jump(operation::JUMP_IF_NEGATIVE, register, 0, label);
    }

    /// If `one` and `other` are not equal.
    pub(crate) fn jump_if_different(
        &mut self,
        one: Register,
        other: Register,
        label: &'static str,
    ) {
        self.jumps.push((self.instructions.len(), label));
        self.push(operation::JUMP_IF_DIFFERENT, one, other, 0, 0);
    }

    /// If `one`, as a number without a sign, is above `other`.
    pub(crate) fn jump_if_beyond(&mut self, one: Register, other: Register, label: &'static str) {
        self.jumps.push((self.instructions.len(), label));
        self.push(operation::JUMP_IF_BEYOND, one, other, 0, 0);
    }

    pub(crate) fn jump_if_equal(&mut self, register: Register, value: i32, label: &'static str) {
        self.push_jump(operation::JUMP_IF_EQUAL, register, value, label);
    }

    /// If `register`, as a number without a sign, is above `value`.
    pub(crate) fn jump_if_above(&mut self, register: Register, value: i32, label: &'static str) {
        self.push_jump(operation::JUMP_IF_ABOVE, register, value, label);
    }

    pub(crate) fn jump_if_not_equal(
        &mut self,
        register: Register,
        value: i32,
        label: &'static str,
    ) {
        self.push_jump(operation::JUMP_IF_NOT_EQUAL, register, value, label);
    }

    /// Names the place of the next instruction.
    ///
    /// **Panics** if the name is taken.
    pub(crate) fn label(&mut self, label: &'static str) {
        let before = self.labels.insert(label, self.instructions.len());
        assert!(before.is_none(), "the label {label} is there twice");
    }

    /// Returns `R0`.
    pub(crate) fn exit(&mut self) {
        self.push(operation::EXIT, Register::R0, Register::R0, 0, 0);
    }

    /// **Panics** if a jump leads to a label that is not there, or too far.
    pub(crate) fn finish(mut self) -> Code {
        for (from, label) in self.jumps {
            let to = *self.labels.get(label).unwrap_or_else(|| panic!("no label {label}"));
            // From behind the jump, in instructions.
            let distance = to as i64 - (from as i64 + 1);
            self.instructions[from].offset = distance.try_into().expect("a jump of 16 bits");
        }
        let bytes = self.instructions.iter().flat_map(Instruction::bytes).collect();
        Code { bytes, map_references: self.map_references }
    }

    fn push_jump(&mut self, operation: u8, register: Register, value: i32, label: &'static str) {
        self.jumps.push((self.instructions.len(), label));
        self.push(operation, register, Register::R0, 0, value);
    }

    fn push(
        &mut self,
        operation: u8,
        destination: Register,
        source: Register,
        offset: i16,
        immediate: i32,
    ) {
        let (destination, source) = (destination as u8, source as u8);
        self.instructions.push(Instruction { operation, destination, source, offset, immediate });
    }
}

impl Instruction {
    fn bytes(&self) -> [u8; INSTRUCTION_LEN] {
        // The two registers are bit fields of C, which begin at the other end on
        // machines of the other order.
        let registers = if cfg!(target_endian = "little") {
            self.source << 4 | self.destination
        } else {
            self.destination << 4 | self.source
        };
        let [offset_0, offset_1] = self.offset.to_ne_bytes();
        let [value_0, value_1, value_2, value_3] = self.immediate.to_ne_bytes();
        [self.operation, registers, offset_0, offset_1, value_0, value_1, value_2, value_3]
    }
}

const INSTRUCTION_LEN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn code(write: impl FnOnce(&mut Assembler)) -> Code {
        let mut assembler = Assembler::default();
        write(&mut assembler);
        assembler.finish()
    }

    /// The bytes are those that clang 14 makes of the same instructions; it does not make
    /// those of 16 bits, of multiplication and behind it, which are by the standard, nor the last one.
    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_those_of_the_standard() {
        use Register::{R0, R1, R2, R6, R10};
        let is = |text: &str, write: fn(&mut Assembler), bytes: &[u8]| {
            assert_eq!(code(write).bytes, bytes, "{text}");
        };
        is("r6 = r1", |a| a.mov(R6, R1), &[0xbf, 0x16, 0, 0, 0, 0, 0, 0]);
        is("r0 = 1", |a| a.mov_immediate(R0, 1), &[0xb7, 0, 0, 0, 1, 0, 0, 0]);
        is("r1 |= 4", |a| a.or_immediate(R1, 4), &[0x47, 1, 0, 0, 4, 0, 0, 0]);
        is("r1 = be32 r1", |a| a.swap_to_big_endian_32(R1), &[0xdc, 1, 0, 0, 0x20, 0, 0, 0]);
        is("r1 = *(u32 *)(r6 + 20)", |a| a.load_32(R1, R6, 20), &[0x61, 0x61, 0x14, 0, 0, 0, 0, 0]);
        is("r1 &= 18", |a| a.and_immediate(R1, 18), &[0x57, 1, 0, 0, 18, 0, 0, 0]);
        is("r2 &= r1", |a| a.and(R2, R1), &[0x5f, 0x12, 0, 0, 0, 0, 0, 0]);
        is("r2 += r1", |a| a.add(R2, R1), &[0x0f, 0x12, 0, 0, 0, 0, 0, 0]);
        is("w7 += 1", |a| a.add_immediate_32(Register::R7, 1), &[0x04, 7, 0, 0, 1, 0, 0, 0]);
        is("w2 -= w1", |a| a.sub_32(R2, R1), &[0x1c, 0x12, 0, 0, 0, 0, 0, 0]);
        is(
            "r1 = *(u8 *)(r10 - 12)",
            |a| a.load_8(R1, R10, -12),
            &[0x71, 0xa1, 0xf4, 0xff, 0, 0, 0, 0],
        );
        is(
            "r1 = *(u16 *)(r10 - 12)",
            |a| a.load_16(R1, R10, -12),
            &[0x69, 0xa1, 0xf4, 0xff, 0, 0, 0, 0],
        );
        is(
            "*(u64 *)(r10 - 48) = r0",
            |a| a.store_64(R10, -48, R0),
            &[0x7b, 0x0a, 0xd0, 0xff, 0, 0, 0, 0],
        );
        is(
            "lock *(u64 *)(r0 + 8) += r1",
            |a| a.atomic_add_64(R0, 8, R1),
            &[0xdb, 0x10, 8, 0, 0, 0, 0, 0],
        );
        is(
            "r1 = lock fetch_add *(u64 *)(r0 + 8), r1",
            |a| a.atomic_fetch_add_64(R0, 8, R1),
            &[0xdb, 0x10, 8, 0, 1, 0, 0, 0],
        );
        is(
            "*(u16 *)(r10 - 10) = r0",
            |a| a.store_16(R10, -10, R0),
            &[0x6b, 0x0a, 0xf6, 0xff, 0, 0, 0, 0],
        );
        is("r2 *= r1", |a| a.mul(R2, R1), &[0x2f, 0x12, 0, 0, 0, 0, 0, 0]);
        is("w2 *= 5", |a| a.mul_immediate_32(R2, 5), &[0x24, 2, 0, 0, 5, 0, 0, 0]);
        is("w2 %= w1", |a| a.remainder_32(R2, R1), &[0x9c, 0x12, 0, 0, 0, 0, 0, 0]);
        is("r2 ^= r1", |a| a.xor(R2, R1), &[0xaf, 0x12, 0, 0, 0, 0, 0, 0]);
        is("r2 s>>= 63", |a| a.shift_right_signed_immediate(R2, 63), &[0xc7, 2, 0, 0, 63, 0, 0, 0]);
        is("call 71", |a| a.call(Helper::MsgRedirectHash), &[0x85, 0, 0, 0, 71, 0, 0, 0]);
        is(
            "r2 = r10; r2 += -48",
            |a| a.address(R2, R10, -48),
            &[0xbf, 0xa2, 0, 0, 0, 0, 0, 0, 7, 2, 0, 0, 0xd0, 0xff, 0xff, 0xff],
        );
        is(
            "*(u32 *)(r6 + 32) = -1",
            |a| a.store_immediate_32(R6, 32, -1),
            &[0x62, 6, 32, 0, 0xff, 0xff, 0xff, 0xff],
        );
    }

    #[test]
    fn jumps_count_from_the_instruction_behind_them() {
        let code = code(|a| {
            a.label("again");
            a.jump_if_equal(Register::R1, 0, "end");
            a.jump("again");
            a.label("end");
            a.exit();
        });
        let offset = |number: usize| {
            let at = number * INSTRUCTION_LEN + 2;
            i16::from_ne_bytes([code.bytes[at], code.bytes[at + 1]])
        };
        assert_eq!((offset(0), offset(1)), (1, -2));
    }

    /// The bytes are those that clang 14 makes of the same instructions.
    #[test]
    #[cfg(target_endian = "little")]
    fn jumps_compare_as_the_standard_says() {
        let jump = |write: fn(&mut Assembler)| {
            code(|a| {
                write(a);
                a.exit();
                a.label("end");
            })
            .bytes[..INSTRUCTION_LEN]
                .to_vec()
        };
        let negative = jump(|a| a.jump_if_negative(Register::R0, "end"));
        assert_eq!(negative, [0xc5, 0, 1, 0, 0, 0, 0, 0]);
        let different = jump(|a| a.jump_if_different(Register::R1, Register::R2, "end"));
        assert_eq!(different, [0x5d, 0x21, 1, 0, 0, 0, 0, 0]);
        let beyond = jump(|a| a.jump_if_beyond(Register::R1, Register::R2, "end"));
        assert_eq!(beyond, [0x2d, 0x21, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn the_address_of_a_map_takes_two_instructions() {
        let code = code(|a| {
            a.exit();
            a.load_map(Register::R1, "connections");
        });
        assert_eq!(code.bytes.len(), 3 * INSTRUCTION_LEN);
        assert_eq!(code.map_references, [MapReference { at: 8, map: "connections" }]);
    }

    #[test]
    #[should_panic(expected = "no label nowhere")]
    fn a_jump_needs_its_label() {
        code(|a| a.jump("nowhere"));
    }
}
