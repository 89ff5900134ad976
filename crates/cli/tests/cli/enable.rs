//! `sidestep enable` for containers and for users, in a mount namespace where `/etc` and homes are the test's own. That containers
//! of podman move their connections then is tried by `cargo xtask e2e podman`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Place, outcome, own_host};

const FILE: &str = "etc/containers/containers.conf.d/50-sidestep.conf";
const OWN: &str = ".config/systemd/user/service.d/50-sidestep.conf";
/// A service of the system and a manager's are the user's, the third one is not.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >> "$HOME/told"
case "$*" in
list-unit*) echo "a.service loaded active running A"; echo "b.service loaded active running B"; echo "t@.service x x" ;;
"show --property Id,User,LoadState"*)
    printf 'Id=a.service\nUser=daemon\nLoadState=loaded\n\nId=b.service\nUser=bin\nLoadState=loaded\n' ;;
show*)
    echo Id=a.service; echo LoadState=loaded; echo ActiveState=inactive; echo MainPID=0; echo User=daemon
    echo "ExecStart={ path=/bin/sh ; argv[]=/bin/sh ; }" ;;
esac
"#;

fn host() -> Option<(Place, PathBuf)> {
    let (place, library) = own_host(SYSTEMCTL)?;
    place.file("etc/passwd", "root:x:0:0::/root:/bin/sh\ndaemon:x:1:1::/usr/sbin:/bin/sh\n");
    Some((place, library))
}

fn sidestep(place: &Place, library: &Path, words: &[&str]) -> (i32, String, String) {
    place.on_own_host(library, "", words)
}

