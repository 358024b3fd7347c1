//! CMTS: the downstream of a cable modem termination system.

mod control;
mod modems;
mod view;

pub use control::set_up;
