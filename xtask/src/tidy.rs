//! Tidiness as a test: what a reader of this repository may rely on, and what
//! neither the compiler nor a linter looks at.
//!
//! * A crate uses crates of lower floors only.
//! * The library is built from the crates of a list.
//! * Modules form no circle.
//! * The crates that decide and parse forbid `unsafe`; others above shared memory have a number of
//!   uses that only goes down.
//! * No guard is made for a case that may not come.
//! * Every source file opens by saying what it is for.
//! * No reminder and no debugging aid was left behind.
//! * A link in a document leads to a file that is there.
//!
//! Each rule is a function of the files, or of what cargo says of them, so that it can be tried on
//! others.

mod circles;
mod guards;
mod library;
mod unsafety;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::bench::place;

/// The floors of the workspace, from the ground up. A crate may use any lower
/// floor, never its own or a higher one.
const FLOORS: [&[&str]; 5] = [
    &["wire", "derive", "filter", "distributor"],
    &["proto", "device", "rdma", "bpf"],
    &["engine", "tls"],
    &["socket", "modeler", "gateway", "observe"],
    &["preload", "cli"],
];

/// How the crates of [`FLOORS`] are called in a manifest.
const CRATE_PREFIX: &str = "sidestep-";

/// Crates without `unsafe`.
const SAFE_CRATES: [&str; 7] =
    ["wire", "derive", "filter", "distributor", "proto", "engine", "tls"];
const FORBIDDEN_UNSAFE: &str = "#![forbid(unsafe_code)]";

/// Crates without `unsafe` in what is shipped: their tests need it to make what they read.
const SAFE_BUT_FOR_TESTS: [&str; 1] = ["observe"];
const FORBIDDEN_BUT_FOR_TESTS: &str = "#![cfg_attr(not(test), forbid(unsafe_code))]";

/// Directories with nothing of ours in them.
const FOREIGN_DIRECTORIES: [&str; 5] = [".git", "target", "corpus", "artifacts", "__pycache__"];

/// Looks at the whole repository.
///
/// **Errors**: something is untidy; the text has a line for each place.
pub(crate) fn run() -> Result<()> {
    let repo = place::repo_root()?;
    let tree = Tree::read(&repo)?;
    let rules = [
        floors,
        circles::circles,
        forbidden_unsafe,
        unsafety::uses,
        guards::eager_guards,
        openings,
        leftovers,
        links,
    ];
    let mut complaints: Vec<String> = rules.iter().flat_map(|rule| rule(&tree)).collect();
    complaints.extend(library::dependencies(&repo)?);
    if !complaints.is_empty() {
        bail!("untidy:\n{}", complaints.join("\n"));
    }
    println!("unsafe above shared memory: {} uses", unsafety::total());
    Ok(())
}

/// The files of a repository.
#[derive(Debug, Default)]
struct Tree {
    texts: Vec<Text>,
    /// All files and directories, from the root of the repository.
    paths: BTreeSet<PathBuf>,
}

/// A file that is text.
#[derive(Debug)]
struct Text {
    /// From the root of the repository.
    path: PathBuf,
    content: String,
}

impl Tree {
    fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.read_directory(root, Path::new(""))?;
        Ok(tree)
    }

    fn read_directory(&mut self, root: &Path, directory: &Path) -> Result<()> {
        self.paths.insert(directory.to_owned());
        let full = root.join(directory);
        let entries = fs::read_dir(&full).with_context(|| format!("{}", full.display()))?;
        for entry in entries {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            if !entry.file_type()?.is_dir() {
                self.add(path, fs::read(entry.path())?);
            } else if !is_foreign(&path) {
                self.read_directory(root, &path)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: PathBuf, bytes: Vec<u8>) {
        self.paths.insert(path.clone());
        if let Ok(content) = String::from_utf8(bytes) {
            self.texts.push(Text { path, content });
        }
    }

    fn text(&self, path: &str) -> Option<&Text> {
        self.texts.iter().find(|text| text.path == Path::new(path))
    }
}

impl Text {
    fn extension(&self) -> &str {
        let extension = self.path.extension().and_then(|it| it.to_str());
        extension.unwrap_or("")
    }

    fn complaint(&self, line: usize, what: &str) -> String {
        format!("{}:{}: {what}", self.path.display(), line + 1)
    }
}

fn is_foreign(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| FOREIGN_DIRECTORIES.contains(&name))
}

// ---- floors ----------------------------------------------------------------

fn floors(tree: &Tree) -> Vec<String> {
    let manifests =
        tree.texts.iter().filter_map(|text| Some((crate_of_manifest(&text.path)?, text)));
    manifests.flat_map(|(name, manifest)| floors_of_crate(name, manifest)).collect()
}

/// `wire` for `crates/wire/Cargo.toml`.
fn crate_of_manifest(path: &Path) -> Option<&str> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    match parts[..] {
        ["crates", name, "Cargo.toml"] => Some(name),
        _ => None,
    }
}

