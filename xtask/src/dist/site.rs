//! The documentation as a site, by mdBook: the documents of the repository in an order for readers, with a search.
//!
//! Documents lead to source files, which a host does not have: there the words stay and the link goes. All other links of what
//! mdBook has made are followed, and one that leads nowhere is an error.

mod check;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Release, said_by, write};
use crate::bench::place;

/// From crates.io, built for this only.
const MDBOOK: &str = "0.5.4";

/// What is on the site: parts, and their pages below the root of the repository.
const PARTS: [(&str, &[&str]); 6] = [
    (
        "Begin",
        &[
            "README.md",
            "docs/installing.md",
            "docs/configuration.md",
            "docs/compatibility.md",
            "docs/limitations.md",
        ],
    ),
    (
        "On one host",
        &[
            "docs/ss.md",
            "docs/operations.md",
            "docs/monitoring.md",
            "docs/agent.md",
            "docs/kubernetes.md",
            "docs/filter.md",
            "docs/vip.md",
        ],
    ),
    (
        "Between hosts",
        &[
            "docs/gateway.md",
            "docs/tcp-option.md",
            "docs/tls.md",
            "docs/syslog.md",
            "docs/distributor.md",
            "docs/decode.md",
        ],
    ),
    (
        "Measuring",
        &[
            "docs/probe.md",
            "docs/bench.md",
            "docs/bench-suites.md",
            "docs/bench-compare.md",
            "docs/bench-json.md",
            "docs/performance.md",
            "docs/macro.md",
            "docs/scheduling.md",
            "docs/machines.md",
        ],
    ),
    (
        "Inside",
        &[
            "ARCHITECTURE.md",
            "docs/threat-model.md",
            "docs/testing.md",
            "docs/posix.md",
            "docs/suites.md",
        ],
    ),
    ("Reference", &["docs/glossary.md", "CHANGELOG.md"]),
];

const BOOK: &str = "[book]\n\
    title = \"Sidestep\"\n\
    language = \"en\"\n\
    [output.html]\n\
    preferred-dark-theme = \"navy\"\n\
    [output.html.print]\n\
    enable = false\n";

/// Makes it; returns the directory that it is in.
///
/// **Errors**: mdBook cannot be had or says no, a document is not on the site, or a link leads nowhere.
pub(super) fn make(release: &Release) -> Result<PathBuf> {
    let mdbook = mdbook(&release.repo)?;
    let work = release.scratch("site")?;
    let source = work.join("src");
    for page in pages() {
        let text = fs::read_to_string(release.repo.join(page)).with_context(|| page.to_owned())?;
        write(&source.join(name(page)), linked(page, &text))?;
    }
    write(&source.join("SUMMARY.md"), summary(&release.repo)?)?;
    write(&work.join("book.toml"), BOOK)?;
    let images = release.repo.join("docs/images");
    said_by(Command::new("cp").arg("--archive").arg(images).arg(source.join("images")))?;
    said_by(release.tool(&mdbook.display().to_string()).arg("build").arg(&work))?;
    let site = work.join("book");
    check::links(&site)?;
    Ok(site)
}

/// Where the program of this version is kept, which nothing else uses.
fn root_of_mdbook(repo: &Path) -> PathBuf {
    place::target_dir(repo).join("mdbook").join(MDBOOK)
}

fn mdbook(repo: &Path) -> Result<PathBuf> {
    let root = root_of_mdbook(repo);
    let program = root.join("bin/mdbook");
    if !program.exists() {
        println!("building mdBook {MDBOOK} ...");
        let install = ["install", "mdbook", "--version", MDBOOK, "--locked", "--quiet"];
        let without_server = ["--no-default-features", "--features", "search", "--root"];
        said_by(Command::new("cargo").args(install).args(without_server).arg(&root))?;
    }
    Ok(program)
}

fn pages() -> impl Iterator<Item = &'static str> {
    PARTS.iter().flat_map(|(_, pages)| pages.iter().copied())
}

/// What a page is called on the site.
fn name(page: &str) -> &str {
    page.strip_prefix("docs/").unwrap_or(page)
}

/// The table of contents.
fn summary(repo: &Path) -> Result<String> {
    let mut summary = String::from("# Summary\n");
    for (part, pages) in PARTS {
        summary += &format!("\n# {part}\n\n");
        for page in pages {
            let text = fs::read_to_string(repo.join(page))?;
            let title = text.lines().find_map(|line| line.strip_prefix("# "));
            let title = title.with_context(|| format!("{page} has no title"))?;
            summary += &format!("- [{title}]({})\n", name(page));
        }
    }
    let documents: BTreeSet<_> = pages().collect();
    for entry in fs::read_dir(repo.join("docs"))? {
        let file = entry?.file_name().into_string().unwrap_or_default();
        let is_listed = documents.contains(format!("docs/{file}").as_str());
        ensure!(
            !file.ends_with(".md") || is_listed,
            "docs/{file} is not on the site: name it in site.rs"
        );
    }
    Ok(summary)
}

