//! Foreign text: what documents say that a stranger may have written.
//!
//! maud keeps it from becoming elements; this keeps it from commanding a terminal
//! (control characters) and from turning the text around it (bidirectional marks). It
//! is done once, to the whole document, so that no place can forget it.

use crate::result::{Cell, Comparison, Document, Machine, Published};

/// The document with every such character replaced.
pub(super) fn cleaned(document: &Document) -> Document {
    let mut document = document.clone();
    document.options.iter_mut().for_each(clean);
    document.suite.iter_mut().for_each(clean);
    clean_machine(&mut document.machine);
    document.results.iter_mut().for_each(clean_cell);
    document.comparisons.iter_mut().for_each(clean_comparison);
    for filtered in &mut document.filtered {
        clean(&mut filtered.workload);
        filtered.published.iter_mut().for_each(clean_published);
    }
    document
}

fn clean_machine(machine: &mut Machine) {
    let Machine { sidestep, began, cpu_model, kernel, hypervisor, warnings, .. } = machine;
    [sidestep, began, cpu_model, kernel].into_iter().for_each(clean);
    hypervisor.iter_mut().chain(warnings).for_each(clean);
}

fn clean_cell(cell: &mut Cell) {
    clean(&mut cell.workload);
    cell.remarks.iter_mut().for_each(|remark| clean(&mut remark.text));
    let fallbacks = std::mem::take(&mut cell.transport_proof.fallbacks);
    cell.transport_proof.fallbacks = fallbacks
        .into_iter()
        .map(|(mut reason, number)| {
            clean(&mut reason);
            (reason, number)
        })
        .collect();
}

fn clean_comparison(comparison: &mut Comparison) {
    clean(&mut comparison.workload);
    comparison.published.iter_mut().for_each(clean_published);
}

fn clean_published(published: &mut Published) {
    clean(&mut published.source);
    clean(&mut published.compared);
    published.lacking.iter_mut().for_each(clean);
}

/// In place, and only if there is something to replace: almost never.
fn clean(text: &mut String) {
    if text.contains(is_command) {
        *text = text.replace(is_command, "\u{fffd}");
    }
}

/// Control characters, and the invisible ones that arrange text: joiners, marks and
/// overrides of direction.
fn is_command(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_replaced_and_nothing_else() {
        let mut attack = "\x1b[31mred\u{202e}\r\n\u{2065}end".to_owned();
        clean(&mut attack);
        assert_eq!(attack, "\u{fffd}[31mred\u{fffd}\u{fffd}\u{fffd}\u{fffd}end");
        let mut plain = "RR10(2KB/2KB) … µs × “ü” 漢".to_owned();
        clean(&mut plain);
        assert_eq!(plain, "RR10(2KB/2KB) … µs × “ü” 漢");
    }
}
