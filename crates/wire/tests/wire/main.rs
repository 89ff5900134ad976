//! What holds for every message of this crate, seen from outside.
//!
//! | Module | Question |
//! |---|---|
//! | `vectors` | do recorded and hand-computed bytes parse to the fields they should, and back? |
//! | `hostile` | is every lie in a message refused under the name of its field? |
//! | `properties` | does that hold for messages and bytes no one thought of? |
//! | `link` | the same three, of the messages on a link of SMC-R: LLC and CDC |

mod hex;
mod hostile;
mod link;
mod properties;
mod vectors;
