//! Sessions with each other, over a network that a seed describes.

mod authority;
mod refusals;
mod worlds;
