//! Messages on a link of SMC-R, LLC and CDC, by the questions of the other modules.

mod hostile;
mod properties;
mod vectors;
