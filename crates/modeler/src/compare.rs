//! Two documents set against each other: better, worse, or equivalent.
