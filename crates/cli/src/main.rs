//! `sidestep`: run programs over shared memory and check what stands in the way.
//!
//! The rooms, in the order a command walks through them:
//!
//! * [`args`]: the command line.
//! * [`commands`]: one file for each command.
//! * [`config`]: the configuration files; [`options`]: the values they and the command line
//!   choose, and the text in which the library receives them; [`applied`]: how programs that
//!   run already learn of changes; [`accounts`]: which users and groups names mean;
//!   [`pnet`]: which networks interfaces and devices are on; [`metrics_address`]: where the agent may tell its metrics;
//!   [`fault_plan`]: the bad network that the gateway may be tried in; [`words`]: how users write sizes, lists and choices.
//! * [`output`]: where all that is printed passes, so that nothing of it commands a terminal;
//!   [`terminal`]: how wide that is. [`strangers_files`]: files that other users have named.
//! * [`library`]: where `libsidestep.so` is, and how it gets into `LD_PRELOAD`.
//! * [`program`]: which file a command name means; [`preloadable`]: whether that file's loader
//!   will take our library.
//!
//! Rust's runtime opens closed standard descriptors and ignores SIGPIPE before `main`, and
//! `sidestep run` would hand both on to the program. So this is a C `main`: the program
//! inherits exactly what `sidestep` was started with.
#![cfg_attr(not(test), no_main)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod accounts;
mod applied;
mod args;
mod commands;
mod config;
mod fault_plan;
mod library;
mod metrics_address;
mod options;
mod output;
mod pnet;
mod preloadable;
mod program;
mod share;
mod store_address;
mod strangers_files;
mod terminal;
mod words;

/// Where C's start-up code enters.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main() -> libc::c_int {
    // `exit` flushes what Rust's standard output still holds; returning from here would not.
    std::process::exit(commands::execute(args::parse(std::env::args_os())))
}
