//! Requests to x_tables: getsockopt on an IP socket (linux/netfilter_ipv4/ip_tables.h, netfilter_ipv6/ip6_tables.h).

#![allow(unsafe_code)]

use bywash_fib::model::Families;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Size of a table name, in octets (XT_TABLE_MAXNAMELEN).
const NAME: usize = 32;
/// Size of struct ipt_getinfo, in octets. struct ip6t_getinfo is the same.
pub const INFO: usize = 84;
/// Offset of the entry table in struct ipt_get_entries, aligned for its counters.
const ENTRIES: usize = 40;
/// IPT_SO_GET_INFO and IP6T_SO_GET_INFO.
const GET_INFO: libc::c_int = 64;
/// IPT_SO_GET_ENTRIES and IP6T_SO_GET_ENTRIES.
const GET_ENTRIES: libc::c_int = 65;

/// EBT_SO_GET_INFO (linux/netfilter_bridge/ebtables.h).
const EBT_GET_INFO: libc::c_int = 128;

/// iptables or ip6tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Ip,
    Ip6,
}

impl Family {
    pub fn families(self) -> Families {
        match self {
            Self::Ip => Families::V4,
            Self::Ip6 => Families::V6,
        }
    }

    pub fn tool(self) -> &'static str {
        match self {
            Self::Ip => "iptables-legacy",
            Self::Ip6 => "ip6tables-legacy",
        }
    }

    pub fn names(self) -> &'static str {
        match self {
            Self::Ip => "/proc/thread-self/net/ip_tables_names",
            Self::Ip6 => "/proc/thread-self/net/ip6_tables_names",
        }
    }

    fn level(self) -> libc::c_int {
        match self {
            Self::Ip => libc::SOL_IP,
            Self::Ip6 => libc::SOL_IPV6,
        }
    }
}

/// An IP socket that only serves getsockopt: it neither sends nor receives.
#[derive(Debug)]
pub struct QuerySocket {
    fd: OwnedFd,
    family: Family,
}

impl QuerySocket {
    pub fn open(family: Family) -> Result<Self, Errno> {
        let domain = match family {
            Family::Ip => AddressFamily::INET,
            Family::Ip6 => AddressFamily::INET6,
        };
        // Not a raw socket, which iptables uses: while one exists for protocol 255, the host answers no packet of that
        // protocol with "protocol unreachable".
        let fd = rustix::net::socket_with(domain, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { fd, family })
    }

    /// Returns the table's struct ipt_getinfo.
    pub fn info(&self, table: &str) -> Result<[u8; INFO], Errno> {
        let mut info = [0; INFO];
        put_name(&mut info, table)?;
        self.get(GET_INFO, &mut info)?;
        Ok(info)
    }

    /// Returns the table's entries, which are `size` octets long. Errors with EAGAIN if their size has changed.
    pub fn entries(&self, table: &str, size: u32) -> Result<Vec<u8>, Errno> {
        let mut entries = vec![0; ENTRIES + size as usize];
        put_name(&mut entries, table)?;
        entries[NAME..NAME + 4].copy_from_slice(&size.to_ne_bytes());
        self.get(GET_ENTRIES, &mut entries)?;
        entries.drain(..ENTRIES);
        Ok(entries)
    }

    /// Returns whether the kernel has ebtables-legacy, as a module or built in. Only for [`Family::Ip`].
    pub fn has_ebtables(&self) -> bool {
        let mut length = 0;
        // SAFETY: the descriptor is open as long as `self`; the kernel can neither read nor write at a null pointer,
        // and writes `length`, a local.
        let code = unsafe {
            libc::getsockopt(self.fd.as_raw_fd(), libc::SOL_IP, EBT_GET_INFO, std::ptr::null_mut(), &raw mut length)
        };
        // With ebtables, the request fails at the pointer, or before for want of CAP_NET_ADMIN.
        code == 0 || Errno::from_io_error(&std::io::Error::last_os_error()) != Some(Errno::NOPROTOOPT)
    }

    fn get(&self, option: libc::c_int, buffer: &mut [u8]) -> Result<(), Errno> {
        let wanted = libc::socklen_t::try_from(buffer.len()).map_err(|_| Errno::FBIG)?;
        let mut length = wanted;
        // SAFETY: the descriptor is open as long as `self`; the kernel reads and writes at most `length` octets of
        // `buffer`, which is that long and borrowed exclusively, and writes `length`, a local; any octets are valid u8.
        let code = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                self.family.level(),
                option,
                buffer.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        match code {
            0 if length == wanted => Ok(()),
            0 => Err(Errno::PROTO),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }
}

/// Writes the NUL-terminated table name at the start of a request.
fn put_name(buffer: &mut [u8], name: &str) -> Result<(), Errno> {
    if name.len() >= NAME {
        return Err(Errno::NAMETOOLONG);
    }
    buffer[..name.len()].copy_from_slice(name.as_bytes());
    Ok(())
}
