//! The control side against the kernel's rules, written down twice: here plainly, without any incremental step.

mod bench;
mod model;
mod property;
mod rules;
mod stress;
mod world;
