//! Modules of a crate form no circle: each can be read, and changed, after those that it uses.
//!
//! A crate may put its modules into rooms, which are folders. They lie above one another, and a module uses
//! only modules of its own room and of those below.
//!
//! A module is a file; what stands inside of braces belongs to its file. It uses another module if
//! a path in it, in a `use` or anywhere else, leads to that module or to an item there: the path
//! `crate::Item` uses the root, though the root may have the item from elsewhere. A parent's
//! `mod child;` is no use, and tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

use super::{Text, Tree};

/// Crates whose modules form no circle.
const CRATES: [&str; 14] = [
    "bpf", "cli", "derive", "device", "engine", "filter", "gateway", "modeler", "observe",
    "preload", "proto", "rdma", "socket", "wire",
];

/// Crates with rooms, from the highest to the lowest.
const ROOMS: [(&str, &[&str]); 1] =
    [("socket", &["program", "rendezvous", "polling", "connection", "table", "process"])];

/// A module, as the names that lead to it from the root of its crate.
type Module = Vec<String>;
/// The modules that each module uses.
type Uses = BTreeMap<Module, BTreeSet<Module>>;

pub(super) fn circles(tree: &Tree) -> Vec<String> {
    CRATES.iter().flat_map(|name| circles_of_crate(tree, name)).collect()
}

fn circles_of_crate(tree: &Tree, name: &str) -> Vec<String> {
    let files: BTreeMap<Module, &Text> = tree
        .texts
        .iter()
        .filter_map(|text| Some((module_of_file(&text.path, name)?, text)))
        .collect();
    let mut uses = Uses::new();
    for (module, text) in &files {
        match syn::parse_file(&text.content) {
            Ok(file) => {
                let mut finder = Finder { module, files: &files, depth: 0, found: BTreeSet::new() };
                finder.visit_file(&file);
                uses.insert(module.clone(), finder.found);
            }
            Err(error) => return vec![text.complaint(0, &error.to_string())],
        }
    }
    let circle = |circle: Vec<Module>| {
        let names: Vec<String> = circle.iter().map(|module| shown(module)).collect();
        format!("crates/{name}: modules use each other: {}", names.join(", "))
    };
    let rooms = ROOMS.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, rooms)| rooms);
    let upward = upward(&uses, rooms).into_iter().map(|(module, used)| {
        let (module, used) = (shown(module), shown(used));
        format!("crates/{name}: {module} uses {used}, which is in a higher room")
    });
    circles_in(&uses).into_iter().map(circle).chain(upward).collect()
}

/// Uses of modules in higher rooms; a module that stands in none is above all.
fn upward<'a>(uses: &'a Uses, rooms: &[&str]) -> Vec<(&'a Module, &'a Module)> {
    // The root has no room: what it has, all may use.
    let floor = |module: &Module| match module.first() {
        Some(first) => rooms.iter().position(|room| room == first).unwrap_or(0),
        None => rooms.len(),
    };
    let all = uses.iter().flat_map(|(module, used)| used.iter().map(move |used| (module, used)));
    all.filter(|(module, used)| !rooms.is_empty() && floor(used) < floor(module)).collect()
}

/// `[host, process]` for `crates/NAME/src/host/process.rs`, nothing for the root.
fn module_of_file(path: &Path, name: &str) -> Option<Module> {
    let inside = path.strip_prefix(format!("crates/{name}/src")).ok()?;
    let inside = inside.to_str()?.strip_suffix(".rs")?;
    let is_root = ["lib", "main"].contains(&inside);
    Some(inside.split('/').filter(|_| !is_root).map(str::to_owned).collect())
}

fn shown(module: &[String]) -> String {
    if module.is_empty() { "the root".to_owned() } else { module.join("::") }
}

/// Collects which modules one file uses.
struct Finder<'a> {
    module: &'a Module,
    files: &'a BTreeMap<Module, &'a Text>,
    /// Modules in braces around what is visited.
    depth: usize,
    found: BTreeSet<Module>,
}

impl Finder<'_> {
    /// A path that stands in the module.
    fn add(&mut self, path: &[String]) {
        let Some(absolute) = self.absolute(path) else { return };
        // The longest part of it that is a module; what follows are items.
        let modules = (0..=absolute.len()).rev().map(|len| &absolute[..len]);
        let used = modules.map(<[String]>::to_vec).find(|module| self.files.contains_key(module));
        self.found.extend(used.filter(|used| used != self.module));
    }

    /// The path from the root of the crate; `None`: it leads elsewhere.
    fn absolute(&self, path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        if first == "crate" {
            return Some(rest.to_vec());
        }
        let ups = path.iter().take_while(|name| *name == "super").count();
        let files_up = ups.saturating_sub(self.depth);
        let base = &self.module[..self.module.len().checked_sub(files_up)?];
        let rest = if first == "self" { rest } else { &path[ups..] };
        // Else a path begins with a child of the module, or is another crate's or an item's.
        let child = || [base, &path[..1]].concat();
        let is_here = ups > 0 || first == "self" || self.files.contains_key(&child());
        is_here.then(|| [base, rest].concat())
    }

    fn add_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.add_tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) if name.ident == "self" => self.add(before),
            UseTree::Name(name) => self.add(&with(&name.ident)),
            UseTree::Rename(rename) => self.add(&with(&rename.ident)),
            UseTree::Glob(_) => self.add(before),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_tree(before, tree));
            }
        }
    }
}

