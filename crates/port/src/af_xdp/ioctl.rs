//! Requests to interfaces by `ioctl`.

use std::ffi::c_void;
use std::io;

/// Makes a request about an interface of the calling thread's network namespace. `block` is the memory that the
/// request's `ifr_data` points to (linux/sockios.h); it must have room for everything that the kernel will write.
pub(super) fn request(interface: &str, number: libc::c_ulong, block: &mut [u32]) -> io::Result<()> {
    if interface.is_empty() || interface.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let fd = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = block.as_mut_ptr().cast::<c_void>().cast();
    // SAFETY: the request names a block that outlives the call and that every caller sizes for its request.
    let rc = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&fd), number, &raw mut request) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// linux/sockios.h
const SIOCBONDSLAVEINFOQUERY: libc::c_ulong = 0x8993;
/// Words of struct ifslave (linux/if_bonding.h): slave_id, slave_name, link and state, link_failure_count.
const IFSLAVE: usize = 7;

/// Returns the names of a bond's members, in the order in which its transmit hash counts those that are active.
///
/// # Errors
/// With the kernel's reason; an interface that is not a bond does not know the request.
pub fn bond_members(bond: &str) -> io::Result<Vec<String>> {
    let mut names = vec![];
    loop {
        let mut member = [0; IFSLAVE];
        member[0] = names.len() as u32;
        match request(bond, SIOCBONDSLAVEINFOQUERY, &mut member) {
            Ok(()) => {}
            // The bond has no member with this number.
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) && !names.is_empty() => return Ok(names),
            Err(e) => return Err(e),
        }
        let name = member[1..5].iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
        names.push(String::from_utf8(name).map_err(io::Error::other)?);
    }
}
