//! The search among the options of a TCP header finds the option of SMC exactly where a second
//! reader does, who goes through them by index, as RFC 9293 §3.2 tells it.
//!
//! `cargo xtask fuzz tcp_option`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_wire::tcp_option::{self, BYTES};

fuzz_target!(|options: &[u8]| {
    let found = tcp_option::find(options);
    assert_eq!(found, found_by_index(options), "{options:02x?}");
    // Wherever an option may begin, ours is found if nothing ends the search before.
    if let Some(begin) = end_of_whole_options(options) {
        let with_ours = [&options[..begin], &BYTES].concat();
        let before = tcp_option::find(&options[..begin]);
        assert_eq!(tcp_option::find(&with_ours), before.or(Some(6)));
    }
});

fn found_by_index(options: &[u8]) -> Option<u8> {
    let mut at = 0;
    while at < options.len() {
        let len = match options[at] {
            0 => return None,
            1 => 1,
            _ if at + 1 == options.len() => return None,
            kind => {
                let len = usize::from(options[at + 1]);
                if len < 2 || at + len > options.len() {
                    return None;
                }
                if kind == BYTES[0] && len >= 6 && options[at + 2..at + 6] == BYTES[2..] {
                    return Some(options[at + 1]);
                }
                len
            }
        };
        at += len;
    }
    None
}

/// How long the options are, if they are whole and none says that it is the last.
fn end_of_whole_options(options: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < options.len() {
        at += match options[at] {
            0 => return None,
            1 => 1,
            _ => usize::from(*options.get(at + 1)?).max(2),
        };
    }
    (at == options.len() && has_no_short_option(options)).then_some(at)
}

fn has_no_short_option(options: &[u8]) -> bool {
    let mut at = 0;
    while at < options.len() {
        match options[at] {
            1 => at += 1,
            _ if options[at + 1] < 2 => return false,
            _ => at += usize::from(options[at + 1]),
        }
    }
    true
}