/// Whether an item is compiled for tests alone.
pub(super) fn is_for_tests(item: &Item) -> bool {
    let attributes: &[Attribute] = match item {
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        _ => &[],
    };
    attributes.iter().any(is_test)
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(item) {
            let inside = usize::from(matches!(item, Item::Mod(_)));
            self.depth += inside;
            visit::visit_item(self, item);
            self.depth -= inside;
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_tree(&[], &item.tree);
    }

    /// `pub(crate)` and `pub(in path)` say who may use, not what is used.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|it| it.ident.to_string()).collect();
        self.add(&names);
        visit::visit_path(self, path);
    }
}

/// `#[cfg(test)]`, also among other conditions.
fn is_test(attribute: &Attribute) -> bool {
    let words = |list: &syn::MetaList| list.tokens.to_string();
    let condition = attribute.meta.require_list().ok().filter(|list| list.path.is_ident("cfg"));
    condition.map(words).is_some_and(|words| words == "test" || words.starts_with("all (test"))
}

/// The largest sets of modules each of which leads to each other one.
fn circles_in(uses: &Uses) -> Vec<Vec<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        uses.keys().map(|module| (module, reached_from(module, uses))).collect();
    let circle = |module: &Module| -> Vec<Module> {
        let back = reached[module].iter().filter(|other| reached[**other].contains(module));
        back.map(|other| (*other).clone()).collect()
    };
    let circles: BTreeSet<Vec<Module>> = uses.keys().map(circle).collect();
    circles.into_iter().filter(|circle| !circle.is_empty()).collect()
}

fn reached_from<'a>(module: &Module, uses: &'a Uses) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&Module> = uses[module].iter().collect();
    while let Some(next) = left.pop() {
        if reached.insert(next) {
            left.extend(&uses[next]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<String> =
            files.iter().map(|(path, _)| format!("crates/x/src/{path}")).collect();
        let all: Vec<(&str, &str)> =
            paths.iter().zip(files).map(|(path, (_, text))| (path.as_str(), *text)).collect();
        circles_of_crate(&tree(&all), "x")
    }

    #[test]
    fn modules_that_use_each_other_are_a_circle() {
        let lib = ("lib.rs", "mod a; mod b; mod c; pub use a::A;");
        let (a, b) = (("a.rs", "use crate::b::B;"), ("b.rs", "use crate::c::{self, C};"));
        assert!(found(&[lib, a, b, ("c.rs", "use std::fmt;")]).is_empty());
        let circle = "crates/x: modules use each other: a, b, c";
        for c in ["use crate::a::A;", "fn f() { super::a::g() }", "fn f(_: crate::a::A) {}"] {
            assert_eq!(found(&[lib, a, b, ("c.rs", c)]), [circle], "{c}");
        }
    }

    #[test]
    fn an_item_of_the_root_leads_back_to_the_root() {
        let lib = ("lib.rs", "mod a; pub use a::A;");
        let circle = "crates/x: modules use each other: the root, a";
        assert_eq!(found(&[lib, ("a.rs", "use crate::Item;")]), [circle]);
        assert_eq!(found(&[lib, ("a.rs", "use super::*;")]), [circle]);
        let a = "use self::inner::I; mod inner {} pub(crate) fn f() {} pub(super) struct S;";
        assert!(found(&[lib, ("a.rs", a)]).is_empty());
    }

    #[test]
    fn children_and_siblings_are_told_apart() {
        let parent = ("a.rs", "mod b; mod c; use b::B; fn f() { c::g(); b::c::h() }");
        let (b, c) = (("a/b.rs", "use super::c::C;"), ("a/c.rs", "use b::B; use c::C;"));
        assert!(found(&[parent, b, c]).is_empty(), "`b` is another crate's in `c`");
        let c = ("a/c.rs", "use super::b;");
        assert_eq!(found(&[parent, b, c]), ["crates/x: modules use each other: a::b, a::c"]);
        let c = ("a/c.rs", "use super::f;");
        assert_eq!(found(&[parent, b, c]), ["crates/x: modules use each other: a, a::b, a::c"]);
    }

    #[test]
    fn a_room_uses_those_below_it() {
        let [high, low] = ["high", "low"].map(|room| vec![room.to_owned(), "a".to_owned()]);
        let (other, root) = (vec!["other".to_owned()], Module::new());
        let uses = |of: &Module, used: &Module| Uses::from([(of.clone(), [used.clone()].into())]);
        let rooms = ["high", "low"];
        let complaints = |of, used| upward(&uses(of, used), &rooms).len();
        assert_eq!(complaints(&low, &high), 1);
        assert_eq!(
            [(&high, &low), (&low, &low), (&low, &root)].map(|(a, b)| complaints(a, b)),
            [0; 3]
        );
        assert_eq!(complaints(&low, &other), 1, "what stands in no room is above all");
        assert!(upward(&uses(&low, &high), &[]).is_empty());
    }

    #[test]
    fn a_module_in_braces_belongs_to_its_file() {
        let lib = ("lib.rs", "mod a; pub use a::A;");
        assert!(found(&[lib, ("a.rs", "pub mod inner { use super::A; }")]).is_empty());
        let a = "pub mod inner { use super::super::Item; }";
        assert_eq!(found(&[lib, ("a.rs", a)]).len(), 1);
    }

    #[test]
    fn tests_may_use_what_they_like() {
        let a = ("a.rs", "use crate::b::B;");
        let b = "#[cfg(test)] mod tests { use crate::a::A; }";
        assert!(found(&[a, ("b.rs", b)]).is_empty());
        let b = "#[cfg(all(test, not(loom)))] mod tests { use crate::a::A; }";
        assert!(found(&[a, ("b.rs", b)]).is_empty());
        let b = "#[cfg(not(loom))] mod product { use crate::a::A; }";
        assert_eq!(found(&[a, ("b.rs", b)]).len(), 1);
    }
}
