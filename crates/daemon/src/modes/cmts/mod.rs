//! CMTS: the downstream of a cable modem termination system.

mod control;
mod view;

pub use control::set_up;
