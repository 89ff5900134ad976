//! Builds the shim for libc's variadic printers, and asks the loader to run our
//! constructor before everybody else's.

fn main() {
    cc::Build::new().file("src/print.c").warnings(true).compile("sidestep_print");
    println!("cargo:rerun-if-changed=src/print.c");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
