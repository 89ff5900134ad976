//! `sidestep doctor --fix`, in a mount namespace where `/etc` and `/run` are the test's own, with a `systemctl` that notes what it is
//! told.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::support::{Place, outcome, own_host};

const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >> "$HOME/told"
case "$*" in
*sidestepd.service) echo LoadState=loaded; echo UnitFileState=disabled ;;
show*echo.service)
    echo Id=echo.service; echo LoadState=loaded; echo ActiveState=inactive; echo MainPID=0; echo User=daemon
    echo "ExecStart={ path=/bin/sh ; argv[]=/bin/sh ; }" ;;
esac
"#;
const DROP_IN: &str = "etc/systemd/system/echo.service.d/50-sidestep.conf";
const DEVICE: &str = "etc/cdi/sidestep.json";
const LIMITS: &str = "etc/security/limits.d/50-sidestep.conf";
/// Numbers of processes end below 2^22.
const UNFINISHED: &str = "etc/sidestep/sidestep.toml.applied.4194305";

/// A host on which everything is wrong that `--fix` knows. `None`, with a printed line, if there can be none here.
fn host() -> Option<(Place, PathBuf)> {
    let (place, library) = own_host(SYSTEMCTL)?;
    for name in ["passwd", "group"] {
        let content = std::fs::read_to_string(Path::new("/etc").join(name)).ok()?;
        place.file(&format!("etc/{name}"), &content);
    }
    place.file(DROP_IN, "[Service]\nEnvironment=\"LD_PRELOAD=/gone/libsidestep.so\"\n");
    let mounts = r#""mounts": [{ "hostPath": "/gone", "containerPath": "/usr/lib/sidestep" }]"#;
    let device = format!(
        r#"{{ "kind": "sidestep.dev/smc", "devices": [{{ "containerEdits": {{ {mounts} }} }}] }}"#
    );
    place.file(DEVICE, &device);
    place.file("etc/sidestep/sidestep.toml", "[share]\nall = true\n");
    place.file(UNFINISHED, "");
    place.file("etc/security/limits.d/README", "");
    place.file("run/sidestep/README", "");
    drop(UnixListener::bind(place.path().join("run/sidestep/agent.sock")).unwrap());
    Some((place, library))
}

/// What `sidestep doctor` with these words says on that host: its status, output and errors.
fn doctor(place: &Place, library: &Path, words: &[&str]) -> (i32, String, String) {
    let words = [&["doctor"], words].concat();
    place.on_own_host(library, "mount --bind \"$HOME/run\" /run && ulimit -Sn 512 &&", &words)
}

fn lines<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(prefix)).collect()
}

#[test]
fn what_can_be_changed_is_said_then_changed_and_then_done() {
    let Some((place, library)) = host() else { return };
    let read = |name: &str| std::fs::read_to_string(place.path().join(name)).unwrap_or_default();
    let told = || read("told");
    let [drop_in, device] = [read(DROP_IN), read(DEVICE)];

    let (status, dry, errors) = doctor(&place, &library, &["--fix", "--dry-run"]);
    assert_eq!((status, errors.as_str()), (1, ""), "{dry}");
    let would = lines(&dry, "would: ");
    for part in ["sidestepd.service", DROP_IN, DEVICE, LIMITS, "agent.sock", UNFINISHED] {
        assert_eq!(would.iter().filter(|line| line.contains(part)).count(), 1, "{part}: {dry}");
    }
    assert_eq!(would.len(), 6, "{dry}");
    assert_eq!([read(DROP_IN), read(DEVICE), read(LIMITS)], [drop_in, device, String::new()]);
    assert!(place.path().join(UNFINISHED).exists() && !told().contains("enable"), "{}", told());

    let (_, said, errors) = doctor(&place, &library, &["--fix"]);
    assert_eq!(errors, "");
    for change in would {
        let change = change.strip_prefix("would: ").unwrap();
        assert!(said.lines().any(|line| line == change), "{change}: {said}");
    }
    assert!(told().contains("enable --now sidestepd.service"), "{}", told());
    assert!(told().contains("daemon-reload"), "{}", told());
    let preload = format!("LD_PRELOAD={}", library.display());
    assert!(read(DROP_IN).contains(&preload), "{}", read(DROP_IN));
    assert!(read(DEVICE).contains(&place.path().display().to_string()), "{}", read(DEVICE));
    assert!(read(LIMITS).ends_with("\nroot soft nofile 1024\n"), "{}", read(LIMITS));
    assert!(!place.path().join("run/sidestep/agent.sock").exists());
    assert!(!place.path().join(UNFINISHED).exists());
    // No agent has come: that is left.
    assert!(said.contains("left: agent: none: [share]"), "{said}");

    place.file("etc/sidestep/sidestep.toml", "");
    let device = read(DEVICE);
    let (status, again, errors) = doctor(&place, &library, &["--fix"]);
    assert_eq!(errors, "");
    assert!(again.contains("\nNothing to change.\n"), "{again}");
    assert_eq!(status, i32::from(!lines(&again, "fail").is_empty()), "{again}");
    assert_eq!(read(DEVICE), device);
}

#[test]
fn a_change_that_cannot_be_made_is_said_and_the_others_are_made() {
    let Some((place, library)) = host() else { return };
    // The unit is unknown to systemd by now.
    place.script("bin/systemctl", "#!/bin/sh\necho LoadState=not-found\n");
    let (status, said, errors) = doctor(&place, &library, &["--fix"]);
    assert_eq!(status, 1, "{said}");
    assert!(errors.contains("echo.service: no such unit"), "{errors}");
    assert!(said.contains("-> sudo sidestep agent"), "{said}");
    assert!(!place.path().join(UNFINISHED).exists(), "{said}");
}

#[test]
fn the_options_belong_together() {
    let place = Place::new();
    for words in [&["--dry-run"][..], &["--fix", "--json"]] {
        let (status, _, errors) = outcome(place.sidestep(None).arg("doctor").args(words));
        assert_eq!(status, Some(2), "{errors}");
    }
}
