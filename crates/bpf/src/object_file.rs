//! The object file of maps and programs, as a compiler would have written it.
//!
//! An ELF file for the machine BPF: a section `maps` with a definition under each
//! symbol, a section of code for each program, named after its kind, and relocations
//! where code takes the address of a map. Of a map whose memory hangs on sockets the
//! kernel wants to know the types; it is defined by them ([`btf`]).

use object::write::{Object, Relocation, StandardSegment, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope, elf,
};

use crate::assembler::Code;
use crate::btf;
use crate::map::{MapDefinition, MapKind};

/// A program and where it belongs.
#[derive(Debug)]
pub(crate) struct Program {
    /// By which it is found again.
    pub(crate) name: &'static str,
    /// The section, which tells the loader the kind: `sockops`, `sk_msg`.
    pub(crate) section: &'static str,
    pub(crate) code: Code,
}

/// The bytes of the file.
///
/// **Panics** if code refers to a map that is not defined.
pub(crate) fn write(maps: &[MapDefinition], programs: &[Program]) -> Vec<u8> {
    let mut file = Object::new(BinaryFormat::Elf, Architecture::Bpf, NATIVE_ORDER);
    add_license(&mut file);
    let symbols = add_maps(&mut file, maps);
    for program in programs {
        add_program(&mut file, program, &symbols);
    }
    file.write().expect("a file of known sections")
}

/// Of the helpers that our programs call none is reserved for programs under the GPL,
/// so they bear our own licence.
fn add_license(file: &mut Object<'_>) {
    let data = file.segment_name(StandardSegment::Data).to_vec();
    let section = file.add_section(data, b"license".to_vec(), SectionKind::Data);
    file.append_section_data(section, b"Apache-2.0 OR MIT\0", 1);
}

/// Returns their names and symbols.
fn add_maps(file: &mut Object<'_>, maps: &[MapDefinition]) -> Vec<(&'static str, SymbolId)> {
    let data = file.segment_name(StandardSegment::Data).to_vec();
    let (typed, untyped): (Vec<&MapDefinition>, Vec<_>) =
        maps.iter().partition(|map| matches!(map.kind, MapKind::SkStorage));
    let mut symbols = Vec::new();
    let section = file.add_section(data.clone(), b"maps".to_vec(), SectionKind::Data);
    for map in untyped {
        let symbol = file.add_symbol(symbol(map.name, SymbolKind::Data));
        file.add_symbol_data(symbol, section, &map.bytes(), 4);
        symbols.push((map.name, symbol));
    }
    if !typed.is_empty() {
        let types = file.add_section(data.clone(), b".BTF".to_vec(), SectionKind::Other);
        file.append_section_data(types, &btf::of_maps(&typed), 4);
        let section = file.add_section(data, b".maps".to_vec(), SectionKind::Data);
        for map in typed {
            let symbol = file.add_symbol(symbol(map.name, SymbolKind::Data));
            // What stands there is not read: the types say all.
            file.add_symbol_data(symbol, section, &[0; btf::DEFINITION_LEN], 8);
            symbols.push((map.name, symbol));
        }
    }
    symbols
}

fn add_program(file: &mut Object<'_>, program: &Program, maps: &[(&'static str, SymbolId)]) {
    let text = file.segment_name(StandardSegment::Text).to_vec();
    let section = file.add_section(text, program.section.into(), SectionKind::Text);
    let symbol = file.add_symbol(symbol(program.name, SymbolKind::Text));
    let begin = file.add_symbol_data(symbol, section, &program.code.bytes, 8);
    for reference in &program.code.map_references {
        let map = maps.iter().find(|(name, _)| *name == reference.map);
        let (_, symbol) = *map.unwrap_or_else(|| panic!("no map {}", reference.map));
        let flags = RelocationFlags::Elf { r_type: elf::R_BPF_64_64 };
        let relocation = Relocation { offset: begin + reference.at, symbol, addend: 0, flags };
        file.add_relocation(section, relocation).expect("a relocation BPF has");
    }
}

/// One whose place and size are told by its data.
fn symbol(name: &str, kind: SymbolKind) -> Symbol {
    Symbol {
        name: name.into(),
        value: 0,
        size: 0,
        kind,
        scope: SymbolScope::Linkage,
        weak: false,
        section: SymbolSection::Undefined,
        flags: SymbolFlags::None,
    }
}

const NATIVE_ORDER: Endianness =
    if cfg!(target_endian = "little") { Endianness::Little } else { Endianness::Big };
