//! The report: a table for the terminal, a page for everybody else.
