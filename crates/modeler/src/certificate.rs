//! The machine and its moods, for the noise certificate.
