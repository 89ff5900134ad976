//! `sidestep enable --container-runtime`: containers of podman run under Sidestep without asking for it.
//!
//! podman reads `containers.conf.d`, where a file can say which directories and variables a container has by default. (It takes no
//! CDI devices there before version 5: 4.3 refuses the whole file.) A list there is in the place of the same list in an earlier
//! file, so nothing is written where another file has one.
//!
//! A container with a directory that is not there does not start. The agent's directory is below `/run`, which is empty when the
//! machine starts; so systemd-tmpfiles makes it then, whether there is an agent or not.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml_edit::{Array, DocumentMut, Item, Table};

use super::drop_in;
use crate::commands::container_edits::{ContainerEdits, MOUNT_OPTIONS, Reach};
use crate::library;

/// Where podman looks for its configuration, what goes before at the end.
const FILES: [&str; 2] =
    ["/usr/share/containers/containers.conf", "/etc/containers/containers.conf"];
const DIRECTORY: &str = "/etc/containers/containers.conf.d";
const FILE: &str = "/etc/containers/containers.conf.d/50-sidestep.conf";
/// By which the agent's directory is there when the machine starts.
const TMPFILES: &str = "/etc/tmpfiles.d/sidestep-containers.conf";
const TABLE: &str = "containers";
const LISTS: [&str; 2] = ["volumes", "env"];
const HEAD: &str = "# Written by `sidestep enable --container-runtime`; `sidestep disable --container-runtime` takes it away.\n";

/// Has containers that are created from now on run under Sidestep. Returns what else there is to know.
///
/// # Errors
///
/// The reason, and what to do about it.
pub(super) fn enable() -> Result<Vec<String>, String> {
    if let Some(found) = conflict(&others()) {
        return Err(found);
    }
    let library = library::find().map_err(|error| format!("{error}; {}", error.advice()))?;
    let edits = ContainerEdits::with_library(library).map_err(|error| error.to_string())?;
    let reach = if edits.agent().is_dir() { Reach::All } else { Reach::Pod };
    let mut remarks = Vec::new();
    match reach {
        Reach::All => {
            let line = format!("d {} 0755 root root -\n", edits.agent().display());
            write(Path::new(TMPFILES), &(HEAD.to_owned() + &line))?;
        }
        Reach::Pod => {
            remarks.push(format!(
                "no agent has made {}, so containers meet within one network only; once it runs, enable it again",
                edits.agent().display()
            ));
        }
    }
    write(Path::new(FILE), &text(&edits, reach)?)?;
    remarks.push("containers that exist stay as they are, and --env or an image with an LD_PRELOAD of its own goes before".to_owned());
    Ok(remarks)
}

/// Containers that are created from now on are as before.
///
/// # Errors
///
/// The reason, and what to do about it.
pub(super) fn disable() -> Result<Vec<String>, String> {
    if !is_enabled() {
        return Ok(vec![drop_in::NOT_ENABLED.to_owned()]);
    }
    // The directory's line is left for last: a container that is created meanwhile has its mount.
    for path in [FILE, TMPFILES] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(drop_in::explained("remove", Path::new(path), &error));
            }
            _ => {}
        }
    }
    Ok(Vec::new())
}

pub(super) fn is_enabled() -> bool {
    Path::new(FILE).is_file()
}

/// What there is to do about it; `None` where all is well, or nothing is enabled.
pub(super) fn remark() -> Option<String> {
    let gone = gone(&fs::read_to_string(FILE).ok()?);
    if !gone.is_empty() {
        return Some(format!(
            "{} is gone: containers do not start; enable it again, or disable it",
            gone.join(", ")
        ));
    }
    conflict(&others())
}

/// Directories of the host that the file names, and that are not there.
fn gone(text: &str) -> Vec<String> {
    let document = text.parse::<DocumentMut>().unwrap_or_default();
    let volumes = document.get(TABLE).and_then(|table| table.get("volumes"));
    let volumes = volumes.and_then(Item::as_array).into_iter().flatten();
    let directories = volumes.filter_map(|volume| volume.as_str()?.split(':').next());
    directories.filter(|it| !Path::new(it).is_dir()).map(str::to_owned).collect()
}

