//! Random flow tables and packets that meet them, and a switch to send packets through.

#![allow(dead_code)]

pub mod generate;
pub mod rig;
