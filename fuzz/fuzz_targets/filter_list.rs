//! Texts of filter rules, ours and others': none makes a reader panic.
//!
//! * What is written of a list is read as the same list.
//! * What an import writes is a list, whatever it has quoted.
//! * A list that compiles answers like itself, searched from top to bottom.
//!
//! `cargo xtask fuzz filter_list`

#![no_main]

use std::ops::RangeInclusive;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use sidestep_filter::profiles::Packets;
use sidestep_filter::{CompileError, Format, Group, Groups, Names, RuleList, compile, import};

/// Every name has a meaning.
struct Machine(Groups);

impl Names for Machine {
    fn interface(&self, name: &str) -> Option<u32> {
        Some(name.len() as u32 % 2)
    }

    fn user(&self, name: &str) -> Option<u32> {
        Some(name.len() as u32 % 4)
    }

    fn group(&self, group: &Group) -> Option<RangeInclusive<u32>> {
        self.0.numbers(group)
    }
}

fuzz_target!(|text: &str| {
    if let Ok(list) = RuleList::parse(text) {
        let written = list.to_string();
        assert_eq!(RuleList::parse(&written).expect("a list").to_string(), written);
        let machine = Machine(Groups::of(&list, |unit| Path::new("/a").join(unit)));
        match compile(&list, &machine) {
            Ok(compiled) => {
                for packet in Packets::new(&list, 1).take(50) {
                    let verdict = compiled.graph.lookup(&packet);
                    assert_eq!(verdict.rule, list.first_match(&packet, &machine), "{packet}");
                }
            }
            Err(CompileError::Steps { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    for format in [Format::IptablesSave, Format::Nft, Format::PolicyAgent] {
        if let Ok(imported) = import(format, text) {
            RuleList::parse(&imported.to_string()).expect("a list");
        }
    }
});
