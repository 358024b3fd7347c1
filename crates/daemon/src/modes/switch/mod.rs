//! Switch: forwarding by flows.

mod control;
mod view;

pub use control::set_up;
