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
        crate::hex::decode(include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../vectors/",
            $name,
            ".hex"
        )))
    };
}
pub(crate) use vector;

/// The bytes of some vectors, each with its name.
macro_rules! vectors {
    ($($name:literal),* $(,)?) => { vec![$(($name, vector!($name))),*] };
}

/// Every CLC vector with one message.
pub(crate) fn clc_vectors() -> Vec<(&'static str, Vec<u8>)> {
    vectors![
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

/// Every LLC vector with one message.
pub(crate) fn llc_vectors() -> Vec<(&'static str, Vec<u8>)> {
    vectors![
        "linux-confirm-link-request",
        "linux-confirm-link-response",
        "hand-confirm-link-v1",
        "linux-add-link-request",
        "linux-add-link-reject",
        "hand-add-link-v1",
        "hand-add-link-v1-reject",
        "hand-add-link-v2-reject",
        "hand-add-link-v2-two-pairs",
        "hand-add-link-continuation",
        "hand-add-link-continuation-empty",
        "linux-delete-link-all",
        "linux-delete-link-all-orderly",
        "hand-delete-link-v1",
        "hand-request-add-link",
        "hand-request-add-link-reject",
        "linux-confirm-rkey-request",
        "linux-confirm-rkey-response",
        "hand-confirm-rkey-v1-continued",
        "hand-confirm-rkey-v2-retry",
        "hand-confirm-rkey-continuation",
        "hand-test-link-v1",
        "hand-test-link-v2",
        "linux-delete-rkey-request",
        "linux-delete-rkey-response",
        "hand-delete-rkey-v1-negative",
        "hand-delete-rkey-v2-ten",
    ]
}

/// Every CDC vector with one message.
pub(crate) fn cdc_vectors() -> Vec<(&'static str, Vec<u8>)> {
    vectors![
        "linux-cdc-first",
        "linux-cdc-wrapped",
        "linux-cdc-urgent-byte",
        "linux-cdc-done-writing",
        "linux-cdc-closed",
        "hand-cdc-failover",
    ]
}

/// The LLC messages of each capture, one behind the other, and its CDC messages.
pub(crate) fn link_captures() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    macro_rules! named {
        ($($name:literal),* $(,)?) => {
            vec![$((
                $name,
                vector!(concat!("linux-llc-", $name)),
                vector!(concat!("linux-cdc-", $name)),
            )),*]
        };
    }
    named![
        "abort-linger0",
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
    vectors![
        "hand-hello",
        "hand-introduction",
        "hand-channel",
        "hand-lookup",
        "hand-match",
        "hand-refusal",
    ]
}

/// Calls `f` with the bytes, each of them in turn with every value.
pub(crate) fn with_every_byte(bytes: &[u8], mut f: impl FnMut(&[u8])) {
    let mut changed = bytes.to_vec();
    for at in 0..bytes.len() {
        for value in 0..=u8::MAX {
            changed[at] = value;
            f(&changed);
        }
        changed[at] = bytes[at];
    }
}
