//! How workers are started: plain, by `sidestep run`, in a control group.
