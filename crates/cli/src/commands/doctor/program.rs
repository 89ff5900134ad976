//! The checks of one program: is it there, and will its loader take the library?

use std::ffi::OsStr;
use std::path::Path;

use super::check::Check;
use crate::preloadable::{self, Caller};
use crate::program;

/// Checks the program that `sidestep run NAME` would execute.
pub(super) fn checks(name: &OsStr) -> Vec<Check> {
    let path_variable = std::env::var_os("PATH");
    let path = match program::find(name, path_variable.as_deref()) {
        Ok(path) => path,
        Err(error) => {
            let advice = "correct the name, or give the path of the program";
            return vec![Check::fail("program", error.to_string(), advice)];
        }
    };
    let mut checks = vec![Check::ok("program", path.display().to_string())];
    match preloadable::examine(&path, Caller::current(), path_variable.as_deref()) {
        Ok(examination) => {
            checks.extend(examination.interpreters.iter().map(|interpreter| {
                let finding = format!("a script, run by {}", interpreter.display());
                Check::ok("interpreter", finding)
            }));
            checks.push(match &examination.obstacle {
                None => {
                    let libc = examination.libc.map(|libc| format!(" with {libc}"));
                    let finding = format!("dynamically linked{}", libc.unwrap_or_default());
                    Check::ok("preloadable", finding)
                }
                Some(obstacle) => {
                    Check::fail("preloadable", obstacle.to_string(), obstacle.advice())
                }
            });
            if examination.obstacle.is_none() {
                checks.extend(calls_past_libc(examination.executable(&path)));
            }
            if examination.uses_seccomp {
                checks.push(Check::warn(
                    "system call filter",
                    "it is linked with libseccomp and may install a filter, so its connections stay \
                     on TCP",
                    "use a build without libseccomp, if you can do without its sandbox",
                ));
            }
            if examination.uses_io_uring {
                checks.push(Check::warn(
                    "io_uring",
                    "it can use io_uring; sockets that it uses so stay on TCP",
                    "if it has another way, such as epoll, choose that one for its sockets",
                ));
            }
        }
        Err(error) => checks.push(Check::warn(
            "preloadable",
            format!("cannot be examined: {error}"),
            "run it under `sidestep run --log info` to see what its connections do",
        )),
    }
    checks
}

/// A warning if the program would use its sockets past the library.
fn calls_past_libc(executable: &Path) -> Option<Check> {
    let call = preloadable::call_past_libc(executable).ok()??;
    Some(Check::warn(
        "system calls",
        format!(
            "it makes system calls past the C library ({} at {:#x}), so its connections stay on TCP",
            call.name, call.offset
        ),
        "use a build that calls the C library (Rust programs with rustix: \
         RUSTFLAGS=--cfg=rustix_use_libc)",
    ))
}
