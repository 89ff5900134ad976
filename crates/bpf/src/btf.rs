//! The types of maps, as the kernel wants to be told them (BTF).
//!
//! A map is defined by a struct whose members say by their types what the map is: a
//! pointer to an array of 24 elements says 24, a pointer to a type says that type.
//!
//! ```text
//!  number  type
//!    1     int                    a key
//!                                 of each map:
//!   +1     int[length / 4]        the value
//!  +2, +3  int[kind], pointer     "type"
//!  +4, +5  int[flags], pointer    "map_flags"
//!  +6, +7  pointers to both       "key", "value"
//!   +8     the struct
//!   +9     a variable of it, with the name of the map
//!  last    the section `.maps`, in which the variables lie
//! ```
//!
//! *Source*: `Documentation/bpf/btf.rst`. A type is its name (a place among the
//! strings), its kind and number of members, and a size or another type; what follows
//! depends on the kind.

use crate::map::MapDefinition;

/// Bytes of the variable: a pointer for each member of the struct.
pub(crate) const DEFINITION_LEN: usize = 4 * POINTER_LEN as usize;

/// **Panics** if a key or a value has another length than the types above.
pub(crate) fn of_maps(maps: &[&MapDefinition]) -> Vec<u8> {
    let mut strings = Strings::default();
    let mut types = Types::default();
    types.add(strings.add("int"), INT, 0, 4, &[32]);
    let mut variables = Vec::new();
    for (place, map) in (0..).zip(maps) {
        let variable = add_map(map, &mut types, &mut strings);
        let size = DEFINITION_LEN as u32;
        variables.extend([variable, place * size, size]);
    }
    let (count, size) = (maps.len() as u32, (maps.len() * DEFINITION_LEN) as u32);
    types.add(strings.add(".maps"), SECTION, count, size, &variables);
    file(&types.bytes, &strings.bytes)
}

/// Returns the number of its variable.
fn add_map(map: &MapDefinition, types: &mut Types, strings: &mut Strings) -> u32 {
    assert!(map.key_len == 4 && map.value_len.is_multiple_of(4), "the types of {}", map.name);
    let array_of = |types: &mut Types, len| types.add(0, ARRAY, 0, 0, &[KEY, KEY, len]);
    let value = array_of(types, map.value_len / 4);
    let of_numbers = [map.kind as u32, map.flags()].map(|number| {
        let array = array_of(types, number);
        types.add(0, POINTER, 0, array, &[])
    });
    let of_types = [KEY, value].map(|it| types.add(0, POINTER, 0, it, &[]));
    let members = ["type", "map_flags", "key", "value"].into_iter();
    let members: Vec<u32> = (0..)
        .zip(members.zip([of_numbers, of_types].concat()))
        .flat_map(|(at, (name, number))| [strings.add(name), number, at * POINTER_LEN * 8])
        .collect();
    let structure = types.add(0, STRUCT, 4, DEFINITION_LEN as u32, &members);
    types.add(strings.add(map.name), VARIABLE, 0, structure, &[GLOBAL])
}

/// The number of the type of keys.
const KEY: u32 = 1;

// Kinds of types (`BTF_KIND_*`).
const INT: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
/// `BTF_VAR_GLOBAL_ALLOCATED`.
const GLOBAL: u32 = 1;

const POINTER_LEN: u32 = 8;

#[derive(Default)]
struct Types {
    bytes: Vec<u8>,
    count: u32,
}

impl Types {
    /// Returns its number; the first is 1.
    fn add(&mut self, name: u32, kind: u32, members: u32, size_or_type: u32, rest: &[u32]) -> u32 {
        let head = [name, kind << 24 | members, size_or_type];
        self.bytes.extend(head.iter().chain(rest).flat_map(|word| word.to_ne_bytes()));
        self.count += 1;
        self.count
    }
}

/// Names, each with a zero byte behind it; the first is empty.
struct Strings {
    bytes: Vec<u8>,
}

impl Default for Strings {
    fn default() -> Self {
        Self { bytes: vec![0] }
    }
}

impl Strings {
    /// Returns its place.
    fn add(&mut self, name: &str) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend(name.bytes().chain([0]));
        at
    }
}

/// The header, types and strings.
fn file(types: &[u8], strings: &[u8]) -> Vec<u8> {
    const MAGIC: u16 = 0xeb9f;
    const VERSION: u8 = 1;
    const NO_FLAGS: u8 = 0;
    const HEADER_LEN: u32 = 24;
    let mut file = MAGIC.to_ne_bytes().to_vec();
    file.extend([VERSION, NO_FLAGS]);
    let (types_len, strings_len) = (types.len() as u32, strings.len() as u32);
    let places = [HEADER_LEN, 0, types_len, types_len, strings_len];
    file.extend(places.iter().flat_map(|word| word.to_ne_bytes()));
    file.extend(types);
    file.extend(strings);
    file
}
