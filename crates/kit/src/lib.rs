#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod checksums;
mod error;
mod interface;
mod kit;
mod running;
mod slot;

pub use error::Error;
pub use kit::Kit;
pub use running::Running;
