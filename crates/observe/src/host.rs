//! What the kernel says of the processes of this host, and what asking it may cost.

pub(crate) mod allowance;
pub(crate) mod process;
pub(crate) mod run_queue;
mod sock_diag;
pub(crate) mod socket_table;
pub(crate) mod state_file;
