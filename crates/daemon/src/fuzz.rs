//! Properties of parsers of other processes' messages, shared by the fuzz targets and the test that replays their
//! findings.

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

pub use crate::api::fuzz::api;

use crate::modes::packet;
use crate::takeover::{Line, Message, ports};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
};
use std::io::{IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::time::Duration;

/// Maximum number of messages of an input: the socket holds them all.
const MESSAGES: usize = 8;

/// Checks that a packet to trace is refused, or is the same after it is written and read again.
pub fn trace(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok((port, frame)) = packet::parse(text) else { return };
    assert!(!port.is_empty() && !port.contains(char::is_whitespace) && text.contains(port));
    assert!(!frame.is_empty() && 2 * frame.len() < text.len());
    let written = format!("{port} {}", bywash_wire::hex::encode(&frame));
    assert_eq!(packet::parse(&written), Ok((port, frame)));
}

/// Checks that messages of a takeover are the same after they are written and read again, and that descriptors are kept
/// only as long as the ports that they came with. Each message comes with a byte that says how many
/// descriptors it has, and ends at a NUL.
pub fn takeover(data: &[u8]) {
    let pair = || rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (one, other) = pair().expect("descriptors");
    let (mut kept, given) = std::io::pipe().expect("descriptors");
    rustix::io::ioctl_fionbio(&kept, true).expect("a pipe");
    for message in data.split(|byte| *byte == 0).take(MESSAGES) {
        let Some((count, text)) = message.split_first() else { continue };
        if let Ok(message) = serde_json::from_slice::<Message>(text) {
            let again = serde_json::to_vec(&message).expect("a message can be written");
            assert_eq!(serde_json::from_slice::<Message>(&again).expect("it can be read"), message);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [given.as_fd(); 3];
        let fds = &fds[..usize::from(*count) % 4];
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        sendmsg(&one, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL).expect("room in the socket");
    }
    drop((one, given));
    let line = Line(other);
    if let Ok(taken) = ports(&line, Duration::ZERO) {
        assert!(taken.len() < MESSAGES);
    }
    while let Ok(Some(_)) = line.receive(Duration::ZERO) {}
    drop(line);
    let read = kept.read(&mut [0]).map_err(|why| why.kind());
    assert_eq!(read, Ok(0), "somebody has a descriptor");
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpus_and_crashes() {
        super::replay::corpus_and_crashes(&[
            ("api", super::api),
            ("takeover", super::takeover),
            ("trace", super::trace),
        ]);
    }
}
