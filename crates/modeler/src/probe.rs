//! `sidestep probe`: what this machine would gain.
