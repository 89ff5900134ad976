//! Drawings of state machines, printed from the code and held in `docs/machines.md`.
//!
//! A test plays each event in each state that can be reached, draws what follows in Mermaid's language, and
//! compares with the document. An event that is left out is refused in that state.

use std::borrow::ToOwned;
use std::fmt::Debug;
use std::format;
use std::string::String;
use std::vec::Vec;

const DOCUMENT: &str = include_str!("../../../docs/machines.md");

/// Whether the document shows the drawing of a machine under its name.
///
/// # Panics
/// It does not. The message is what it has to show.
pub(crate) fn check<S: Copy + PartialEq + Debug, E: Copy>(
    name: &str,
    first: &[S],
    events: &[(&str, E)],
    next: impl Fn(S, E) -> Option<S>,
) {
    let drawing = format!("### {name}\n\n{}", draw(first, events, next));
    assert!(DOCUMENT.contains(&drawing), "docs/machines.md has to show:\n{drawing}");
}

fn draw<S: Copy + PartialEq + Debug, E: Copy>(
    first: &[S],
    events: &[(&str, E)],
    next: impl Fn(S, E) -> Option<S>,
) -> String {
    let arrow = |from: &str, to: &str| format!("    {from} --> {to}");
    let mut lines: Vec<String> = first.iter().map(|state| arrow("[*]", &name(state))).collect();
    let mut states = first.to_vec();
    let mut at = 0;
    while let Some(state) = states.get(at).copied() {
        at += 1;
        let before = lines.len();
        for (event, what) in events {
            let Some(to) = next(state, *what) else { continue };
            lines.push(format!("{}: {event}", arrow(&name(&state), &name(&to))));
            if !states.contains(&to) {
                states.push(to);
            }
        }
        if lines.len() == before {
            lines.push(arrow(&name(&state), "[*]"));
        }
    }
    format!("```mermaid\nstateDiagram-v2\n{}\n```\n", lines.join("\n"))
}

/// Of a state without what it carries.
fn name(state: &impl Debug) -> String {
    let told = format!("{state:?}");
    told.split([' ', '(']).next().unwrap_or_default().to_owned()
}
