//! Manual pages and completions are there for every command, and are understood by what reads them.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::help::check_text;
use crate::support::{Place, outcome};

#[test]
fn every_command_has_a_page() {
    let place = Place::new();
    let directory = place.path().join("man");
    std::fs::create_dir(&directory).unwrap();
    let (status, text, errors) =
        outcome(place.sidestep(None).args(["generate", "man"]).arg(&directory));
    assert_eq!((status, text.as_str(), errors.as_str()), (Some(0), "", ""));
    let page = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    for command in commands_of(&page("sidestep.1")) {
        assert!(page(&command).contains(".SH SYNOPSIS"), "{command}");
    }
    for command in commands_of(&page("sidestep-filter.1")) {
        assert!(page(&command).contains(".SH \"SEE ALSO\""), "{command}");
    }
    assert!(page("sidestep-run.1").contains(".SH EXAMPLES"));
    assert!(page("sidestep-run.1").contains(".SH \"EXIT STATUS\""));
}

/// The pages that a page leads to, as file names.
fn commands_of(page: &str) -> Vec<String> {
    let names = page.lines().filter_map(|line| line.strip_suffix("(1)"));
    let names = names.filter(|name| name.contains("\\-"));
    let pages: Vec<String> = names.map(|name| name.replace('\\', "") + ".1").collect();
    assert!(pages.len() > 5, "{page}");
    pages
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let place = Place::new();
    let (status, text, errors) =
        outcome(place.sidestep(None).args(["generate", "man", "/nowhere/man1"]));
    assert_eq!((status, text.as_str()), (Some(1), ""));
    let wanted = "sidestep generate: /nowhere/man1/sidestep.1: No such file or directory";
    assert!(errors.starts_with(wanted), "{errors}");
}

/// As bash asks when a user presses the tabulator key behind `words`.
fn completed_by_bash(script: &Path, words: &str) -> String {
    let asked = format!(
        "source {script}; COMP_WORDS=(sidestep {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         _sidestep sidestep \"${{COMP_WORDS[COMP_CWORD]}}\"; echo \"${{COMPREPLY[@]}}\"",
        script = script.display()
    );
    let output = Command::new("bash").args(["--norc", "-c", &asked]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_completes_commands_and_options() {
    let place = Place::new();
    let (status, script, _) =
        outcome(place.sidestep(None).args(["generate", "completions", "bash"]));
    assert_eq!(status, Some(0));
    let path = place.path().join("completions");
    std::fs::write(&path, script).unwrap();
    assert_eq!(completed_by_bash(&path, "prob").trim(), "probe");
    assert_eq!(completed_by_bash(&path, "filter app").trim(), "apply");
    assert!(completed_by_bash(&path, "run --").contains("--promotion"));
}

#[test]
fn of_generate() {
    let place = Place::new();
    let (status, text, _) = outcome(place.sidestep(None).args(["generate", "--help"]));
    assert_eq!(status, Some(0));
    check_text("help-generate.txt", &text);
}

#[test]
fn a_container_is_given_the_library_and_the_agent() {
    let place = Place::new();
    let Some(library) = place.library() else {
        return;
    };
    let (status, text, errors) = outcome(place.sidestep(Some(&library)).args(["generate", "cdi"]));
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    let specification: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(specification["kind"], "sidestep.dev/smc");
    let edits = |device: usize| &specification["devices"][device]["containerEdits"];
    let variables = edits(0)["env"].as_array().unwrap();
    assert_eq!(variables[0], "LD_PRELOAD=/usr/lib/sidestep/libsidestep.so");
    let options = variables[1].as_str().unwrap();
    assert!(options.starts_with("SIDESTEP_OPTIONS=mode=smc "), "{options}");
    assert!(options.contains(" filters=trust"), "{options}");
    let mounts = |device| {
        let mounts = edits(device)["mounts"].as_array().unwrap().iter();
        mounts.map(|mount| (mount["hostPath"].clone(), mount["containerPath"].clone())).collect()
    };
    let own = (json!(place.path()), json!("/usr/lib/sidestep"));
    let agent = (json!("/run/sidestep"), json!("/run/sidestep"));
    let (all, pod): (Vec<_>, Vec<_>) = (mounts(0), mounts(1));
    assert_eq!((all, pod), (vec![own.clone(), agent], vec![own]));
}
