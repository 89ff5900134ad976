//! Reads `vectors/*.hex`: hexadecimal digits with blanks anywhere, `#` starts a comment. The first
//! line says who sent the bytes and how they were captured.

/// The bytes of one vector.
pub(crate) fn decode(text: &str) -> Vec<u8> {
    assert!(text.starts_with("# "), "a vector needs a birth certificate");
    let digits: Vec<u32> = text
        .lines()
        .filter_map(|line| line.split('#').next())
        .flat_map(str::chars)
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).expect("a hexadecimal digit"))
        .collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// The bytes of `vectors/<name>.hex`.
macro_rules! vector {
    ($name:expr) => {
        crate::hex::decode(include_str!(concat!("../../../../vectors/", $name, ".hex")))
    };
}
pub(crate) use vector;

/// Every CLC vector with one message.
pub(crate) fn clc_vectors() -> Vec<(&'static str, Vec<u8>)> {
    macro_rules! named {
        ($($name:literal),* $(,)?) => { vec![$(($name, vector!($name))),*] };
    }
    named![
        "linux-proposal-smc-r-v2",
        "linux-decline-v1-no-device",
        "hand-proposal-smc-d-v2",
        "hand-proposal-smc-r-v1",
        "hand-proposal-all-v1-v2",
        "linux-accept-smc-r-v2-first-contact",
        "linux-confirm-smc-r-v2-first-contact",
        "linux-accept-smc-r-v2-subsequent",
        "linux-confirm-smc-r-v2-subsequent",
        "hand-accept-smc-r-v1-first-contact",
        "hand-confirm-smc-r-v2-two-gids",
        "hand-confirm-smc-d-v1",
        "hand-accept-smc-d-v2-first-contact",
        "hand-accept-smc-d-v2-subsequent",
        "hand-confirm-smc-d-v2.0-first-contact",
        "hand-decline-v2-out-of-sync",
    ]
}

/// The CLC messages of each capture, one behind the other.
pub(crate) fn captures() -> Vec<(&'static str, Vec<u8>)> {
    macro_rules! named {
        ($($name:literal),* $(,)?) => {
            vec![$(($name, vector!(concat!("linux-clc-", $name)))),*]
        };
    }
    named![
        "abort-linger0",
        "decline-no-device",
        "eight-connections",
        "half-close",
        "rr-first-contact",
        "slow-rr-60",
        "stream-300k",
        "urgent",
    ]
}

/// Every host-control vector.
pub(crate) fn control_vectors() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("hand-hello", vector!("hand-hello")),
        ("hand-introduction", vector!("hand-introduction")),
        ("hand-channel", vector!("hand-channel")),
        ("hand-petition", vector!("hand-petition")),
        ("hand-match", vector!("hand-match")),
        ("hand-refusal", vector!("hand-refusal")),
    ]
}
