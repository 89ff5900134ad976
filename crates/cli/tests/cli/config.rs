//! `sidestep config check` from outside.

use crate::support::{Place, outcome};

#[test]
fn each_key_has_its_value_and_where_it_comes_from() {
    let place = Place::new();
    let file = place.file("a.toml", "[policy]\nexclude_ports = [22, \"6000-6010\"]\n");
    let mut command = place.sidestep(None);
    let (status, text, errors) = outcome(command.args(["config", "check", "--config"]).arg(&file));
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    let row = |key: &str| {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        text.lines().map(words).find(|words| words.first().is_some_and(|it| it == key)).unwrap()
    };
    let from = file.display().to_string();
    assert_eq!(row("policy.exclude_ports"), ["policy.exclude_ports", "22,", "6000-6010", &from]);
    assert_eq!(row("smc.rmbe_size"), ["smc.rmbe_size", "64KB", "default"]);
    assert_eq!(row("log.file"), ["log.file", "-", "default"]);
    assert!(text.ends_with("\nNo mistakes.\n"), "{text}");
}

#[test]
fn every_mistake_is_told_with_its_line_and_what_is_allowed() {
    let place = Place::new();
    let file = place.file("a.toml", "[smc]\nmode = \"shm\"\n[policy]\nexclude_ports = [0]\n");
    let mut command = place.sidestep(None);
    let (status, text, _) = outcome(command.args(["config", "check", "--config"]).arg(&file));
    assert_eq!(status, Some(1));
    let path = file.display();
    assert!(
        text.contains(&format!("{path}:2: smc.mode: `shm` is not one of: smc, tcp\n")),
        "{text}"
    );
    assert!(text.contains(&format!("{path}:4: policy.exclude_ports: 0 is not allowed;")), "{text}");
    assert!(text.ends_with("\n2 mistakes: `sidestep run` refuses to start programs.\n"), "{text}");
}

#[test]
fn pnet_ids_are_shown_with_what_is_on_them() {
    let place = Place::new();
    let text = "[pnet.net1]\ninterfaces = [\"eth0\", \"lo\"]\ndevices = [\"ism\"]\n\
                [pnet.NET2]\ninterfaces = [\"eth1\"]\n";
    let file = place.file("a.toml", text);
    let mut command = place.sidestep(None);
    let (status, text, _) = outcome(command.args(["config", "check", "--config"]).arg(&file));
    assert_eq!(status, Some(0));
    let row = text.lines().find(|line| line.starts_with("pnet ")).unwrap();
    assert!(row.contains("NET1: interfaces eth0, lo, devices ism"), "{row}");
    assert!(row.contains("NET2: interfaces eth1"), "{row}");
    assert!(row.ends_with(&file.display().to_string()), "{row}");
}

#[test]
fn the_same_as_json() {
    let place = Place::new();
    let (status, text, _) = outcome(place.sidestep(None).args(["config", "check", "--json"]));
    assert_eq!(status, Some(0));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["files"], serde_json::json!([]));
    assert_eq!(
        report["keys"][0],
        serde_json::json!({"key": "smc.mode", "value": "smc", "file": null})
    );
    assert_eq!(report["mistakes"], serde_json::json!([]));
}

#[test]
fn what_is_applied_is_the_file_in_the_librarys_words() {
    let place = Place::new();
    let file =
        place.file("a.toml", "[policy]\nexclude_ports = [22]\n[smc]\nspin = \"never\"\n[pnet]\n");
    place.file(".config/sidestep/sidestep.toml", "");
    let mut command = place.sidestep(None);
    let (status, text, errors) = outcome(command.args(["config", "apply", "--config"]).arg(&file));
    assert_eq!((status, errors.as_str()), (Some(0), ""));
    assert!(text.contains(&format!("{}: applied\n", file.display())), "{text}");
    let applied = |name: &str| std::fs::read_to_string(place.path().join(name)).unwrap();
    assert_eq!(applied("a.toml.applied"), "\nspin=never noport=22 pnet=\n");
    assert_eq!(applied(".config/sidestep/sidestep.toml.applied"), "\n\n");
}

#[test]
fn a_mistake_in_one_file_applies_none() {
    let place = Place::new();
    let file = place.file("a.toml", "[smc]\nmode = \"shm\"\n");
    place.file(".config/sidestep/sidestep.toml", "[smc]\nmode = \"tcp\"\n");
    let mut command = place.sidestep(None);
    let (status, text, errors) = outcome(command.args(["config", "apply", "--config"]).arg(&file));
    assert_eq!((status, text.as_str()), (Some(1), ""));
    let mistake = format!("{}:2: smc.mode: `shm` is not one of: smc, tcp\n", file.display());
    assert!(errors.contains(&mistake) && errors.contains("keep what they have"), "{errors}");
    assert!(!place.path().join(".config/sidestep/sidestep.toml.applied").exists());
}

#[test]
fn a_file_that_is_gone_is_applied_as_empty() {
    let place = Place::new();
    let file = place.file(".config/sidestep/sidestep.toml", "");
    std::fs::remove_file(&file).unwrap();
    let (status, text, _) = outcome(place.sidestep(None).args(["config", "apply"]));
    assert_eq!(status, Some(0));
    assert!(text.contains("applied as empty"), "{text}");
}
