//! The workload modeler: what IBM's Application Workload Modeler is to z/OS.
//!
//! It measures a transport by programs that do nothing but talk: workloads named
//! like `RR10(2KB/2KB)`, ten clients that each send 2 KB, wait for 2 KB, and start
//! again. A measurement puts transports side by side:
//!
//! ```text
//!               sidestep bench                       the coordinator
//!        ┌────────────┴─────────────┐
//!   client workers             the server side       here, or `sidestep bench serve`
//!        │                          │                on another host
//!        │                    server workers
//!        └──────── tcp · smc ───────┘
//!                unix · sockmap
//! ```
//!
//! * The **coordinator** ([`session`]) decides what runs when: pairs of runs in the
//!   order A B A B, so that all transports see the same moods of the machine.
//! * **Workers** ([`worker`]) are ordinary programs with sockets. One binary serves
//!   for all transports and knows nothing of Sidestep: for `smc` it is started by
//!   `sidestep run`, for `tcp` it is not. That is the only difference.
//! * The **server side** ([`agent`]) starts the server's workers and reads the
//!   clocks of its host. It is asked by calls when it is here and by lines of JSON
//!   when it is elsewhere ([`control`]).
//! * What came of it is a [`result::Document`]; [`report`] shows it, [`compare`]
//!   sets one against another.
//!
//! This crate uses nothing else of Sidestep. What only the library can tell, such
//! as whether a connection really was SMC-D, it asks through [`control::Witness`].

mod affinity;
pub mod agent;
pub mod calibration;
pub mod certificate;
pub mod compare;
pub mod contention;
pub mod control;
pub mod cpu_groups;
mod figure;
pub mod launch;
pub mod neighbours;
pub mod plan;
pub mod probe;
pub mod report;
pub mod result;
pub mod session;
pub mod statistics;
pub mod suite;
pub mod worker;
pub mod workload;
