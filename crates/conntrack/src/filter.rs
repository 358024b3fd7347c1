//! Filter of announcements, by which the kernel queues only those that matter (`SO_ATTACH_FILTER`, classic BPF).
//!
//! A router sees many connections that are short, and that end before it could gain anything by a flow. Six or seven
//! announcements are made of each; to receive them costs more than to make them. Two pass: that the connection is
//! established, and that its first end closes.

use crate::connection::{status, tcp};
use crate::message::{
    CTA_PROTOINFO, CTA_PROTOINFO_TCP, CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, CTA_PROTOINFO_TCP_STATE, CTA_STATUS,
};
use socket2::SockFilter;

// linux/bpf_common.h.
const LOAD: u16 = 0x00;
const LOAD_AT: u16 = 0x20;
const LOAD_BEHIND_X: u16 = 0x40;
const LOAD_OCTET_BEHIND_X: u16 = 0x50;
const LOAD_X: u16 = 0x01;
const STORE: u16 = 0x02;
const LOAD_STORED: u16 = 0x60;
const TO_X: u16 = 0x07;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_GREATER: u16 = 0x25;
const JUMP_IF_NOT_LESS: u16 = 0x35;
const JUMP_IF_SET: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Offset that loads the offset of the first attribute of type X from offset A on; 0 if there is none
/// (SKF_AD_NLATTR, linux/filter.h).
const ATTRIBUTE: u32 = (-0x1000_i32 + 12) as u32;
/// Offset that loads the offset of the first attribute of type X in the one at offset A; 0 if there is none
/// (SKF_AD_NLATTR_NEST).
const NESTED: u32 = (-0x1000_i32 + 16) as u32;
/// Length of the headers of netlink and of nfnetlink.
const HEADERS: u32 = 20;
/// Length of an attribute's header.
const HEADER: u32 = 4;

/// Place that a jump leads to.
#[derive(Clone, Copy)]
enum To {
    Next,
    Pass,
    Refuse,
}

enum Step {
    Do(u16, u32),
    /// Jumps by a comparison of A: where it holds, and where it does not.
    Jump(u16, u32, To, To),
}

/// Returns the filter. It refuses announcements
///
/// - of a connection that is not assured. It stays assured until its end, and the announcement of that has its status,
///   too;
/// - of TCP's later states of closing, of a connection whose window is checked. Each closing connection has been
///   announced as such before, by FIN_WAIT or CLOSE. Those with a flow are never checked, and lose it by that first
///   announcement.
///
/// An announcement that the filter cannot look into passes.
pub fn filter() -> Vec<SockFilter> {
    use Step::{Do, Jump};
    use To::{Next, Pass, Refuse};
    let steps = [
        Do(LOAD, HEADERS),
        Do(LOAD_X, CTA_STATUS.into()),
        Do(LOAD_AT, ATTRIBUTE),
        Jump(JUMP_IF_EQUAL, 0, Pass, Next),
        Do(TO_X, 0),
        Do(LOAD_BEHIND_X, HEADER),
        Jump(JUMP_IF_SET, status::ASSURED, Next, Refuse),
        Do(LOAD, HEADERS),
        Do(LOAD_X, CTA_PROTOINFO.into()),
        Do(LOAD_AT, ATTRIBUTE),
        Jump(JUMP_IF_EQUAL, 0, Pass, Next),
        Do(LOAD_X, CTA_PROTOINFO_TCP.into()),
        Do(LOAD_AT, NESTED),
        Jump(JUMP_IF_EQUAL, 0, Pass, Next),
        Do(STORE, 0),
        Do(LOAD_X, CTA_PROTOINFO_TCP_STATE.into()),
        Do(LOAD_AT, NESTED),
        Jump(JUMP_IF_EQUAL, 0, Pass, Next),
        Do(TO_X, 0),
        Do(LOAD_OCTET_BEHIND_X, HEADER),
        Jump(JUMP_IF_NOT_LESS, tcp::CLOSE_WAIT.into(), Next, Pass),
        Jump(JUMP_IF_GREATER, tcp::TIME_WAIT.into(), Pass, Next),
        // The end of a connection is announced without flags.
        Do(LOAD_STORED, 0),
        Do(LOAD_X, CTA_PROTOINFO_TCP_FLAGS_ORIGINAL.into()),
        Do(LOAD_AT, NESTED),
        Jump(JUMP_IF_EQUAL, 0, Refuse, Next),
        Do(TO_X, 0),
        Do(LOAD_OCTET_BEHIND_X, HEADER),
        Jump(JUMP_IF_SET, tcp::LIBERAL.into(), Pass, Refuse),
    ];
    let many = steps.len();
    let ends = [SockFilter::new(RETURN, 0, 0, u32::MAX), SockFilter::new(RETURN, 0, 0, 0)];
    let instruction = |(at, step)| match step {
        Do(code, value) => SockFilter::new(code, 0, 0, value),
        Jump(code, value, yes, no) => {
            let distance = |to| match to {
                Next => 0,
                Pass => (many - at - 1) as u8,
                Refuse => (many - at) as u8,
            };
            SockFilter::new(code, distance(yes), distance(no), value)
        }
    };
    steps.into_iter().enumerate().map(instruction).chain(ends).collect()
}