#[test]
fn containers_are_enabled_seen_and_disabled() {
    let Some((place, library)) = host() else { return };
    let read = || std::fs::read_to_string(place.path().join(FILE)).unwrap_or_default();
    let run = |words: &[&str]| sidestep(&place, &library, words);
    let (status, said, errors) = run(&["enable", "--container-runtime"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(said.starts_with("containers of podman: enabled\n"), "{said}");
    assert!(said.contains("no agent has made /run/sidestep, so containers meet within"), "{said}");
    let mount = format!("{}:/usr/lib/sidestep:ro,nosuid,nodev", place.path().display());
    assert!(read().contains(&mount), "{}", read());
    let (_, said, _) = run(&["status"]);
    assert!(said.contains("containers of podman  enabled"), "{said}");

    // Another file comes to have such a list: that is said, and refused to begin with.
    let other = place.file("etc/containers/containers.conf", "[containers]\nenv = [\"A=1\"]\n");
    let (_, said, _) = run(&["status"]);
    assert!(said.contains("has a list containers.env of its own"), "{said}");
    let (status, said, errors) = run(&["disable", "--container-runtime"]);
    assert_eq!(
        (status, said.as_str(), errors.as_str()),
        (0, "containers of podman: disabled\n", "")
    );
    let (status, _, errors) = run(&["enable", "--container-runtime"]);
    assert_eq!(status, 1);
    assert!(errors.contains("has a list containers.env of its own"), "{errors}");
    assert_eq!(read(), "");
    std::fs::remove_file(other).unwrap();
    let (status, said, _) = run(&["disable", "--container-runtime"]);
    assert!(status == 0 && said.contains("it was not enabled"), "{said}");
}

#[test]
fn all_services_of_a_user_are_those_of_the_system_with_that_user() {
    let Some((place, library)) = host() else { return };
    let run = |words: &[&str]| sidestep(&place, &library, words);
    let (status, said, errors) = run(&["enable", "--all-of-user", "daemon"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(said.contains("a.service: enabled") && !said.contains("b.service"), "{said}");
    let drop_in = place.path().join("etc/systemd/system/a.service.d/50-sidestep.conf");
    assert!(drop_in.is_file());
    let (status, said, errors) = run(&["disable", "--all-of-user", "daemon"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(said.contains("a.service: disabled") && !drop_in.exists(), "{said}");
    let (status, said, _) = run(&["disable", "--all-of-user", "daemon"]);
    assert!(status == 0 && said.contains("it was not enabled"), "{said}");
    let (status, _, errors) = run(&["enable", "--all-of-user", "nosuch"]);
    assert!(status == 1 && errors.contains("no such user"), "{errors}");
}

#[test]
fn a_unit_that_is_gone_can_still_be_disabled() {
    let Some((place, library)) = host() else { return };
    place.script("bin/systemctl", "#!/bin/sh\necho LoadState=not-found\n");
    let drop_in = place.file("etc/systemd/system/a.service.d/50-sidestep.conf", "[Service]\n");
    let (status, said, errors) = sidestep(&place, &library, &["disable", "a"]);
    assert_eq!((status, errors.as_str()), (0, ""), "{said}");
    assert!(!drop_in.exists() && said.contains("systemd does not know it any more"), "{said}");
    let (status, _, errors) = sidestep(&place, &library, &["disable", "a"]);
    assert!(status == 1 && errors.contains("no such unit"), "{errors}");
}

/// Two users, and so a list of them to be written.
const TWO_USERS: &str = r#"#!/bin/sh
case "$*" in
*a.service) user=daemon ;;
*) user=bin ;;
esac
case "$*" in
show*)
    echo LoadState=loaded; echo ActiveState=inactive; echo MainPID=0; echo "User=$user"
    echo "ExecStart={ path=/bin/sh ; argv[]=/bin/sh ; }" ;;
esac
"#;

#[test]
fn what_cannot_be_written_is_said_and_nothing_is_left_of_it() {
    let Some((place, library)) = own_host(TWO_USERS) else { return };
    let run = |prepare: &str, words: &[&str]| place.on_own_host(&library, prepare, words);
    let (status, _, errors) = run("", &["enable", "a"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    // The file of users, then all of `/etc`, is read-only; then a disk is full.
    place.file("etc/sidestep/sidestep.toml", "");
    let read_only = |directory: &str| {
        format!("mount --bind {directory} {directory} && mount -o remount,ro,bind {directory} &&")
    };
    for directory in ["/etc/sidestep", "/etc"] {
        let (status, said, errors) = run(&read_only(directory), &["enable", "b"]);
        assert_eq!((status, said.as_str()), (1, ""), "{directory}");
        assert!(errors.contains("/etc is read-only here"), "{directory}: {errors}");
        assert!(!place.path().join("etc/systemd/system/b.service.d").exists(), "{directory}");
    }
    let (status, _, errors) = run(&read_only("/etc"), &["disable", "a"]);
    assert!(status == 1 && errors.contains("/etc is read-only here"), "{errors}");
    // What is left there is listed before the mount goes.
    let full = "mount -t tmpfs -o size=4k none /etc/systemd/system && echo > /etc/systemd/system/all && \
                { \"$@\"; echo \"status $?\"; find /etc/systemd/system -mindepth 1; exit 0; };";
    let (_, said, errors) = run(full, &["enable", "b"]);
    assert!(errors.contains("No space left on device (os error 28); make room"), "{errors}");
    assert_eq!(said, "status 1\n/etc/systemd/system/all\n");
    assert!(place.path().join("etc/systemd/system/a.service.d/50-sidestep.conf").is_file());
}

#[test]
fn a_users_own_services_have_a_drop_in_that_the_user_owns() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let Some((place, library)) = host() else { return };
    let home = place.path().join("home");
    std::fs::create_dir_all(home.join(".config/systemd/user")).unwrap();
    for path in [".config/systemd/user", ".config/systemd", ".config", ""] {
        std::os::unix::fs::chown(home.join(path), Some(1), Some(1)).unwrap();
    }
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let passwd = format!("root:x:0:0::/root:/bin/sh\ndaemon:x:1:1::{}:/bin/sh\n", home.display());
    place.file("etc/passwd", &passwd);
    // The program has to be where another user can run it.
    let program = Path::new(env!("CARGO_BIN_EXE_sidestep"));
    let may = Command::new("setpriv").args(["--reuid", "1", "test", "-x"]).arg(program).status();
    if !may.is_ok_and(|status| status.success()) {
        println!("skipped: {} is not for other users", program.display());
        return;
    }
    let (status, said, errors) = sidestep(&place, &library, &["enable", "--all-of-user", "daemon"]);
    assert_eq!((status, errors.as_str()), (0, ""), "{said}");
    assert!(said.contains("own services of daemon: enabled"), "{said}");
    let facts = std::fs::metadata(home.join(OWN)).unwrap();
    assert_eq!(facts.uid(), 1);
    let text = std::fs::read_to_string(home.join(OWN)).unwrap();
    assert!(text.contains("[Service]\nEnvironment=\"LD_PRELOAD="), "{text}");
    let (status, said, errors) =
        sidestep(&place, &library, &["disable", "--all-of-user", "daemon"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(
        said.contains("own services of daemon: disabled") && !home.join(OWN).exists(),
        "{said}"
    );
}

#[test]
fn what_cannot_be_meant_is_said() {
    let place = Place::new();
    let run = |words: &[&str]| outcome(place.sidestep(None).arg("enable").args(words));
    let (status, _, errors) = run(&["--all-of-user", "nobody-of-this-name"]);
    assert_eq!(status, Some(1));
    assert!(errors.contains("no such user"), "{errors}");
    for words in [&[][..], &["--container-runtime", "a"], &["--all-of-user", "a", "b"]] {
        assert_eq!(run(words).0, Some(2), "{words:?}");
    }
}
