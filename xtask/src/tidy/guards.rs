//! Guards are made when their answer is known, not before.
//!
//! `taken.then_some(Guard(x))` makes the guard also when `taken` is false, and drops it at once: so it gives
//! back what it has never had. `then(|| Guard(x))` does not. The same holds for every call that takes a value
//! for a case that may not come.
//!
//! A guard is a type with a `Drop` of its own; which types of a crate have one is known by name.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall, Item, ItemImpl, Type};

use super::{FLOORS, Text, Tree, circles};

/// Methods that are given a value whether or not they need it.
const EAGER: [&str; 5] = ["then_some", "unwrap_or", "map_or", "or", "get_or_insert"];

/// Complains of each guard that is made for a case that may not come.
pub(super) fn eager_guards(tree: &Tree) -> Vec<String> {
    FLOORS.iter().copied().flatten().flat_map(|name| in_crate(tree, name)).collect()
}

fn in_crate(tree: &Tree, name: &str) -> Vec<String> {
    let root = format!("crates/{name}/src");
    let is_source = |text: &&Text| text.path.starts_with(&root) && text.extension() == "rs";
    // What does not parse, the compiler says better.
    let parse = |text: &Text| Some((text.path.clone(), syn::parse_file(&text.content).ok()?));
    let files: Vec<_> = tree.texts.iter().filter(is_source).filter_map(parse).collect();
    let mut guards = Guards::default();
    files.iter().for_each(|(_, file)| guards.visit_file(file));
    let complaints = files.iter().flat_map(|(path, file)| {
        let mut seeker = Seeker { guards: &guards.0, of: None, methods: Vec::new() };
        seeker.visit_file(file);
        seeker.methods.into_iter().map(move |method| {
            let path = path.display();
            format!("{path}: `{method}` drops a guard that it does not need: make it in a closure")
        })
    });
    complaints.collect()
}

/// The names of all types that implement `Drop`.
#[derive(Default)]
struct Guards(BTreeSet<String>);

impl<'ast> Visit<'ast> for Guards {
    fn visit_item(&mut self, item: &'ast Item) {
        if !circles::is_for_tests(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let name = item.trait_.as_ref().and_then(|(path, _)| path.segments.last());
        if name.is_some_and(|name| name.ident == "Drop") {
            self.0.extend(name_of(&item.self_ty));
        }
    }
}

struct Seeker<'a> {
    guards: &'a BTreeSet<String>,
    /// The type that is called `Self` here.
    of: Option<String>,
    /// The methods that were given one.
    methods: Vec<String>,
}

impl Seeker<'_> {
    fn makes_guard(&self, argument: &Expr) -> bool {
        let path = match argument {
            Expr::Call(call) => match &*call.func {
                Expr::Path(function) => &function.path,
                _ => return false,
            },
            Expr::Struct(literal) => &literal.path,
            _ => return false,
        };
        let Some(name) = path.segments.last().map(|segment| segment.ident.to_string()) else {
            return false;
        };
        match &*name {
            "Self" => self.of.as_ref().is_some_and(|of| self.guards.contains(of)),
            "Some" => match argument {
                Expr::Call(call) => call.args.iter().any(|inner| self.makes_guard(inner)),
                _ => false,
            },
            name => self.guards.contains(name),
        }
    }
}

impl<'ast> Visit<'ast> for Seeker<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !circles::is_for_tests(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let outer = std::mem::replace(&mut self.of, name_of(&item.self_ty));
        visit::visit_item_impl(self, item);
        self.of = outer;
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let method = call.method.to_string();
        if EAGER.contains(&&*method) && call.args.iter().any(|argument| self.makes_guard(argument))
        {
            self.methods.push(method);
        }
        visit::visit_expr_method_call(self, call);
    }
}

fn name_of(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    const GUARD: &str = "struct Held(u8); impl Drop for Held { fn drop(&mut self) {} }";

    fn complaints(code: &str) -> usize {
        eager_guards(&tree(&[("crates/socket/src/lib.rs", &format!("{GUARD}\n{code}"))])).len()
    }

    #[test]
    fn a_guard_that_may_be_in_vain_is_made_in_a_closure() {
        for code in [
            "impl Held { fn f(b: bool) -> Option<Self> { b.then_some(Self(1)) } }",
            "fn f(b: bool) -> Option<Held> { b.then_some(Held(1)) }",
            "fn f(held: Option<Held>) -> Option<Held> { held.or(Some(Held(1))) }",
            "fn f(held: Option<Held>) -> Held { held.unwrap_or(a::Held(1)) }",
        ] {
            assert_eq!(complaints(code), 1, "{code}");
        }
        for code in [
            "impl Held { fn f(b: bool) -> Option<Self> { b.then(|| Self(1)) } }",
            "struct Plain(u8); impl Plain { fn f(b: bool) -> Option<Self> { b.then_some(Self(1)) } }",
            "#[cfg(test)] mod tests { fn f(b: bool) -> Option<Held> { b.then_some(Held(1)) } }",
            "fn f(b: bool, held: u8) -> Option<u8> { b.then_some(held) }",
        ] {
            assert_eq!(complaints(code), 0, "{code}");
        }
    }
}
