//! Switch: forwarding by flows.

mod control;
mod file;
mod view;

pub use control::set_up;
