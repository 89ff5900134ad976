//! How often `unsafe` stands above shared memory: as often as a list says, and never more.
//!
//! Two rooms need it: `device`, which maps memory and enters the kernel, and `preload`, whose callers
//! are C. What stands between them works with references that these two hand out. Each use there is
//! one that a reviewer has to prove beside a protocol, so their number may only go down.
//!
//! A use is each `unsafe` in front of a block, a function, an implementation, a trait, a block of
//! foreign functions, or the type of a function; in a macro, each word `unsafe`. Tests do not count.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{
    ExprUnsafe, Item, ItemForeignMod, ItemImpl, ItemTrait, Macro, Safety, Signature, TypeFnPtr,
};

use super::{Text, Tree, circles};

/// Crates between shared memory and the table of libc's names that are not without `unsafe`
/// altogether, and how many uses each has.
const USES: [(&str, usize); 3] = [("socket", 25), ("gateway", 4), ("bpf", 2)];

/// Complains of each crate that has more uses than the list says, or fewer.
pub(super) fn uses(tree: &Tree) -> Vec<String> {
    USES.iter().flat_map(|(name, listed)| compare(tree, name, *listed)).collect()
}

/// Uses of `unsafe` in all crates of the list.
pub(super) fn total() -> usize {
    USES.iter().map(|(_, listed)| listed).sum()
}

fn compare(tree: &Tree, name: &str, listed: usize) -> Vec<String> {
    let root = format!("crates/{name}/src");
    let is_source = |text: &&Text| text.path.starts_with(&root) && text.extension() == "rs";
    let counts = tree.texts.iter().filter(is_source).map(|text| Some((text, count(text)?)));
    let counts: Vec<_> = counts.flatten().filter(|(_, uses)| *uses > 0).collect();
    let total: usize = counts.iter().map(|(_, uses)| uses).sum();
    if total == listed {
        return Vec::new();
    }
    let verdict = if total > listed { "there may be no more" } else { "the list has to go down" };
    let places: Vec<String> =
        counts.iter().map(|(text, uses)| format!("{} {uses}", text.path.display())).collect();
    let places = places.join(", ");
    vec![format!("{root}: {total} uses of unsafe, {listed} listed: {verdict} ({places})")]
}

/// `None`: it does not parse, which the compiler says better.
fn count(text: &Text) -> Option<usize> {
    let mut counter = Counter(0);
    counter.visit_file(&syn::parse_file(&text.content).ok()?);
    Some(counter.0)
}

struct Counter(usize);

impl Counter {
    fn add(&mut self, is_unsafe: bool) {
        self.0 += usize::from(is_unsafe);
    }
}

impl<'ast> Visit<'ast> for Counter {
    fn visit_item(&mut self, item: &'ast Item) {
        if !circles::is_for_tests(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_expr_unsafe(&mut self, block: &'ast ExprUnsafe) {
        self.add(true);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        self.add(matches!(signature.safety, Safety::Unsafe(_)));
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        self.add(item.unsafety.is_some());
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.add(item.unsafety.is_some());
        visit::visit_item_trait(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast ItemForeignMod) {
        self.add(item.unsafety.is_some());
        visit::visit_item_foreign_mod(self, item);
    }

    fn visit_type_fn_ptr(&mut self, pointer: &'ast TypeFnPtr) {
        self.add(pointer.unsafety.is_some());
        visit::visit_type_fn_ptr(self, pointer);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.0 += words(call.tokens.clone());
    }
}

/// The words `unsafe` in what a macro is given.
fn words(tokens: TokenStream) -> usize {
    let uses = tokens.into_iter().map(|token| match token {
        TokenTree::Group(group) => words(group.stream()),
        TokenTree::Ident(name) => usize::from(name == "unsafe"),
        TokenTree::Punct(_) | TokenTree::Literal(_) => 0,
    });
    uses.sum()
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn complaints(listed: usize, content: &str) -> Vec<String> {
        compare(&tree(&[("crates/x/src/a.rs", content)]), "x", listed)
    }

    #[test]
    fn each_use_counts_once() {
        let uses = [
            "fn f() { unsafe { g() } }",
            "unsafe fn f() {}",
            "unsafe impl Send for A {}",
            "unsafe trait A {}",
            "unsafe extern \"C\" { fn f(); }",
            "static F: unsafe fn(i32) = g;",
            "fn f() { assert!(unsafe { g() }) }",
            "impl A { unsafe fn f() {} }",
        ];
        for content in uses {
            assert!(complaints(1, content).is_empty(), "{content}");
            let expected = "crates/x/src: 1 uses of unsafe, 0 listed: there may be no more \
                            (crates/x/src/a.rs 1)";
            assert_eq!(complaints(0, content), [expected]);
        }
        assert!(complaints(8, &uses.join("\n")).is_empty());
    }

    #[test]
    fn what_has_become_less_is_listed() {
        let expected = "crates/x/src: 0 uses of unsafe, 1 listed: the list has to go down ()";
        assert_eq!(complaints(1, "//! unsafe\nfn f() {}"), [expected]);
    }

    #[test]
    fn tests_may_be_unsafe() {
        let content = "#[cfg(test)] mod tests { fn f() { unsafe { g() } } }";
        assert!(complaints(0, content).is_empty());
    }
}
