//! Compares the control side with the kernel's rules, restated here without any incremental step.

mod bench;
mod bonds;
mod bridges;
mod model;
mod property;
mod rules;
mod stress;
mod tunnels;
mod vlans;
mod world;
