//! The machine's noise certificate, and how to measure again.

use maud::{Markup, html};

use super::{Section, hero};
use crate::report::block::Block;
use crate::report::units;
use crate::result::{Document, Machine};

pub(super) fn section(section: &Section<'_>) -> Markup {
    let machine = &section.document.machine;
    html! {
        section id=(section.anchor("certificate")) {
            h2 { "Noise certificate" }
            div class="card certificate" {
                p class="verdict" {
                    @if machine.warnings.is_empty() {
                        span class="badge good" { "✓ quiet" } " Nothing on this machine is known to have disturbed the measurement."
                    } @else {
                        span class="badge warn" { "! disturbed" } " Read the figures with this in mind:"
                    }
                }
                @if !machine.warnings.is_empty() {
                    ul { @for warning in &machine.warnings { li { (warning) } } }
                }
                dl class="facts" {
                    @for (title, fact) in facts(machine) { div { dt { (title) } dd { (fact) } } }
                }
            }
            h2 { "Measure again" }
            pre class="card command" tabindex="0" { code { (command(section.document, &section.blocks)) } }
        }
    }
}

fn facts(machine: &Machine) -> Vec<(&'static str, String)> {
    let [one, five, fifteen] = machine.load_average.map(|load| format!("{load:.2}"));
    vec![
        ("Processor", machine.cpu_model.clone()),
        ("CPUs", machine.cpus.to_string()),
        ("Memory", units::memory(machine.memory)),
        ("Kernel", machine.kernel.clone()),
        ("Hypervisor", machine.hypervisor.clone().unwrap_or_else(|| "none found".to_owned())),
        ("Load average", format!("{one} {five} {fifteen}")),
        ("Stolen by other guests", units::percent(machine.steal_percent)),
        ("Foreign CPU load", units::percent(machine.foreign_percent)),
        ("Wake-up, same CPU", units::time(machine.wakeup_same_cpu_us)),
        ("Wake-up, other CPU", other_cpu(machine)),
        (
            "Generator's own cost",
            format!("{} a transaction", units::time(machine.generator_us_per_tran)),
        ),
        ("Began", hero::moment(&machine.began)),
        ("Took", units::span(machine.took_s)),
        ("Sidestep", machine.sidestep.clone()),
    ]
}

fn other_cpu(machine: &Machine) -> String {
    if machine.wakeup_other_cpu_us == 0.0 {
        return "there is none".to_owned();
    }
    units::time(machine.wakeup_other_cpu_us)
}

/// What to type: the suite, or the workloads in their order, and the options.
fn command(document: &Document, blocks: &[Block<'_>]) -> String {
    let mut words = vec!["sidestep".to_owned(), "bench".to_owned()];
    if let Some(suite) = &document.suite {
        words.extend(["--suite".to_owned(), quoted(suite)]);
    } else {
        let mut names: Vec<&str> = Vec::new();
        for block in blocks {
            if !names.contains(&block.key.workload) {
                names.push(block.key.workload);
            }
        }
        words.extend(names.into_iter().map(quoted));
    }
    words.extend(document.options.iter().map(|option| quoted(option)));
    words.join(" ")
}

/// A word that a shell takes as it is.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/%+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_cannot_be_led_astray() {
        assert_eq!(quoted("--pairs"), "--pairs");
        assert_eq!(quoted("RR10(2KB/2KB)"), "'RR10(2KB/2KB)'");
        assert_eq!(quoted("';rm -r ~;'"), r"''\'';rm -r ~;'\'''");
        assert_eq!(quoted(""), "''");
    }
}