fn floors_of_crate(name: &str, manifest: &Text) -> Vec<String> {
    let Some(floor) = floor_of(name) else {
        return vec![manifest.complaint(0, "the crate has no floor in xtask/src/tidy.rs")];
    };
    let table: toml::Table = match manifest.content.parse() {
        Ok(table) => table,
        Err(error) => return vec![manifest.complaint(0, &error.to_string())],
    };
    let used = ["dependencies", "dev-dependencies", "build-dependencies"]
        .iter()
        .filter_map(|section| table.get(*section)?.as_table())
        .flat_map(toml::Table::keys)
        .filter_map(|package| package.strip_prefix(CRATE_PREFIX))
        // A crate's tests may ask it for a feature.
        .filter(|used| *used != name);
    used.filter(|used| floor_of(used).is_none_or(|it| it >= floor))
        .map(|used| {
            let what = format!("{name} may not use {used}: it is not on a lower floor");
            manifest.complaint(0, &what)
        })
        .collect()
}

fn floor_of(name: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&name))
}

// ---- source files ----------------------------------------------------------

fn forbidden_unsafe(tree: &Tree) -> Vec<String> {
    let all = SAFE_CRATES.map(|name| (name, FORBIDDEN_UNSAFE));
    let but_for_tests = SAFE_BUT_FOR_TESTS.map(|name| (name, FORBIDDEN_BUT_FOR_TESTS));
    let mut complaints = Vec::new();
    for (name, attribute) in all.into_iter().chain(but_for_tests) {
        let path = format!("crates/{name}/src/lib.rs");
        let text = tree.text(&path);
        if !text.is_some_and(|text| text.content.lines().any(|line| line == attribute)) {
            complaints.push(format!("{path}: must have {attribute}"));
        }
    }
    complaints
}

fn openings(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for text in &tree.texts {
        let openings: &[&str] = match text.extension() {
            "rs" => &["//!"],
            "c" | "h" => &["/*"],
            "js" => &["/*", "//"],
            "py" => &["\"\"\"", "#"],
            "sh" => &["#"],
            // Java's stands before its class, behind the imports.
            _ => continue,
        };
        if !openings.iter().any(|it| text.content.starts_with(it)) {
            let what =
                format!("must open with a comment that says what the file is for ({openings:?})");
            complaints.push(text.complaint(0, &what));
        }
    }
    complaints
}

fn leftovers(tree: &Tree) -> Vec<String> {
    // In two pieces, so that this file does not hold what it looks for.
    let reminders = [
        ["FIX", "ME"].concat(),
        ["todo", "!("].concat(),
        ["unimplemented", "!("].concat(),
        ["dbg", "!("].concat(),
    ];
    let mut complaints = Vec::new();
    for text in &tree.texts {
        if !["rs", "c", "h", "java", "js", "py", "sh"].contains(&text.extension()) {
            continue;
        }
        for (number, line) in text.content.lines().enumerate() {
            if let Some(found) = reminders.iter().find(|it| line.contains(it.as_str())) {
                complaints.push(text.complaint(number, &format!("{found} was left behind")));
            }
        }
    }
    complaints
}

// ---- documents -------------------------------------------------------------

fn links(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for text in tree.texts.iter().filter(|text| text.extension() == "md") {
        for (number, target) in link_targets(&text.content) {
            if !leads_somewhere(tree, &text.path, target) {
                complaints.push(text.complaint(number, &format!("the link to {target} is dead")));
            }
        }
    }
    complaints
}

/// The targets of `[text](target)`, with the numbers of their lines; not those
/// in code.
fn link_targets(document: &str) -> Vec<(usize, &str)> {
    let mut targets = Vec::new();
    let mut in_fence = false;
    for (number, line) in document.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        } else if !in_fence {
            // A text in code ends before its bracket does: [`x`](x.rs).
            let spans = line.split('`').step_by(2);
            targets.extend(spans.flat_map(targets_in).map(|target| (number, target)));
        }
    }
    targets
}

fn targets_in(span: &str) -> impl Iterator<Item = &str> {
    let behind = span.split("](").skip(1);
    behind.filter_map(|rest| Some(rest.split_once(')')?.0))
}

fn leads_somewhere(tree: &Tree, from: &Path, target: &str) -> bool {
    let (file, _anchor) = target.split_once('#').unwrap_or((target, ""));
    let elsewhere = ["http://", "https://", "mailto:"];
    if file.is_empty() || elsewhere.iter().any(|it| target.starts_with(it)) {
        return true;
    }
    let directory = from.parent().unwrap_or(Path::new(""));
    resolved(directory, file).is_some_and(|path| tree.paths.contains(&path))
}

