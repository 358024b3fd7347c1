//! DOCSIS 3.1 downstream of a cable modem termination system (CMTS).
//!
//! [`header`] and [`protect`] implement the formats: MAC header, CRC and BPI+ encryption. [`seal`] applies CRC and
//! encryption to frames, many at a time where libipsec-mb is installed. [`upper`] and [`lower`] are the applications of
//! the two workers that serve a [`group`] of modems. A ring connects the workers: frames are allocated on one and freed
//! on the other.
//!
//! ```
//! use bywash_docsis::{cipher::Tek, header::{Header, Privacy, parse}, protect::{self, Protection}};
//! let tek = Tek::new(&[1; 16], &[2; 16]);
//! let mut pdu = b"destination, source, type and data".to_vec();
//! let plain = pdu.clone();
//! pdu.extend([0; 4]);
//! protect::seal(&tek, Protection::default(), &mut pdu);
//!
//! let header = Header { privacy: Some(Privacy { enabled: true, said: 7, ..Default::default() }), service: None };
//! let mut frame = vec![0; header.len()];
//! header.write(&mut frame, pdu.len());
//! frame.extend(&pdu);
//!
//! let mut sealed = parse(&frame).unwrap().pdu.to_vec();
//! let len = protect::open(&tek, Protection::default(), &mut sealed).unwrap();
//! assert_eq!(sealed[..len], plain);
//! ```

#![forbid(unsafe_code)]

mod assist;
pub mod cipher;
pub mod classify;
pub mod crc;
pub mod depi;
pub mod group;
pub mod header;
pub mod instance;
pub mod lower;
pub mod police;
pub mod protect;
pub mod queue;
pub mod seal;
pub mod traffic;
pub mod upper;
pub mod window;
