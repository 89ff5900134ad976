//! `sidestep run`: the program gets its arguments, its environment and our library, or the user
//! gets a reason.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::support::{Place, outcome};

/// Standard output of `sidestep run ARGUMENTS`, which must succeed without a word of ours.
fn stdout(command: &mut Command) -> String {
    let (status, output, errors) = outcome(command);
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    output
}

/// Standard error of `sidestep run ARGUMENTS`, which must end with `status`.
fn refusal(command: &mut Command, status: i32) -> String {
    let (actual, output, errors) = outcome(command);
    assert_eq!((actual, output.as_str()), (Some(status), ""), "{errors}");
    errors
}

#[test]
fn the_library_is_in_the_program() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let maps = stdout(place.sidestep(Some(&library)).args(["run", "cat", "/proc/self/maps"]));
    assert!(maps.contains("/probe.so"), "{maps}");
}

#[test]
fn the_environment_has_library_and_options() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let arguments = ["run", "--mode", "tcp", "--log", "info:log file", "--", "env"];
    let environment = stdout(
        place.sidestep(Some(&library)).env("LD_PRELOAD", "libc.so.6 libm.so.6").args(arguments),
    );
    let value = |name: &str| {
        let line = environment.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in {environment}"))
    };
    let preload = format!("{} libc.so.6 libm.so.6", library.display());
    assert_eq!(value("LD_PRELOAD="), preload);
    let options: Vec<_> = value("SIDESTEP_OPTIONS=").split(' ').collect();
    assert!(options.contains(&"mode=tcp"), "{options:?}");
    assert!(options.contains(&"log=info"), "{options:?}");
    let log_file = format!("logfile={}/log%20file", place.path().display());
    assert!(options.contains(&log_file.as_str()), "{options:?}");
    assert!(place.path().join("log file").exists());
}

#[test]
fn arguments_and_exit_status_pass_unchanged() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let odd = OsStr::from_bytes(b"\xff a");
    let mut command = place.sidestep(Some(&library));
    command.args(["run", "sh", "-c", "printf '%s|' \"$@\"; exit 7", "--", "--mode"]);
    let output = command.arg(odd).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(output.stdout, b"--mode|\xff a|");
}

#[test]
fn a_program_inherits_signals_and_descriptors_as_they_were() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let under_shell = |setup: &str, program: &str| {
        let sidestep = env!("CARGO_BIN_EXE_sidestep");
        let line = format!("{setup} exec {sidestep} run {program}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).env("SIDESTEP_LIBRARY", &library);
        stdout(shell.env("HOME", place.path()))
    };
    let ignored = |setup: &str| {
        let line = under_shell(setup, "grep SigIgn /proc/self/status");
        let mask = line.split_whitespace().last().unwrap();
        u64::from_str_radix(mask, 16).unwrap()
    };
    let sigpipe = 1 << (libc::SIGPIPE - 1);
    assert_eq!(ignored("trap '' PIPE;") & sigpipe, sigpipe);
    assert_eq!(ignored("") & sigpipe, 0);
    under_shell("exec <&-;", "test ! -e /proc/self/fd/0");
}

#[test]
fn a_missing_program_is_status_127() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let mut by_name = place.sidestep(Some(&library));
    let text = refusal(by_name.env("PATH", "/bin:/usr/bin").args(["run", "no-such-program"]), 127);
    assert_eq!(text, "sidestep run: no-such-program: not found in PATH (/bin:/usr/bin)\n");
    let mut by_path = place.sidestep(Some(&library));
    let text = refusal(by_path.args(["run", "./no-such-program"]), 127);
    assert_eq!(text, "sidestep run: ./no-such-program: no such file\n");
}

#[test]
fn a_program_that_cannot_be_executed_is_status_126() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let run = |path: &Path| refusal(place.sidestep(Some(&library)).arg("run").arg(path), 126);
    let plain = run(&place.file("plain", ""));
    assert!(plain.contains("plain: is not executable"), "{plain}");
    let directory = run(place.path());
    assert!(directory.contains("is a directory"), "{directory}");
    let orphan = run(&place.script("orphan", "#!/no/such/interpreter\n"));
    assert!(orphan.contains("its interpreter or loader does not exist"), "{orphan}");
}

#[test]
fn scripts_run_with_and_without_a_first_line() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    for first_line in ["#!/bin/sh\n", ""] {
        let script = place.script("script", &format!("{first_line}echo \"$1\"\n"));
        let mut command = place.sidestep(Some(&library));
        assert_eq!(stdout(command.arg("run").arg(script).arg("a b")), "a b\n");
    }
}

const SHOW_PRELOAD: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void) { puts(getenv("LD_PRELOAD") ? "preload" : "no preload"); return 3; }
"#;

#[test]
fn a_static_program_runs_with_a_warning() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let Some(program) = place.compile("program", SHOW_PRELOAD, &["-static"]) else {
        return;
    };
    let mut command = place.sidestep(Some(&library));
    let (status, output, errors) = outcome(command.arg("run").arg(&program));
    // Its children may be able to use the library, so the variable stays.
    assert_eq!((status, output.as_str()), (Some(3), "preload\n"));
    assert_eq!(
        errors,
        format!(
            "sidestep run: warning: {} stays on TCP: it is statically linked, \
             so nothing can be preloaded; use a dynamically linked build of the program\n",
            program.display()
        )
    );
}

