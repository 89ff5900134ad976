//! What a unit sees of the library: systemd can give a service a file system in which that is not there, or may not be run.
//!
//! | Setting | What it does to the library below one of its paths |
//! |---|---|
//! | `NoExecPaths=`, `ExecPaths=` | it may not be mapped as code, or may again |
//! | `ProtectHome=`, `PrivateTmp=`, `InaccessiblePaths=`, `TemporaryFileSystem=` | it is hidden |
//! | `BindPaths=`, `BindReadOnlyPaths=` | it is there again |
//! | `RootDirectory=`, `RootImage=` | all that is there is below another directory |
//!
//! Of the paths of each kind the longest decides. The loader would only write a line and go on, and the service would stay on TCP.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The homes, for `ProtectHome=`.
const HOMES: &str = "/home /root /run/user";
/// For `PrivateTmp=`.
const TMP: &str = "/tmp /var/tmp";

/// The settings of a unit by which its file system is another one.
#[derive(Debug, Default)]
pub(super) struct View {
    exec: Rules,
    sight: Rules,
    /// Another root, below which paths of the unit are; empty: an image, which is not looked into.
    root: Option<PathBuf>,
}

/// Paths, each with the setting that names it, and whether the library may be below.
#[derive(Debug, Default)]
struct Rules(Vec<(PathBuf, &'static str, bool)>);

impl View {
    pub(super) fn of(fields: &HashMap<&str, &str>) -> Self {
        let field = |name: &str| fields.get(name).copied().unwrap_or_default();
        let (mut exec, mut sight) = (Rules::default(), Rules::default());
        exec.add("NoExecPaths", field("NoExecPaths"), false);
        exec.add("ExecPaths", field("ExecPaths"), true);
        if ["yes", "tmpfs"].contains(&field("ProtectHome")) {
            sight.add("ProtectHome", HOMES, false);
        }
        if field("PrivateTmp") == "yes" {
            sight.add("PrivateTmp", TMP, false);
        }
        for name in ["InaccessiblePaths", "TemporaryFileSystem"] {
            sight.add(name, field(name), false);
        }
        for name in ["BindPaths", "BindReadOnlyPaths"] {
            sight.add(name, field(name), true);
        }
        let root = match (field("RootDirectory"), field("RootImage")) {
            ("" | "/", "") => None,
            (directory, "") => Some(PathBuf::from(directory)),
            _ => Some(PathBuf::new()),
        };
        Self { exec, sight, root }
    }

    /// Why a service does not run with the library, and what to do about it.
    pub(super) fn obstacle(&self, library: &Path) -> Option<String> {
        let directory = library.parent().unwrap_or(Path::new("/")).display();
        let is_bound = self.sight.decision(library).is_some_and(|(_, may)| may);
        if let Some(root) = &self.root
            && !is_bound
            && !is_below(root, library)
        {
            return Some(format!(
                "it has a root directory of its own, in which the library is not; a drop-in can add: \
                 BindReadOnlyPaths={directory}"
            ));
        }
        if let Some((setting, false)) = self.sight.decision(library) {
            let advice = match setting {
                "TemporaryFileSystem" => {
                    format!("a drop-in can add: BindReadOnlyPaths={directory}")
                }
                _ => "install Sidestep elsewhere, as its packages do".to_owned(),
            };
            return Some(format!("{setting}= hides {directory}, where the library is; {advice}"));
        }
        let (setting, _) = self.exec.decision(library).filter(|(_, may)| !may)?;
        Some(format!(
            "{setting}= forbids to run what is in {directory}, where the library is; a drop-in can add: \
             ExecPaths={directory}"
        ))
    }
}

fn is_below(root: &Path, library: &Path) -> bool {
    let inside = library.strip_prefix("/").unwrap_or(library);
    !root.as_os_str().is_empty() && root.join(inside).is_file()
}

impl Rules {
    /// Adds paths as systemd shows them: `-/a +/b`, `/a:ro`, `/source:/place:rbind`.
    fn add(&mut self, setting: &'static str, shown: &str, may: bool) {
        let paths = shown.split_whitespace().map(|word| {
            let mut parts = word.trim_start_matches(['-', '+']).split(':');
            let first = parts.next().unwrap_or_default();
            // Where it is bound to.
            let path = parts.next().filter(|part| part.starts_with('/')).unwrap_or(first);
            (real(Path::new(path)), setting, may)
        });
        self.0.extend(paths);
    }

    /// The setting with the longest path that the library is below, and whether it may be; of two that say the same path, the later.
    fn decision(&self, library: &Path) -> Option<(&'static str, bool)> {
        let library = real(library);
        let that_apply = self.0.iter().filter(|(path, ..)| library.starts_with(path));
        let longest = that_apply.max_by_key(|(path, ..)| path.components().count())?;
        Some((longest.1, longest.2))
    }
}

/// Without links, as systemd follows them.
fn real(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn obstacle(fields: &[(&str, &str)], library: &str) -> Option<String> {
        View::of(&fields.iter().copied().collect()).obstacle(Path::new(library))
    }

    #[test]
    fn code_may_be_where_the_longest_path_says() {
        // As Debian's redis-server.service has it.
        let redis = [("NoExecPaths", "/"), ("ExecPaths", "/usr/bin/redis-server -/usr/lib /lib")];
        assert_eq!(obstacle(&redis, "/usr/lib/sidestep/libsidestep.so"), None);
        let said = obstacle(&redis, "/usr/local/lib/sidestep/libsidestep.so").unwrap();
        assert!(said.ends_with("can add: ExecPaths=/usr/local/lib/sidestep"), "{said}");
        let below = [("NoExecPaths", "/usr/lib/sidestep"), ("ExecPaths", "/usr/lib")];
        assert!(obstacle(&below, "/usr/lib/sidestep/libsidestep.so").is_some());
    }

    #[test]
    fn what_is_hidden_is_said_and_what_is_bound_is_there() {
        let library = "/home/ann/lib/libsidestep.so";
        for (name, value) in [("ProtectHome", "yes"), ("ProtectHome", "tmpfs")] {
            let said = obstacle(&[(name, value)], library).unwrap();
            assert!(said.starts_with("ProtectHome= hides /home/ann/lib,"), "{said}");
        }
        assert_eq!(obstacle(&[("ProtectHome", "read-only")], library), None);
        assert!(obstacle(&[("PrivateTmp", "yes")], "/tmp/a/libsidestep.so").is_some());
        assert!(obstacle(&[("InaccessiblePaths", "-/home")], library).is_some());
        let fresh = ("TemporaryFileSystem", "/home:ro /x");
        let said = obstacle(&[fresh], library).unwrap();
        assert!(said.ends_with("can add: BindReadOnlyPaths=/home/ann/lib"), "{said}");
        let bound = ("BindReadOnlyPaths", "/home/ann/lib:/home/ann/lib:rbind");
        assert_eq!(obstacle(&[fresh, bound], library), None);
        assert_eq!(obstacle(&[("RootDirectory", "/nowhere"), bound], library), None);
    }

    #[test]
    fn another_root_lacks_the_library_unless_it_is_there() {
        let library = "/usr/lib/sidestep/libsidestep.so";
        for root in [("RootDirectory", "/nowhere"), ("RootImage", "/a.raw")] {
            let said = obstacle(&[root], library).unwrap();
            assert!(said.contains("root directory of its own"), "{said}");
        }
        let root = std::env::temp_dir().join(format!("sidestep-root-{}", std::process::id()));
        let inside = root.join(&library[1..]);
        fs::create_dir_all(inside.parent().unwrap()).unwrap();
        fs::write(&inside, "").unwrap();
        let said = obstacle(&[("RootDirectory", root.to_str().unwrap())], library);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(said, None);
        assert_eq!(obstacle(&[("RootDirectory", "/")], library), None);
    }
}
