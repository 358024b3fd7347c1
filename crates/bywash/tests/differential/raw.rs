//! A packet socket on one interface. Received frames get back the VLAN tag that the kernel takes out of them
//! (packet(7), PACKET_AUXDATA).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Number of frames received in one system call.
const AT_ONCE: usize = 32;
/// Buffer size for a frame, more than the largest MTU in use.
const ROOM: usize = 4096;
/// Buffer size for the ancillary data of a frame, in words.
const ASIDE: usize = 8;
/// From linux/if_packet.h.
const PACKET_IGNORE_OUTGOING: i32 = 23;

pub struct Raw(OwnedFd);

/// The buffers that [`Raw::receive`] reads into.
pub struct Room {
    frames: Vec<[u8; ROOM]>,
    asides: Vec<[u64; ASIDE]>,
}

impl Room {
    pub fn new() -> Self {
        Self { frames: vec![[0; ROOM]; AT_ONCE], asides: vec![[0; ASIDE]; AT_ONCE] }
    }
}

impl Raw {
    /// Opens a socket on `interface` of the calling thread's namespace.
    pub fn open(interface: &str) -> io::Result<Self> {
        let name = CString::new(interface)?;
        // SAFETY: `name` is a string that ends in zero.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        // SAFETY: the arguments are plain integers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) };
        if index == 0 || fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and nothing else owns it.
        let socket = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20)?;
        socket.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        socket.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
        // SAFETY: all zeros is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the pointer and size are those of a whole sockaddr_ll.
        let bound = unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) };
        if bound == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
    }

    fn set(&self, level: i32, option: i32, value: i32) -> io::Result<()> {
        let size = size_of::<i32>() as u32;
        // SAFETY: the pointer and size are those of an int.
        let set = unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, (&raw const value).cast(), size) };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends a frame. If the interface is down, the frame is lost, as on a wire.
    pub fn send(&self, frame: &[u8]) {
        // SAFETY: the pointer and length are those of a slice.
        unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    }

    /// Passes the frames that have arrived to `take`, at most [`AT_ONCE`]. Returns their number.
    pub fn receive(&self, room: &mut Room, mut take: impl FnMut(&[u8])) -> usize {
        // SAFETY: all zeros is a valid mmsghdr.
        let mut messages: [libc::mmsghdr; AT_ONCE] = unsafe { std::mem::zeroed() };
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: ROOM }; AT_ONCE];
        for n in 0..AT_ONCE {
            vectors[n].iov_base = room.frames[n].as_mut_ptr().cast();
            let header = &mut messages[n].msg_hdr;
            header.msg_iov = &raw mut vectors[n];
            header.msg_iovlen = 1;
            header.msg_control = room.asides[n].as_mut_ptr().cast();
            header.msg_controllen = size_of::<[u64; ASIDE]>();
        }
        let (fd, most) = (self.0.as_raw_fd(), AT_ONCE as u32);
        // SAFETY: every header points to one vector and to a buffer for ancillary data, which outlive the call and have
        // the lengths given.
        let got = unsafe { libc::recvmmsg(fd, messages.as_mut_ptr(), most, libc::MSG_DONTWAIT, std::ptr::null_mut()) };
        let got = usize::try_from(got).unwrap_or(0);
        for (n, message) in messages[..got].iter().enumerate() {
            let frame = &room.frames[n][..(message.msg_len as usize).min(ROOM)];
            match tag(&message.msg_hdr) {
                Some(tag) => take(&[&frame[..12], &tag, &frame[12..]].concat()),
                None => take(frame),
            }
        }
        got
    }
}

/// Returns the VLAN tag that the kernel took out of a frame; `None` if it had none.
fn tag(header: &libc::msghdr) -> Option<[u8; 4]> {
    // SAFETY: the kernel filled the header in.
    let mut aside = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !aside.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return whole headers only; the data of this type is a tpacket_auxdata.
        let data = unsafe {
            ((*aside).cmsg_level == libc::SOL_PACKET && (*aside).cmsg_type == libc::PACKET_AUXDATA)
                .then(|| libc::CMSG_DATA(aside).cast::<libc::tpacket_auxdata>().read_unaligned())
        };
        if let Some(data) = data.filter(|data| data.tp_status & libc::TP_STATUS_VLAN_VALID != 0) {
            let known = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            let [a, b] = if known { data.tp_vlan_tpid } else { 0x8100 }.to_be_bytes();
            let [c, d] = data.tp_vlan_tci.to_be_bytes();
            return Some([a, b, c, d]);
        }
        // SAFETY: as above.
        aside = unsafe { libc::CMSG_NXTHDR(header, aside) };
    }
    None
}

/// Waits for at most `milliseconds` until a socket has a frame. Returns whether one has.
pub fn wait(sockets: &[&Raw], milliseconds: i32) -> bool {
    let mut polls: Vec<libc::pollfd> =
        sockets.iter().map(|raw| libc::pollfd { fd: raw.0.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
    // SAFETY: the pointer and length are those of a slice.
    let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, milliseconds) };
    ready > 0 && polls.iter().any(|poll| poll.revents & libc::POLLIN != 0)
}
