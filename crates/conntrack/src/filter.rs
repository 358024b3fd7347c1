//! Socket filter (`SO_ATTACH_FILTER`, classic BPF) that admits only events of connections with a given status bit: most
//! connections of a flood, and most short UDP exchanges, are never assured.

use crate::message::CTA_STATUS;
use socket2::SockFilter;

// linux/bpf_common.h.
const LOAD: u16 = 0x00;
const LOAD_AT: u16 = 0x20;
const LOAD_BEHIND_X: u16 = 0x40;
const LOAD_X: u16 = 0x01;
const TO_X: u16 = 0x07;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_SET: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Special offset from which a load returns the offset of the first attribute of type X at or after offset A; 0 if
/// there is none (SKF_AD_NLATTR, linux/filter.h).
const ATTRIBUTE: u32 = (-0x1000_i32 + 12) as u32;
/// Length of the headers of netlink and of nfnetlink.
const HEADERS: u32 = 20;
/// Length of an attribute's header.
const HEADER: u32 = 4;

/// Returns the filter for a status bit that a connection never loses, such as ASSURED: the event of its end then still
/// has the bit. An event without a status passes.
pub fn filter(status: u32) -> Vec<SockFilter> {
    vec![
        SockFilter::new(LOAD, 0, 0, HEADERS),
        SockFilter::new(LOAD_X, 0, 0, CTA_STATUS.into()),
        SockFilter::new(LOAD_AT, 0, 0, ATTRIBUTE),
        SockFilter::new(JUMP_IF_EQUAL, 3, 0, 0),
        SockFilter::new(TO_X, 0, 0, 0),
        SockFilter::new(LOAD_BEHIND_X, 0, 0, HEADER),
        SockFilter::new(JUMP_IF_SET, 0, 1, status),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}
