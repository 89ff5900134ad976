//! Whether the kernel counts the memory that it has promised: `vm.overcommit_memory = 2`.
//!
//! A page of a memory file is promised when it is touched first, because the file is sparse and
//! how much of it will ever be is unknown. Elsewhere that always succeeds, or the kernel ends a
//! program to make room. Where promises are counted, the one that is too many is refused, and a touch
//! can be refused by a signal only: SIGBUS, at a `send`, or at a `recv` if the peer has taken the page
//! away. Allocating beforehand would keep the first from us but not the second. So there is no
//! shared memory on such a machine.

use crate::sys;

/// Whether promises are counted. Without `/proc` it is not known, and taken for no.
#[must_use]
pub fn is_strict() -> bool {
    let mut text = [0; 4];
    let len = sys::read_file(c"/proc/sys/vm/overcommit_memory", &mut text).unwrap_or(0);
    says_strict(&text[..len])
}

fn says_strict(text: &[u8]) -> bool {
    text.trim_ascii() == b"2"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mode_2_is_strict() {
        assert!(says_strict(b"2\n"));
        for other in [&b"0\n"[..], b"1\n", b"", b"22\n"] {
            assert!(!says_strict(other));
        }
        let text = std::fs::read("/proc/sys/vm/overcommit_memory").unwrap_or_default();
        assert_eq!(is_strict(), says_strict(&text));
    }
}
