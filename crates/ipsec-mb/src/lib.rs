#![doc = include_str!("../README.md")]
//! In CBC encryption, each block depends on the previous one. The library encrypts up to 16 frames in parallel, each
//! with its own key, to hide that latency. So a submitted frame may stay until more frames are submitted or until a
//! flush; frames are returned in submission order.
//!
//! The library is not needed at build time: it is found by `dlopen`, and used only in versions whose data structures
//! are known here ([`VERSIONS`]).

mod abi;
mod library;
mod manager;

pub use library::{Library, Unavailable, VERSIONS};
pub use manager::{Job, Key, Manager};
