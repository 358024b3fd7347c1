#![doc = include_str!("../README.md")]
//! [`header`] and [`protect`] implement the formats: MAC header, CRC and BPI+ encryption. [`seal`] applies CRC and
//! encryption to frames, many at a time where libipsec-mb is installed. [`upper`] and [`lower`] are the applications of
//! the two workers that serve a [`group`] of modems. A ring connects the workers: frames are allocated on one and freed
//! on the other.

#![forbid(unsafe_code)]

mod assist;
pub mod channel;
pub mod cipher;
pub mod classify;
pub mod codeword;
pub mod cpe;
pub mod crc;
pub mod depi;
pub mod group;
pub mod header;
pub mod instance;
pub mod keys;
pub mod lower;
pub mod pie;
pub mod police;
pub mod protect;
pub mod queue;
pub mod rates;
pub mod seal;
pub mod traffic;
pub mod upper;
pub mod window;
