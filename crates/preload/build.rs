//! Builds the shims for libc's variadic functions, and asks the loader to run our
//! constructor before everybody else's.

fn main() {
    let sources = ["src/print.c", "src/exec.c"];
    cc::Build::new().files(sources).warnings(true).compile("sidestep_variadic");
    sources.iter().for_each(|source| println!("cargo:rerun-if-changed={source}"));
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
