//! How users write values, and read them: sizes, lists, and the words of a choice.

use std::fmt;

use clap::ValueEnum;

/// The entries of a list in one text.
pub(crate) fn listed<T: fmt::Display>(entries: &[T], between: &str) -> String {
    let entries: Vec<String> = entries.iter().map(T::to_string).collect();
    entries.join(between)
}

/// A number of bytes as a user would write it, such as `64KB`.
pub(crate) fn shown_size(bytes: u64) -> String {
    let units = [(30, "GB"), (20, "MB"), (10, "KB")];
    let unit = units.iter().find(|(shift, _)| bytes != 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// A number of bytes with a unit or without, such as `64KB`. One KB is 1024 bytes.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

/// The word a user writes for `value`.
pub(crate) fn keyword<T: ValueEnum>(value: &T) -> String {
    // No value is marked `#[value(skip)]`, so each has a word.
    value.to_possible_value().map_or_else(String::new, |word| word.get_name().to_owned())
}

/// The value whose word is `text`.
///
/// # Errors
///
/// A sentence with the words that would do.
pub(crate) fn parse_keyword<T: ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let words: Vec<_> = T::value_variants().iter().map(keyword).collect();
        format!("`{text}` is not one of: {}", words.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_the_largest_unit_that_fits() {
        let shown = [0, 1000, 64 << 10, 1 << 20, 1536 << 10, 2 << 30].map(shown_size);
        assert_eq!(shown, ["0", "1000", "64KB", "1MB", "1536KB", "2GB"]);
    }
}
