//! Rates in the sentences of remarks.

/// A rate for a sentence: whole numbers where they say enough.
pub(super) fn in_words(per_second: f64) -> String {
    if per_second >= 100.0 { format!("{per_second:.0}") } else { format!("{per_second:.2}") }
}
