//! `sidestep agent`: where it may, and where it may not.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use sidestep_bpf::Cgroup;

use crate::support::{Place, outcome};

#[test]
fn it_works_until_it_is_told_to_end() {
    let place = Place::new();
    let group = match Cgroup::create_for_run() {
        Ok(group) => group,
        Err(lacking) => return println!("skipped: {lacking}"),
    };
    let mut command = place.sidestep(None);
    command.arg("agent").arg("--cgroup").arg(group.path());
    let mut agent = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(agent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        let lacking = agent.wait_with_output().unwrap().stderr;
        return println!("skipped: {}", String::from_utf8_lossy(&lacking));
    }
    let expected = format!("the TCP option of SMC is written for {}\n", group.path().display());
    assert_eq!(line, format!("sidestep agent: {expected}"));
    end(&agent);
    assert_eq!(agent.wait().unwrap().code(), Some(0));
}

fn end(agent: &Child) {
    // SAFETY: a number of a child that was not waited for, and a signal.
    assert_eq!(unsafe { libc::kill(agent.id() as i32, libc::SIGTERM) }, 0);
}

#[test]
fn a_directory_that_is_no_group_is_an_error() {
    let place = Place::new();
    let missing: PathBuf = place.path().join("missing");
    let mut command = place.sidestep(None);
    let (status, output, errors) = outcome(command.arg("agent").arg("--cgroup").arg(missing));
    assert_eq!((status, output.as_str()), (Some(1), ""));
    assert!(errors.starts_with("sidestep agent: "), "{errors}");
}
