//! Intel's multi-buffer crypto library (libipsec-mb), loaded at run time where it is installed, for what it is best at
//! here: the CRC-32 and the BPI+ cipher of many DOCSIS frames at once.
//!
//! CBC encryption of one frame waits for every block's predecessor. The library ciphers up to 16 frames side by side,
//! each with its own key, so that they wait together. A frame that is given to it may therefore stay until others have
//! come, or until it is flushed; frames come back in the order they went in.
//!
//! Nothing of it is needed to build: it is found by `dlopen`, and used only if it is one of the versions whose data
//! structures are known here ([`VERSIONS`]).

mod abi;
mod library;
mod manager;

pub use library::{Library, Unavailable, VERSIONS};
pub use manager::{Job, Key, Manager};
