//! Router: forwarding by the kernel's own tables.

mod control;
mod drift;
mod established;
mod exceptions;
mod flows;
mod punt;
mod trace;
mod view;

pub use control::set_up;
pub use trace::placed;
