//! The coordinator: which run is made when, and what a document is made of.
