//! Sessions with each other, over a network that a seed describes.

mod authority;
mod certificates;
mod refusals;
mod seeds;
#[cfg(feature = "aws-lc-rs")]
mod updates;
mod worlds;
