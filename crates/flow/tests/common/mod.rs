//! Generator of random flow tables and packets, and a test switch to send packets through.

#![allow(dead_code)]

pub mod generate;
pub mod labels;
pub mod masked;
pub mod rig;
pub mod tags;
