//! From runs to figures: medians, intervals, and what is wrong with a series of runs.
