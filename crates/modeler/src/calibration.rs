//! How fast the generator is by itself: against a responder in its own process.
