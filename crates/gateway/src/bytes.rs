//! Bytes that one side has given and the other has not taken yet.

/// At most as many as were [kept](Self::keep) at once; the next are kept when all are gone.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    bytes: Vec<u8>,
    taken: usize,
}

impl Kept {
    /// Those that are left.
    pub(crate) fn left(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.left().is_empty()
    }

    /// So many of them were taken.
    pub(crate) fn take(&mut self, count: usize) {
        self.taken += count;
        if self.is_empty() {
            // A connection that has nothing waiting has no memory for it either.
            *self = Self::default();
        }
    }

    /// Keeps bytes behind those that are left.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Keeps what is put behind those that are left.
    pub(crate) fn keep_by(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        put(&mut self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_taken_in_order() {
        let mut kept = Kept::default();
        assert!(kept.is_empty());
        kept.keep(b"abc");
        kept.take(2);
        kept.keep_by(|bytes| bytes.extend(b"de"));
        assert_eq!(kept.left(), b"cde");
        kept.take(3);
        assert!(kept.is_empty());
        assert_eq!(kept.bytes.capacity(), 0);
    }
}