/// The file, as podman reads it.
fn text(edits: &ContainerEdits, reach: Reach) -> Result<String, String> {
    let mut volumes = Array::new();
    for mount in edits.mounts(reach) {
        let [host, container] =
            [&mount.of_host, &mount.of_container].map(|it| it.display().to_string());
        if host.contains(':') {
            return Err(format!("{host} has a colon, which podman takes for the end of a path"));
        }
        // A bind mount is what podman makes of a volume that is a path.
        let options = MOUNT_OPTIONS.into_iter().filter(|option| *option != "bind");
        volumes.push(format!("{host}:{container}:{}", options.collect::<Vec<_>>().join(",")));
    }
    let variables = edits.variables(None).map(|(name, value)| format!("{name}={value}"));
    let mut containers = Table::new();
    containers.insert(LISTS[0], volumes.into());
    containers.insert(LISTS[1], Array::from_iter(variables).into());
    let mut document = DocumentMut::new();
    document.insert(TABLE, Item::Table(containers));
    Ok(format!("{HEAD}{document}"))
}

/// The other files that podman reads, with their content.
fn others() -> Vec<(PathBuf, String)> {
    let dropped_in = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    let mut dropped_in: Vec<PathBuf> = dropped_in.map(|entry| entry.path()).collect();
    dropped_in
        .retain(|path| path != Path::new(FILE) && path.extension().is_some_and(|it| it == "conf"));
    dropped_in.sort();
    let paths = FILES.iter().map(PathBuf::from).chain(dropped_in);
    paths.filter_map(|path| Some((path.clone(), fs::read_to_string(path).ok()?))).collect()
}

/// Another file that has such a list: which of the two podman takes depends on their names, and the other one's is lost.
fn conflict(others: &[(PathBuf, String)]) -> Option<String> {
    others.iter().find_map(|(path, text)| {
        let shown = path.display();
        let Ok(document) = text.parse::<DocumentMut>() else {
            return Some(format!("{shown} cannot be read as TOML: correct it first"));
        };
        let table = document.get(TABLE)?;
        let is_set = |list: &&&str| {
            let list = table.get(list).and_then(Item::as_array);
            list.is_some_and(|list| !list.is_empty())
        };
        let list = LISTS.iter().find(is_set)?;
        Some(format!(
            "{shown} has a list {TABLE}.{list} of its own, and podman takes only one: give containers the device \
             instead (`sidestep generate cdi --help`)"
        ))
    })
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    drop_in::write_whole(path, text).map_err(|error| drop_in::explained("write", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_what_a_container_has() {
        let agent = Path::new("/run/a/agent.sock");
        let edits = ContainerEdits::by_default("/l/libsidestep.so", agent);
        let written: DocumentMut = text(&edits, Reach::All).unwrap().parse().unwrap();
        let list = |name: &str| -> Vec<String> {
            let values = written["containers"][name].as_array().unwrap().iter();
            values.map(|value| value.as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(
            list("volumes"),
            ["/l:/usr/lib/sidestep:ro,nosuid,nodev", "/run/a:/run/a:ro,nosuid,nodev"]
        );
        assert_eq!(list("env")[0], "LD_PRELOAD=/usr/lib/sidestep/libsidestep.so");
        assert!(list("env")[1].starts_with("SIDESTEP_OPTIONS=mode=smc "));
        assert_eq!(gone(&written.to_string()), ["/l", "/run/a"]);
        let colon = ContainerEdits::by_default("/a:b/libsidestep.so", agent);
        assert!(text(&colon, Reach::Pod).unwrap_err().contains("colon"));
    }

    #[test]
    fn lists_of_others_are_not_replaced() {
        let other =
            |text: &str| conflict(&[("/etc/containers/containers.conf".into(), text.to_owned())]);
        assert_eq!(other("[containers]\ndns_servers = [\"1.1.1.1\"]\nenv = []\n"), None);
        for text in
            ["[containers]\nenv = [\"A=1\"]", "[containers]\nvolumes = [\"/a:/a\"]", "[containers"]
        {
            assert!(other(text).unwrap().starts_with("/etc/containers/containers.conf "), "{text}");
        }
    }
}
