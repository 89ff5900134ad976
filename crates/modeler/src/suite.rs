//! Suites: lists of workloads, ours and those of users, and what IBM has published
//! for them.
