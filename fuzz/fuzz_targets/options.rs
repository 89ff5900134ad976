//! The words of a configuration, from the environment or from an applied file: no text makes
//! their reader panic, and reading is laying words over what is there.
//!
//! * The same words a second time change nothing.
//! * Words in one text are the same as in two, one read after the other.
//!
//! `cargo xtask fuzz options`

#![no_main]

use libfuzzer_sys::fuzz_target;
use sidestep_socket::process::options::Options;

fuzz_target!(|text: &str| {
    // The file of the log is not among the options: it would be opened.
    if text.contains("logfile=") {
        return;
    }
    let once = Options::parse(text, "server");
    let mut twice = once.clone();
    twice.read(text);
    assert_eq!(twice, once);
    for (at, _) in text.char_indices().filter(|(_, c)| c.is_ascii_whitespace()) {
        let mut parts = Options::parse(&text[..at], "server");
        parts.read(&text[at..]);
        assert_eq!(parts, once, "cut at {at}");
    }
});
