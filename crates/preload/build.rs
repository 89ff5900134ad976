//! Builds the shims in C, and links the library so that the loader of glibc and that of musl both take it.
//!
//! What is linked with a libc asks for that libc's file, and for the versions that its names had on the machine of
//! the build. This library does neither. The linker is given *stand-ins* for libc's files, which define nothing. So
//! the names stay open, without a version, and are those of whatever libc the program has. Which names those may be,
//! `cli/tests/cli/libcs.rs` says.
//!
//! Of the stand-ins, the library asks for three by name. Until glibc 2.34 `dlsym` and the functions of threads were in
//! files of their own; later they are empty, and musl's loader takes all three names for itself.

use std::env;
use std::path::{Path, PathBuf};

/// What `-l` finds in the place of a file, the name that the loader is asked for, and whether it is.
const STAND_INS: [(&str, &str, bool); 4] = [
    ("libc.so", "libc.so.6", true),
    ("libpthread.so", "libpthread.so.0", true),
    ("libdl.so", "libdl.so.2", true),
    // The unwinder is looked for when it is needed: src/unwind.c.
    ("libgcc_s.so", "libgcc_s.so.1", false),
];

fn main() {
    let sources = ["src/print.c", "src/exec.c", "src/stat.c", "src/unwind.c"];
    cc::Build::new().files(sources).warnings(true).compile("sidestep_shims");
    sources.iter().for_each(|source| println!("cargo:rerun-if-changed={source}"));
    println!("cargo:rerun-if-changed=build.rs");
    // Our constructor runs before all others, where the loader knows of that (glibc's).
    link_with("-Wl,-z,initfirst");
    // Also by a linker that looks into an archive once.
    link_with("-Wl,--undefined=_Unwind_Resume");
    link_with("-Wl,--no-as-needed");
    let directory = PathBuf::from(env::var_os("OUT_DIR").expect("cargo says where"));
    for (file, name, is_asked_for) in STAND_INS {
        let path = directory.join(file);
        make_stand_in(&path, name);
        if is_asked_for {
            link_with(&path.display().to_string());
        }
    }
    println!("cargo:rustc-link-search=native={}", directory.display());
}

fn link_with(argument: &str) {
    println!("cargo:rustc-cdylib-link-arg={argument}");
}

/// A shared library of this name without content.
fn make_stand_in(path: &Path, name: &str) {
    let mut linker = cc::Build::new().get_compiler().to_command();
    linker.args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o"]).arg(path);
    linker.arg(format!("-Wl,-soname,{name}"));
    let status = linker.status();
    assert!(status.is_ok_and(|status| status.success()), "cannot link {}", path.display());
}
