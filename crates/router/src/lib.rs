//! The router: its stages, the tables they look up, and the control side that keeps those right.

#![forbid(unsafe_code)]

pub mod tables;
