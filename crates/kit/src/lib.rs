#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod checksums;
mod error;
mod interface;
mod kit;
mod routes;
mod running;
mod shown;
mod slot;

pub use bywash_router::tables;
pub use error::Error;
pub use kit::Kit;
pub use routes::Routes;
pub use running::Running;
