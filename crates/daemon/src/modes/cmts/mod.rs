//! CMTS: the downstream of a cable modem termination system.

mod control;
mod keys;
mod view;

pub use control::set_up;
