//! Two hosts and a namespace between them, for programs that forward frames unchanged.

use crate::error::Result;
use crate::link::{End, Veth};
use crate::namespace::Namespace;
use std::net::Ipv4Addr;

/// Hosts a and b in one subnet, connected only through `r0` and `r1` of the namespace `r`. Deleted on drop.
///
/// ```text
///   10.0.0.1 a0 ───── r0 r r1 ───── b0 10.0.0.2
/// ```
#[derive(Debug)]
pub struct Wire {
    /// Host a.
    pub a: Namespace,
    /// Namespace between the hosts.
    pub r: Namespace,
    /// Host b.
    pub b: Namespace,
}

impl Wire {
    /// Address of host a.
    pub const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    /// Address of host b.
    pub const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    /// Creates the namespaces and links. Checksum offload is off on the hosts, because nothing on the path completes
    /// checksums.
    pub fn new() -> Result<Self> {
        let (a, r, b) = (Namespace::new("a")?, Namespace::new("r")?, Namespace::new("b")?);
        for (host, interface, address, port) in [(&a, "a0", Self::A, "r0"), (&b, "b0", Self::B, "r1")] {
            let end = End::new(host, interface).address(format!("{address}/24")).offload("tx", false);
            Veth::new(end, End::new(&r, port)).create()?;
        }
        Ok(Self { a, r, b })
    }
}
