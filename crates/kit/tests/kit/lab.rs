//! Two hosts in one subnet, and a namespace between them for an application.

use bywash_lab::{End, Namespace, Veth};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

/// Host a with `a0`, connected to `r0` of `r`; host b with `b0`, connected to `r1`.
pub struct Lab {
    pub a: Namespace,
    pub r: Namespace,
    pub b: Namespace,
}

impl Lab {
    pub const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    pub const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    /// Creates both links with these numbers of queues. The hosts leave checksums to the device, and a veth completes
    /// none.
    pub fn new(queues: [u32; 2]) -> Self {
        let named = |hint| Namespace::new(hint).unwrap();
        let lab = Self { a: named("a"), r: named("r"), b: named("b") };
        let ends = [(&lab.a, "a0", Self::A, "r0"), (&lab.b, "b0", Self::B, "r1")];
        for ((host, interface, address, port), queues) in ends.into_iter().zip(queues) {
            let end = End::new(host, interface).address(format!("{address}/24"));
            Veth::new(end, End::new(&lab.r, port)).queues(queues).create().unwrap();
        }
        lab
    }
}

/// Sends a datagram from each of `flows` sockets of a namespace to a receiver in another, and returns how many came.
/// Each is sent again until it comes, five times at most: the first ones may be lost while ARP resolves the address.
pub fn datagrams(from: &Namespace, to: &Namespace, address: Ipv4Addr, flows: usize) -> usize {
    let receiver = to.enter(|| UdpSocket::bind((address, 9))).unwrap().unwrap();
    receiver.set_read_timeout(Some(bywash_lab::patience(Duration::from_secs(2)))).unwrap();
    let came = |n: usize| {
        let sender = from.enter(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
        (0..5).any(|_| {
            sender.send_to(&n.to_ne_bytes(), (address, 9)).unwrap();
            let mut got = [0; 8];
            receiver.recv(&mut got).is_ok_and(|length| length == 8 && got == n.to_ne_bytes())
        })
    };
    (0..flows).filter(|n| came(*n)).count()
}
