//! The server side: starts workers and reads clocks, here or for another host.
