//! A system call on sockets, and how its number is known.

/// A system call on sockets, found in machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketCall {
    /// Where its instruction stands, in bytes from the start of the code.
    pub offset: usize,
    /// Its name in the kernel.
    pub name: &'static str,
}

/// Numbers that concern sockets, with their names.
pub(super) type Numbers = [(u32, &'static str)];

/// How the number of a call is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Constant(u32),
    /// It comes out of memory: any.
    Variable,
}

impl Number {
    /// The call's name, if it concerns sockets.
    pub(super) fn name(self, numbers: &Numbers) -> Option<&'static str> {
        match self {
            Self::Constant(number) => Some(numbers.iter().find(|(it, _)| *it == number)?.1),
            Self::Variable => Some("any call"),
        }
    }
}
