//! TAP port: a kernel interface whose other end is a file descriptor of this process.

use crate::{Port, PortCounters, PortState};
use bywash_frame::{Arena, Batch, Buffers, Frame};
use bywash_wire::checksum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// `struct virtio_net_hdr` (linux/virtio_net.h), in host byte order: flags, gso_type, hdr_len, gso_size, csum_start,
/// csum_offset.
const VNET_HEAD: usize = 10;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field holds the sum of the pseudo-header only.
const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_NONE`.
const GSO_NONE: u8 = 0;

/// linux/if_tun.h, `_IOW('T', 226, int)`.
const TUNSETCARRIER: libc::Ioctl = 0x4004_54e2;

/// Parameters of a TAP interface.
#[derive(Clone, Debug, Default)]
pub struct TapConfig {
    /// Name, up to 15 bytes; the kernel replaces a `%d` in it by the first free number.
    pub name: String,
    /// MAC address; random if `None`.
    pub mac: Option<[u8; 6]>,
    /// MTU in bytes; 1500 if `None`.
    pub mtu: Option<u32>,
    /// Set to bring the interface up.
    pub up: bool,
}

/// Error of creating a TAP interface.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// Name that the kernel would truncate or refuse.
    #[error("invalid interface name `{0}`: 1 to 15 bytes without spaces, slashes or colons, not `.` or `..`")]
    Name(String),
    /// Step that the kernel refused.
    #[error("TAP `{name}`: cannot {what}: {source}")]
    Refused {
        /// Name of the interface.
        name: String,
        /// Step that failed.
        what: &'static str,
        /// The kernel's error.
        source: Error,
    },
}

/// One queue of a TAP interface. Frames are read into their cells and written from them, one system call each. Partial
/// checksums left by the kernel are completed on receive. The interface goes away when its last queue is closed.
///
/// # Thread-safety
/// Belongs to one worker. The interface is in the network namespace of the thread that created it.
pub struct TapPort {
    fd: Option<OwnedFd>,
    name: String,
    /// Empty frames to read into, kept from one burst to the next.
    spare: Batch,
    state: PortState,
    checksums: u64,
    counters: Arc<PortCounters>,
}

impl TapPort {
    /// Creates the interface in this thread's network namespace, or attaches to a persistent one of that name. Needs
    /// CAP_NET_ADMIN.
    pub fn create(config: &TapConfig) -> Result<Self, TapError> {
        let mut request = Request::new(&config.name)?;
        let refused = |what| {
            let name = config.name.clone();
            move |source: Error| TapError::Refused { name, what, source }
        };
        let fd = crate::broker::tun().map_err(refused("open /dev/net/tun"))?;
        request.0.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
        request.ioctl(&fd, libc::TUNSETIFF).map_err(refused("create it"))?;
        let name = request.name();
        set_int(&fd, libc::TUNSETVNETHDRSZ, VNET_HEAD as i32).map_err(refused("set its header size"))?;
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, 0usize) } != 0 {
            return Err(refused("disable its offloads")(Error::last_os_error()));
        }
        let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)
            .map_err(|e| refused("open a socket to configure it")(e.into()))?;
        let fresh = || Request::new(&name);
        if let Some(mac) = config.mac {
            let mut request = fresh()?;
            let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
            address.sa_data.iter_mut().zip(mac).for_each(|(to, from)| *to = from as libc::c_char);
            request.0.ifr_ifru.ifru_hwaddr = address;
            request.ioctl(&socket, libc::SIOCSIFHWADDR).map_err(refused("set its MAC address"))?;
        }
        if let Some(mtu) = config.mtu {
            let mut request = fresh()?;
            request.0.ifr_ifru.ifru_mtu = mtu as i32;
            request.ioctl(&socket, libc::SIOCSIFMTU).map_err(refused("set its MTU"))?;
        }
        if config.up {
            let mut request = fresh()?;
            request.ioctl(&socket, libc::SIOCGIFFLAGS).map_err(refused("read its flags"))?;
            // SAFETY: SIOCGIFFLAGS filled in this member.
            let flags = unsafe { request.0.ifr_ifru.ifru_flags };
            request.0.ifr_ifru.ifru_flags = flags | libc::IFF_UP as i16;
            request.ioctl(&socket, libc::SIOCSIFFLAGS).map_err(refused("bring it up"))?;
        }
        Ok(Self {
            fd: Some(fd),
            name,
            spare: Batch::new(),
            state: PortState::Up,
            checksums: 0,
            counters: Arc::default(),
        })
    }

    /// Returns the name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns another end of the same queue: each frame is received by one of the two.
    ///
    /// # Errors
    /// If the process has no file descriptors left, or the port is closed.
    pub fn second(&self) -> Result<Self, Error> {
        let fd = self.fd.as_ref().ok_or(ErrorKind::NotConnected)?.try_clone()?;
        Ok(Self {
            fd: Some(fd),
            name: self.name.clone(),
            spare: Batch::new(),
            state: PortState::Up,
            checksums: 0,
            counters: Arc::default(),
        })
    }

    /// Sets whether the interface has carrier.
    ///
    /// # Errors
    /// Before Linux 5.0, where a TAP interface always has carrier.
    pub fn set_carrier(&self, on: bool) -> Result<(), Error> {
        self.fd.as_ref().map_or(Ok(()), |fd| set_int(fd, TUNSETCARRIER, on.into()))
    }

    /// Sets the state from an error of a read or a write.
    #[cold]
    fn note(&mut self, error: &Error) {
        self.state = match error.raw_os_error() {
            Some(libc::EBADFD | libc::EFAULT | libc::ENODEV) => {
                self.fd = None;
                PortState::Down("the interface was deleted".into())
            }
            Some(libc::EIO) => PortState::Down("the interface is down".into()),
            _ => PortState::Down(error.to_string()),
        };
    }

    /// Reads one frame and returns its length; 0 if the frame was invalid and is counted. `None` if there is none to
    /// read.
    fn read(&mut self, arena: &Arena, frame: &mut Frame) -> Option<usize> {
        let fd = self.fd.as_ref()?;
        arena.reset(frame);
        let room = arena.max_data();
        let fits = arena.resize(frame, room);
        debug_assert!(fits);
        let mut head = [0; VNET_HEAD];
        // The kernel truncates a longer frame without an error: one byte beyond the room shows that it did.
        let mut beyond = [0; 1];
        let data = arena.data_mut(frame);
        let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(data), IoSliceMut::new(&mut beyond)];
        match rustix::io::readv(fd, &mut parts) {
            Ok(n) => {
                let len = n.saturating_sub(VNET_HEAD);
                if n < VNET_HEAD || len > room || head[1] != GSO_NONE {
                    self.counters.invalid.add(1);
                    return Some(0);
                }
                frame.truncate(len);
                if head[0] & NEEDS_CSUM != 0 {
                    let field = |at: usize| usize::from(u16::from_ne_bytes([head[at], head[at + 1]]));
                    if complete(arena.data_mut(frame), field(6), field(8)) {
                        self.checksums += 1;
                    } else {
                        self.counters.invalid.add(1);
                        return Some(0);
                    }
                }
                Some(len)
            }
            Err(e) => {
                if e != rustix::io::Errno::AGAIN && e != rustix::io::Errno::INTR {
                    self.note(&e.into());
                }
                None
            }
        }
    }
}

/// Completes a partial checksum. The field, `offset` bytes after `start`, holds the sum of the pseudo-header. Returns
/// false if the field lies outside the packet.
fn complete(packet: &mut [u8], start: usize, offset: usize) -> bool {
    let Some(from) = packet.get_mut(start..).filter(|p| p.len() >= offset + 2) else { return false };
    let sum = match checksum::checksum(from) {
        // CSUM_MANGLED_0 in the kernel: in UDP a zero means that there is no checksum.
        0 => 0xffff,
        sum => sum,
    };
    from[offset..offset + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

impl Port for TapPort {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        if self.fd.is_none() || out.room() == 0 {
            return 0;
        }
        let (mut n, mut bytes) = (0, 0);
        while out.room() > 0 {
            if self.spare.is_empty() && bufs.alloc(&mut self.spare, out.room()) == 0 {
                break;
            }
            let Some(mut frame) = self.spare.pop() else { break };
            match self.read(bufs.arena(), &mut frame) {
                Some(len) if len > 0 => {
                    let pushed = out.push(frame);
                    debug_assert!(pushed.is_ok());
                    n += 1;
                    bytes += len as u64;
                }
                more => {
                    let kept = self.spare.push(frame);
                    debug_assert!(kept.is_ok());
                    if more.is_none() {
                        break;
                    }
                }
            }
        }
        self.counters.rx_packets.add(n);
        self.counters.rx_bytes.add(bytes);
        n as usize
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let Some(fd) = &self.fd else { return 0 };
        let head = [0; VNET_HEAD];
        let (mut n, mut refused, mut bytes, mut error) = (0, 0, 0, None);
        for frame in frames.as_slice() {
            let parts = [IoSlice::new(&head), IoSlice::new(bufs.arena().data(frame))];
            match rustix::io::writev(fd, &parts) {
                Ok(_) => bytes += frame.len() as u64,
                // A frame the interface never takes (a runt): dropped and counted.
                Err(rustix::io::Errno::INVAL) => refused += 1,
                Err(e) => {
                    error = Some(Error::from(e));
                    break;
                }
            }
            n += 1;
        }
        match error {
            None => {}
            Some(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::OutOfMemory => {
                self.counters.tx_full.add(1);
            }
            Some(e) if e.kind() == ErrorKind::Interrupted => {}
            Some(e) => self.note(&e),
        }
        if n > 0 && self.fd.is_some() {
            self.state = PortState::Up;
        }
        self.counters.invalid.add(refused);
        self.counters.tx_packets.add(n as u64 - refused);
        self.counters.tx_bytes.add(bytes);
        let mut sent = Batch::new();
        frames.move_front(n, &mut sent);
        bufs.free(&mut sent);
        n
    }

    fn housekeep(&mut self, _bufs: &mut Buffers) {
        let Some(fd) = self.fd.as_ref().filter(|_| self.state != PortState::Up) else { return };
        // The interface takes frames as soon as it is up (tun_sock_writeable).
        let mut fds = [PollFd::new(fd, PollFlags::OUT)];
        if poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::OUT) {
            self.state = PortState::Up;
        }
    }

    fn held(&self) -> usize {
        self.spare.len()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    fn state(&self) -> PortState {
        self.state.clone()
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        vec![("interface", self.name.clone()), ("checksums_completed", self.checksums.to_string())]
    }

    fn close(&mut self, bufs: &mut Buffers) {
        bufs.free(&mut self.spare);
        self.fd = None;
    }
}

/// Wrapper of `struct ifreq`.
struct Request(libc::ifreq);

impl Request {
    fn new(name: &str) -> Result<Self, TapError> {
        let bad = |c: char| c.is_whitespace() || c == '/' || c == '\0' || c == ':';
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.contains(bad) || name == "." || name == ".." {
            return Err(TapError::Name(name.into()));
        }
        // SAFETY: plain C data, valid as zeroes.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
        Ok(Self(request))
    }

    fn name(&self) -> String {
        let bytes = self.0.ifr_name.iter().map(|c| *c as u8).take_while(|c| *c != 0);
        String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
    }

    fn ioctl(&mut self, fd: &impl AsFd, request: libc::Ioctl) -> std::io::Result<()> {
        // SAFETY: all requests made here read and write one `struct ifreq`, which this is.
        let rc = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut self.0) };
        if rc == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }
}

fn set_int(fd: &OwnedFd, request: libc::Ioctl, value: i32) -> std::io::Result<()> {
    // SAFETY: the request reads one int.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw const value) };
    if rc == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_checksum_is_completed_and_a_bad_place_refused() {
        // Pseudo-header sum in the field, data after it: the checksum must cover both.
        let mut p = [0u8; 20];
        p[4..8].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
        p[10..12].copy_from_slice(&0x1111u16.to_be_bytes());
        assert!(complete(&mut p, 4, 6));
        assert_eq!(u16::from_be_bytes([p[10], p[11]]), !(0x1234 + 0x5678 + 0x1111));
        assert!(!complete(&mut p, 4, 15));
        assert!(!complete(&mut p, 21, 0));
        let mut zero = [0xff, 0xff];
        assert!(complete(&mut zero, 0, 0));
        assert_eq!(zero, [0xff, 0xff], "a sum of zero is written as all ones");
    }

    #[test]
    fn names_are_checked_before_the_kernel_cuts_them() {
        for bad in ["", "a-name-of-16-byt", "a b", "a/b", ".", ".."] {
            assert!(matches!(Request::new(bad), Err(TapError::Name(_))), "{bad}");
        }
        assert!(Request::new("tap%d").is_ok());
    }
}