#[test]
fn a_program_of_another_libc_is_not_given_the_library() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    // glibc's loader under another name: it works, but sidestep cannot know that.
    let Some(own) = place.compile("own", SHOW_PRELOAD, &[]) else {
        return;
    };
    let maps = stdout(place.sidestep(Some(&library)).args(["run", "cat", "/proc/self/maps"]));
    let loader = maps
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|path| path.contains("/ld-linux") || path.contains("/ld64.so"));
    let Some(loader) = loader else {
        println!("skipped: {} has no loader of a known name", own.display());
        return;
    };
    let copy = place.path().join("linker64");
    std::fs::copy(loader, &copy).unwrap();
    let flag = format!("-Wl,--dynamic-linker={}", copy.display());
    let Some(program) = place.compile("program", SHOW_PRELOAD, &[&flag]) else {
        return;
    };
    let mut command = place.sidestep(Some(&library));
    let (status, output, errors) = outcome(command.arg("run").arg(&program));
    assert_eq!((status, output.as_str()), (Some(3), "no preload\n"));
    assert!(errors.contains("stays on TCP: its C library is neither"), "{errors}");
}

#[test]
fn without_a_library_nothing_runs() {
    let place = Place::new();
    let missing = place.path().join("none.so");
    let text = refusal(place.sidestep(Some(&missing)).args(["run", "true"]), 125);
    assert_eq!(
        text,
        format!(
            "sidestep run: $SIDESTEP_LIBRARY names {}, which is not a file; correct the variable, \
             or unset it to use the library that belongs to sidestep\n",
            missing.display()
        )
    );
}

#[test]
fn the_installed_library_is_found_from_the_prefix() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let prefix = place.path().join("prefix");
    std::fs::create_dir_all(prefix.join("bin")).unwrap();
    std::fs::create_dir_all(prefix.join("lib/sidestep")).unwrap();
    let sidestep = prefix.join("bin/sidestep");
    // Not `std::fs::copy`: a child that another test starts meanwhile would hold the file open for
    // writing, and so keep it from being executed.
    let mut copy = Command::new("cp");
    copy.arg(env!("CARGO_BIN_EXE_sidestep")).arg(&sidestep);
    assert!(copy.status().unwrap().success());
    let installed = || {
        let mut command = Command::new(&sidestep);
        command.env_remove("SIDESTEP_LIBRARY").env("HOME", place.path());
        command.args(["run", "cat", "/proc/self/maps"]);
        command
    };

    let text = refusal(&mut installed(), 125);
    assert!(text.contains("libsidestep.so not found; looked for"), "{text}");
    assert!(text.contains("prefix/lib/sidestep/libsidestep.so"), "{text}");
    assert!(text.contains("cargo build --release"), "{text}");

    std::fs::copy(library, prefix.join("lib/sidestep/libsidestep.so")).unwrap();
    let maps = stdout(&mut installed());
    assert!(maps.contains("prefix/lib/sidestep/libsidestep.so"), "{maps}");
}

#[test]
fn configuration_files_and_the_command_line_add_up() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    place.file(
        ".config/sidestep/sidestep.toml",
        "[smc]\nmode = \"tcp\"\nspin = \"never\"\nrmbe_size = \"1MB\"\n",
    );
    let variable = place.file("variable.toml", "[smc]\nspin = \"always\"\neid = \"A\"\n");
    let named = place.file("named.toml", "[smc]\neid = \"B\"\nmemory_limit = \"1GB\"\n");
    let mut command = place.sidestep(Some(&library));
    command.env("SIDESTEP_CONFIG", variable);
    command.args(["run", "--mode", "smc", "--config"]).arg(named);
    let options = stdout(command.args(["sh", "-c", "echo $SIDESTEP_OPTIONS"]));
    for option in ["mode=smc", "spin=always", "eid=B", "rmbe=1048576", "memory=1073741824"] {
        assert!(options.contains(option), "{option} in {options}");
    }
}

#[test]
fn a_configuration_that_cannot_be_used_is_status_125() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let run = |config: &str| {
        let mut command = place.sidestep(Some(&library));
        refusal(command.args(["run", "--config", config, "true"]), 125)
    };
    assert_eq!(
        run("none.toml"),
        "sidestep run: cannot read the configuration file none.toml: \
         No such file or directory (os error 2)\n"
    );
    place.file("bad.toml", "[smc]\nrmbe_size = \"2MB\"\n");
    assert_eq!(
        run("bad.toml"),
        "sidestep run: bad.toml:2: smc.rmbe_size: `2MB` is not allowed; \
         use 32KB, 64KB, 128KB, 256KB, 512KB or 1MB\n"
    );
}

#[test]
fn a_log_file_that_cannot_be_written_is_status_125() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let mut command = place.sidestep(Some(&library));
    let text = refusal(command.args(["run", "--log", "info:none/log", "true"]), 125);
    assert!(text.contains("cannot write the log file"), "{text}");
    assert!(text.contains("none/log: No such file or directory"), "{text}");
}
