//! `sidestep stats --record`: lines that are whole, programs that end, and a disk that is full.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{Place, outcome};
use crate::talk::{Running, Talk, eventually, free_port};

/// The lines of a record; none, while the file is not there.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect()
}

/// The sum of a figure of a program over all lines.
fn sum(path: &Path, program: &str, figure: &str) -> u64 {
    let of = |line: &Value| line["programs"][program][figure].as_u64().unwrap_or(0);
    lines(path).iter().map(of).sum()
}

fn end(mut child: Child) -> Option<i32> {
    // SAFETY: a child that has not been waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    child.wait().unwrap().code()
}

#[test]
fn a_record_has_what_programs_had_once_and_keeps_it_when_they_end() {
    let Some(talk) = Talk::prepare() else { return };
    let path = talk.place.path().join("record");
    // All programs of the host are in the record: these have a name of their own.
    let name = format!("t{}", std::process::id());
    let program = talk.place.path().join(&name);
    std::fs::copy(talk.talker(), &program).unwrap();
    let run = |words: &[&str]| {
        let mut command = talk.sidestep();
        command.args(["run", "--promotion", "early"]).arg(&program).args(words);
        Running::start(command)
    };
    let mut recorder = talk.sidestep();
    recorder.args(["stats", "--every", "100ms", "--record"]).arg(&path);
    let recorder = recorder.spawn().unwrap();
    eventually("the first line", || (!lines(&path).is_empty()).then_some(()));
    let port = free_port();
    let server = run(&["serve", &port]);
    let client = run(&["call", &port, "4", "100", "1000"]);
    // Both ends of four connections: each sends what the other receives.
    let bytes = 2 * 4 * 100 * 1000;
    eventually("what they had", || (sum(&path, &name, "bytes_sent") == bytes).then_some(()));
    client.finish();
    drop(server);
    let seen = lines(&path).len();
    eventually("looks after their end", || (lines(&path).len() > seen + 3).then_some(()));
    assert_eq!(end(recorder), Some(0));
    assert_eq!(sum(&path, &name, "bytes_sent"), bytes, "told once");
    assert_eq!(sum(&path, &name, "smc_connections"), 8);
    for line in lines(&path) {
        assert_eq!(line["version"], 1);
        assert!(line["seconds"].as_f64() > Some(0.0) && line["at"].is_string(), "{line}");
    }
}

#[test]
fn without_room_it_says_so_once_and_keeps_whole_lines() {
    // The first line has all programs of the host: what is little room for the others may be too little for it.
    assert!([1, 16, 256].into_iter().any(|blocks| lines_without_room(blocks) >= 1));
}

/// Lines that were written until the record had so many blocks. A limit of the size of files stands for a disk that is full.
fn lines_without_room(blocks: u32) -> usize {
    let place = Place::new();
    let path = place.path().join("record");
    let program = env!("CARGO_BIN_EXE_sidestep");
    let limited = format!(
        "trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" stats --every 100ms --record \"$1\""
    );
    let mut command = Command::new("sh");
    command.args(["-c", &limited]);
    let mut recorder = command.arg(program).arg(&path).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(recorder.stderr.take().unwrap()).lines();
    let said = errors.next().unwrap().unwrap();
    let expected = format!(
        "sidestep stats: cannot write {}: File too large (os error 27); make room",
        path.display()
    );
    assert!(said.starts_with(&expected), "{said}");
    let whole = lines(&path).len();
    // Some intervals more, of which it has nothing to say. However many they are, the verdict is the same.
    std::thread::sleep(std::time::Duration::from_millis(500));
    // What is not written by the end is an error, and the only one that is said again.
    assert_eq!(end(recorder), Some(1));
    let rest: Vec<String> = errors.map(Result::unwrap).collect();
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert_eq!(lines(&path).len(), whole);
    whole
}

/// A file system with room for the file's name and none of its lines.
#[test]
fn on_a_full_disk_it_says_so_and_goes_on() {
    let place = Place::new();
    let script = "mount -t tmpfs -o size=4k none \"$1\" && echo > \"$1/all\" && \
                  exec \"$0\" stats --every 100ms --record \"$1/record\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_sidestep")]);
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: a file system needs root");
    }
    let mut recorder = command.arg(place.path()).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(recorder.stderr.take().unwrap()).lines();
    let said = errors.next().unwrap().unwrap();
    let record = format!("/proc/{}/root{}/record", recorder.id(), place.path().display());
    let (has_ended, facts) = (recorder.try_wait().unwrap(), std::fs::metadata(record));
    assert_eq!(end(recorder), Some(1));
    assert!(said.contains("No space left on device (os error 28); make room"), "{said}");
    assert_eq!((has_ended, facts.unwrap().len()), (None, 0));
}

#[test]
fn a_file_that_cannot_be_is_refused_at_once() {
    let place = Place::new();
    for (path, why) in [("/nowhere/record", "No such file"), ("/dev/full", "it is no regular file")]
    {
        let (status, _, errors) = outcome(place.sidestep(None).args(["stats", "--record", path]));
        assert_eq!(status, Some(1));
        let wanted = format!("sidestep stats: cannot record in {path}: {why}");
        assert!(errors.starts_with(&wanted) && errors.contains("name another file"), "{errors}");
    }
    for words in [&["--every", "1s"][..], &["--record", "x", "--every", "1ms"]] {
        let (status, ..) = outcome(place.sidestep(None).arg("stats").args(words));
        assert_eq!(status, Some(2), "{words:?}");
    }
}
