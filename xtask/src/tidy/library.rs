//! What comes into strangers' programs with the library: the crates that it is built from.
//!
//! `libsidestep.so` is loaded into programs that do not know it. A crate that it gains may
//! allocate, start threads or read files there, and it is one more that has to be trusted in every
//! program of the host. So the tree of its dependencies is a list, and a change of it a decision.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

const LIBRARY: &str = "sidestep-preload";

/// The crates of its tree, by name. Procedural macros run at compile time only; they are listed
/// because what they write is in the library.
const CRATES: [&str; 20] = [
    // Ours.
    "sidestep-preload",
    "sidestep-socket",
    "sidestep-device",
    "sidestep-derive",
    "sidestep-proto",
    "sidestep-wire",
    // Lists of a fixed size.
    "arrayvec",
    // The C library's types and constants, and system calls past it.
    "libc",
    "syscalls",
    // `wire`: the check sum of RoCE, and the names that sockets get.
    "crc32fast",
    "cfg-if",
    "siphasher",
    // `proto`: networks in rules, and patterns in machine code.
    "ipnet",
    "memchr",
    // Texts of errors.
    "thiserror",
    "thiserror-impl",
    "proc-macro2",
    "quote",
    "syn",
    "unicode-ident",
];

/// Complains of crates that the library has and the list has not, or the other way round.
///
/// **Errors**: cargo cannot tell; it says why.
pub(super) fn dependencies(repo: &Path) -> Result<Vec<String>> {
    let output = Command::new("cargo")
        .args(["tree", "--locked", "--package", LIBRARY, "--edges", "normal", "--prefix", "none"])
        .current_dir(repo)
        .output()
        .context("running cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(compare(&String::from_utf8(output.stdout).context("the output of cargo tree")?))
}

/// The same for what `cargo tree` has printed: a crate a line, its name first.
fn compare(tree: &str) -> Vec<String> {
    let found: BTreeSet<&str> =
        tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let listed = BTreeSet::from(CRATES);
    let gained = found.difference(&listed).map(|name| {
        format!(
            "libsidestep.so gains {name}: `cargo tree -p {LIBRARY} -e normal -i {name}` says by \
             what; list it in xtask/src/tidy/library.rs if every program is to have it"
        )
    });
    let lost = listed.difference(&found).map(|name| {
        format!("libsidestep.so has no {name} any more: xtask/src/tidy/library.rs lists it")
    });
    gained.chain(lost).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As cargo prints them.
    fn lines(names: &[&str]) -> String {
        names.iter().map(|name| format!("{name} v1.2.3 (*)\n")).collect()
    }

    #[test]
    fn a_crate_that_the_library_gains_is_found() {
        assert!(compare(&lines(&CRATES)).is_empty());
        let gained = compare(&lines(&[&CRATES[..], &["procfs", "procfs", "netlink-sys"]].concat()));
        assert_eq!(gained.len(), 2);
        assert!(gained[0].starts_with("libsidestep.so gains netlink-sys: "), "{gained:?}");
    }

    #[test]
    fn the_list_keeps_no_crate_that_has_gone() {
        let lost = compare(&lines(&CRATES[1..]));
        assert_eq!(lost.len(), 1);
        assert!(lost[0].contains("has no sidestep-preload any more"), "{lost:?}");
    }
}