/// A page whose links lead to pages of the site and to other sites.
fn linked(page: &str, text: &str) -> String {
    let mut linker = Linker { page, text: String::with_capacity(text.len()), open: Vec::new() };
    let (mut in_fence, mut in_code) = (false, false);
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
            linker.text.push_str(line);
        } else if in_fence {
            linker.text.push_str(line);
        } else {
            linker.line(line, &mut in_code);
        }
    }
    linker.text
}

struct Linker<'a> {
    page: &'a str,
    text: String,
    /// Where brackets stand in it that are not closed.
    open: Vec<usize>,
}

impl Linker<'_> {
    fn line(&mut self, line: &str, in_code: &mut bool) {
        let mut rest = line;
        while let Some(at) = rest.find(['`', '[', ']']) {
            self.text.push_str(&rest[..at]);
            let (mark, behind) = rest[at..].split_at(1);
            rest = behind;
            match mark {
                "`" => *in_code = !*in_code,
                "[" if !*in_code => self.open.push(self.text.len()),
                "]" if !*in_code => {
                    rest = self.close(behind);
                    continue;
                }
                _ => {}
            }
            self.text.push_str(mark);
        }
        self.text.push_str(rest);
    }

    /// Ends what a bracket has begun; returns what follows its link.
    fn close<'t>(&mut self, behind: &'t str) -> &'t str {
        let begun = self.open.pop();
        let target = behind.strip_prefix('(').and_then(|it| it.split_once(')'));
        let (Some(begun), Some((target, rest))) = (begun, target) else {
            self.text.push(']');
            return behind;
        };
        match destination(self.page, target) {
            Some(to) => self.text.push_str(&format!("]({to})")),
            None => drop(self.text.remove(begun)),
        }
        rest
    }
}

/// Where a link of a page leads on the site; `None`: to a file that is not there.
fn destination(page: &str, target: &str) -> Option<String> {
    if target.starts_with('#') || target.contains("://") {
        return Some(target.to_owned());
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |it| (it.0, Some(it.1)));
    let path = match file.strip_prefix("../") {
        Some(path) => path.to_owned(),
        None if page.starts_with("docs/") => format!("docs/{file}"),
        None => file.to_owned(),
    };
    let is_image = path.starts_with("docs/images/");
    let known = pages().find(|it| *it == path).map(name);
    let to = known.or_else(|| is_image.then(|| path.trim_start_matches("docs/")))?;
    Some(anchor.map_or_else(|| to.to_owned(), |anchor| format!("{to}#{anchor}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_pages_stay_and_links_to_sources_go() {
        let on_page = |text| linked("docs/agent.md", text);
        assert_eq!(on_page("[a](ss.md#b), [c](#d)"), "[a](ss.md#b), [c](#d)");
        assert_eq!(on_page("[RFC](https://x.org/a)"), "[RFC](https://x.org/a)");
        assert_eq!(on_page("[`run.rs`](../crates/cli/src/run.rs)."), "`run.rs`.");
        assert_eq!(on_page("[all](../README.md)"), "[all](README.md)");
        assert_eq!(on_page("![x](images/costs.svg)"), "![x](images/costs.svg)");
        assert_eq!(linked("README.md", "[a](docs/agent.md)"), "[a](agent.md)");
    }

    #[test]
    fn a_text_may_have_brackets_code_and_line_feeds() {
        let on_page = |text| linked("docs/agent.md", text);
        assert_eq!(on_page("[see `[share]`](../xtask/a.rs)"), "see `[share]`");
        assert_eq!(on_page("two [long\nwords](../xtask/a.rs) [x]"), "two long\nwords [x]");
        assert_eq!(on_page("`a[0](b)`"), "`a[0](b)`");
        assert_eq!(on_page("```\n[a](../b)\n```\n"), "```\n[a](../b)\n```\n");
    }

    #[test]
    fn every_link_of_the_site_leads_somewhere() -> Result<()> {
        let repo = place::repo_root()?;
        if !root_of_mdbook(&repo).exists() {
            println!("skipped: there is no mdBook yet, which `cargo xtask dist` builds");
            return Ok(());
        }
        let (version, out) = (String::new(), PathBuf::new());
        make(&Release { repo, version, revision: 1, time: 0, out }).map(drop)
    }

    #[test]
    fn every_document_has_its_place_and_a_title() -> Result<()> {
        let summary = summary(&place::repo_root()?)?;
        assert_eq!(summary.matches("](").count(), pages().count());
        Ok(())
    }
}
