//! What Sidestep asks the IP filter of the host about a connection, of which no packet would tell.
//!
//! The filter judges packets (`sidestep filter` is a
//! set of BPF programs on a control group). What goes by shared memory or RDMA has none, so one of the programs
//! answers for the connection: an option of `setsockopt` on its TCP socket, whose value is a
//! [`Question`]. The program hears it before the kernel does, and walks the same rules as for a packet.
//!
//! | Answer | Means |
//! |---|---|
//! | 0 | the rules permit packets that go this way |
//! | `EPERM` | they deny them |
//! | `ENOPROTOOPT` | the kernel answers: no filter is in force for this socket |
//!
//! The addresses, the ports and the control group are the socket's, so one process may ask about another's. What
//! the program cannot see it is told:
//!
//! | Off | Len | Field |
//! |---|---|---|
//! | 0 | 4 | the user whose the socket is, in the machine's order |
//! | 4 | 4 | the index of the interface that its packets take, in the machine's order; 0: not known |

/// "SMCF". No protocol of Linux has this level.
pub const LEVEL: i32 = i32::from_be_bytes(*b"SMCF");
/// The option: what of packets that leave by the connection?
pub const OUT: i32 = 1;
/// The option: what of those that arrive?
pub const IN: i32 = 2;

/// The value of the option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// The user whose the socket is.
    pub user: u32,
    /// The index of the interface that its packets take; 0: not known.
    pub interface: u32,
}

impl Question {
    /// Bytes of a value.
    pub const LEN: usize = 8;
    /// Where the user stands in it.
    pub const USER_AT: usize = 0;
    /// Where the interface stands in it.
    pub const INTERFACE_AT: usize = 4;

    /// As the program reads it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[Self::USER_AT..][..4].copy_from_slice(&self.user.to_ne_bytes());
        bytes[Self::INTERFACE_AT..][..4].copy_from_slice(&self.interface.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_numbers_stand_where_the_program_reads_them() {
        let bytes = Question { user: 1000, interface: 7 }.to_bytes();
        let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!([number(Question::USER_AT), number(Question::INTERFACE_AT)], [1000, 7]);
    }
}
