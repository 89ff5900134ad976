//! The cells of a layout table.
//!
//! Each message file opens with a table of its fields: name, offset, length. Reader and writer both
//! go through that one table, so that what is written at an offset is read from the same one, and
//! an error can name the field.

/// `N` bytes, `at` bytes after the start of their message or section.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<const N: usize> {
    /// What errors call it: the word of the specification.
    pub(crate) name: &'static str,
    /// Offset in bytes.
    pub(crate) at: usize,
}

impl<const N: usize> Field<N> {
    /// A row of a layout table.
    pub(crate) const fn new(name: &'static str, at: usize) -> Self {
        Self { name, at }
    }
}
