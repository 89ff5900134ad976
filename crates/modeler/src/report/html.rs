//! The page: everything a measurement found, in one file that needs nothing else.
//!
//! Even a document made by an enemy can only show wrong figures: [`page`](super::page) forbids scripts and
//! loads, and all foreign text is cleaned and then escaped by maud; none becomes a class, an identifier, an
//! address or a style.
//!
//! From top to bottom: what was found (one sentence), summary, change relative to the
//! baseline, what contention and filters do, IBM's figures, each workload with its curves and all its figures, the
//! machine's noise certificate, and the command that measures again.

use maud::{Markup, html};

use crate::report::block::{Block, Row};
use crate::report::chart;
use crate::report::finding::{Finding, Part};
use crate::report::foreign::cleaned;
use crate::report::page::Page;
use crate::report::units;
use crate::result::Document;

mod certificate;
mod contention;
mod filter;
mod hero;
mod published;
mod relative;
mod several;
mod workload;

/// The page for one document, or for several with what they have in common.
#[must_use]
pub fn render(documents: &[Document]) -> String {
    let documents: Vec<Document> = documents.iter().map(cleaned).collect();
    let sections: Vec<Section<'_>> =
        documents.iter().enumerate().map(|(i, document)| Section::of(i, document)).collect();
    let title = match documents.as_slice() {
        [document] => Finding::of(document).text(),
        _ => format!("{} measurements", documents.len()),
    };
    let content = html! {
        @if let [section] = sections.as_slice() {
            (hero::single(section))
            (body(section))
        } @else {
            (hero::several(&sections))
            (several::same_cells(&sections))
            @for section in &sections {
                (hero::nested(section))
                (body(section))
            }
        }
    };
    Page { title: &title, name: "bench", note: UNITS, content }.render()
}

/// A document and what is derived from it once.
struct Section<'a> {
    index: usize,
    document: &'a Document,
    blocks: Vec<Block<'a>>,
}

impl<'a> Section<'a> {
    fn of(index: usize, document: &'a Document) -> Self {
        Self { index, document, blocks: Block::all(document) }
    }

    /// What tells documents of a page apart: A to Z, AA, AB and so on.
    fn letter(&self) -> String {
        let (mut rest, mut letters) = (self.index, String::new());
        loop {
            letters.insert(0, char::from(ALPHABET[rest % ALPHABET.len()]));
            match (rest / ALPHABET.len()).checked_sub(1) {
                Some(higher) => rest = higher,
                None => return letters,
            }
        }
    }

    /// Identifiers of a page begin with this, so that documents do not collide.
    fn anchor(&self, place: &str) -> String {
        format!("m{}-{place}", self.index + 1)
    }

    fn fell_back(&self) -> bool {
        self.blocks.iter().flat_map(|block| &block.rows).any(Row::fell_back)
    }
}

fn body(section: &Section<'_>) -> Markup {
    html! {
        (hero::cards(section))
        (relative::section(section))
        (contention::section(section))
        (filter::section(section))
        (published::section(section))
        (workload::section(section))
        (certificate::section(section))
    }
}

/// The finding with its figures set apart.
fn sentence(finding: &Finding) -> Markup {
    html! {
        @for part in &finding.parts {
            @match part {
                Part::Words(words) => (words),
                Part::Figure(figure) => em { (figure) },
                Part::Workload(name) => span class="workload" { (name) },
            }
        }
    }
}

/// Transports by their colours and dashes.
fn legend(transports: impl IntoIterator<Item = crate::plan::Transport>) -> Markup {
    html! {
        @for transport in transports {
            span class={ "key " (chart::class(transport)) } {
                svg class="swatch" viewBox="0 0 26 10" aria-hidden="true" { path d="M1 5H25" {} }
                (units::name(transport))
            }
        }
    }
}

const UNITS: &str = "1 MB is 1 000 000 bytes; 1 KiB is 1024.";

const ALPHABET: &[u8; 26] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
