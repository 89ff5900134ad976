//! Charts as SVG inside the page.
//!
//! They are written as elements rather than drawn by a plotting library: so their
//! colours are the page's (classes and CSS variables: light, dark and print come from
//! the style sheet), every mark can say its figure on hovering, and letters stay
//! letters at any width. A library would bake colours, fonts and sizes in.
//!
//! A transport has the same colour and the same dashes everywhere; the dashes, and
//! names at the ends of lines, tell them apart without colours.
//!
//! Coordinates are those of the `viewBox`; the page scales it to the room there is.

mod change;
mod frame;
mod level;
mod percentile;
mod timeline;

pub(super) use change::{Axis, Change, Measure, change_panel};
pub(super) use frame::class;
pub(super) use level::{Level, level_panel};
pub(super) use percentile::{Curve, percentile_curves};
pub(super) use timeline::{Timeline, timelines};
