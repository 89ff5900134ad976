//! A worker: an ordinary program with sockets, on either side of a measurement.