/// `file` seen from `directory`, without `.` and `..`; None outside the
/// repository.
fn resolved(directory: &Path, file: &str) -> Option<PathBuf> {
    let mut path = directory.to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) => path.push(name),
            Component::ParentDir if path.pop() => {}
            _ => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, content) in files {
            let path = PathBuf::from(path);
            tree.paths.extend(path.ancestors().map(Path::to_path_buf));
            tree.add(path, content.as_bytes().to_vec());
        }
        tree
    }

    #[test]
    fn a_crate_uses_lower_floors_only() {
        let using = |name: &str, used: &str| {
            let path = format!("crates/{name}/Cargo.toml");
            let manifest = format!("[dependencies]\n{CRATE_PREFIX}{used}.workspace = true\n");
            floors(&tree(&[(&path, &manifest)])).len()
        };
        assert_eq!(using("socket", "wire"), 0);
        assert_eq!(using("cli", "socket"), 0);
        assert_eq!(using("proto", "device"), 1, "its own floor");
        assert_eq!(using("wire", "proto"), 1, "a higher floor");
        assert_eq!(using("socket", "sim"), 1, "a crate that is not there");
        assert_eq!(using("attic", "wire"), 1, "a crate without a floor");
    }

    #[test]
    fn dependencies_of_tests_count() {
        let manifest = "[dev-dependencies]\nsidestep-cli = { path = \"../cli\" }\n";
        let tree = tree(&[("crates/socket/Cargo.toml", manifest)]);
        assert_eq!(
            floors(&tree),
            ["crates/socket/Cargo.toml:1: socket may not use cli: it is not on a lower floor"]
        );
    }

    #[test]
    fn unsafe_is_forbidden_where_bytes_are_parsed_and_decisions_made() {
        let wire = ("crates/wire/src/lib.rs", "//! w\n#![forbid(unsafe_code)]\n");
        let derive = ("crates/derive/src/lib.rs", "//! d\n#![forbid(unsafe_code)]\n");
        let filter = ("crates/filter/src/lib.rs", "//! f\n#![forbid(unsafe_code)]\n");
        let distributor = ("crates/distributor/src/lib.rs", "//! d\n#![forbid(unsafe_code)]\n");
        let proto = ("crates/proto/src/lib.rs", "//! p\n#![forbid(unsafe_code)]\n");
        let bpf = ("crates/bpf/src/lib.rs", "//! b\n#![forbid(unsafe_code)]\n");
        let engine = ("crates/engine/src/lib.rs", "//! e\n#![forbid(unsafe_code)]\n");
        let tls = ("crates/tls/src/lib.rs", "//! t\n#![forbid(unsafe_code)]\n");
        let product = format!("//! o\n{FORBIDDEN_BUT_FOR_TESTS}\n");
        let observe = ("crates/observe/src/lib.rs", product.as_str());
        let complaints = |proto| {
            let files = [wire, derive, filter, distributor, proto, bpf, engine, tls, observe];
            forbidden_unsafe(&tree(&files)).len()
        };
        assert_eq!(complaints(proto), 0);
        assert_eq!(complaints(("crates/proto/src/lib.rs", "//! p\n#![deny(unsafe_code)]\n")), 1);
        assert_eq!(complaints(("crates/proto/src/lib.rs", product.as_str())), 1);
        let all = SAFE_CRATES.len() + SAFE_BUT_FOR_TESTS.len();
        assert_eq!(forbidden_unsafe(&tree(&[])).len(), all);
    }

    #[test]
    fn source_files_open_with_a_comment() {
        let good = [("a.rs", "//! A.\n"), ("b.c", "/* B. */\n"), ("c.txt", "C")];
        assert!(openings(&tree(&good)).is_empty());
        let bad = [("a.rs", "use std;\n"), ("b.h", "#pragma once\n")];
        assert_eq!(openings(&tree(&bad)).len(), 2);
    }

    #[test]
    fn reminders_are_found_with_their_line() {
        let source = ["//! A.\nfn f() { ", "todo", "!() }\n"].concat();
        let found = leftovers(&tree(&[("src/a.rs", &source), ("notes.md", &source)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("src/a.rs:2: "));
    }

    #[test]
    fn links_lead_to_files_and_directories() {
        let files = [("README.md", ""), ("docs/a.md", ""), ("src/lib.rs", "")];
        let dead = |document: &str| {
            let all = [&files[..], &[("docs/b.md", document)]].concat();
            links(&tree(&all)).len()
        };
        assert_eq!(dead("[a](a.md), [up](../README.md#top), [dir](../src)"), 0);
        assert_eq!(dead("[here](#here), [web](https://example.org/x)"), 0);
        assert_eq!(dead("[`lib.rs`](../src/lib.rs)"), 0);
        assert_eq!(dead("[`gone.rs`](../src/gone.rs) and [gone](gone.md)"), 2);
        assert_eq!(dead("[out](../../other.md)"), 1);
        assert_eq!(dead("`[code](gone.md)`\n```\n[code](gone.md)\n```"), 0);
    }

    #[test]
    fn this_repository_is_tidy() -> Result<()> {
        run()
    }
}
