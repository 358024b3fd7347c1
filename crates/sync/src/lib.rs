#![doc = include_str!("../README.md")]
//! This crate knows nothing about packets. It is the only one below `frame`.

#[cfg(not(target_arch = "x86_64"))]
compile_error!("Bywash is for x86-64: its BPF programs and lock-free tables rely on that memory order");

pub mod bucket;
pub mod clock;
pub mod counter;
pub mod facade;
pub mod hint;
mod mutex;
pub mod published;
pub mod qsbr;
pub mod random;
pub mod wide;

pub use counter::Counter;
pub use crossbeam_utils::CachePadded;
pub use mutex::lock;
pub use published::Published;
pub use qsbr::{Qsbr, Reader};
