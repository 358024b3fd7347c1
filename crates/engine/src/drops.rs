//! Drop reasons and other counted events. All names shown to users are defined here.

macro_rules! named {
    ($(#[$meta:meta])* $name:ident, $all:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        /// All values, in order.
        pub const $all: &[$name] = &[$($name::$variant,)*];

        impl $name {
            /// Returns the name used in `show`, the API and captures.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

named! {
    /// Reason why a packet was dropped. Each dropped packet is counted under exactly one.
    DropReason, DROP_REASONS {
        /// Too short for the required headers.
        Runt = "runt",
        /// The EtherType is neither IPv4 nor IPv6.
        NotIp = "not-ip",
        /// The destination MAC address is not the port's (the port is promiscuous), or a unicast IP packet came in a
        /// multicast or broadcast frame, on a port without a kernel interface.
        NotMine = "not-mine",
        /// The IP version does not match the EtherType (RFC 1812 5.2.2).
        BadVersion = "bad-version",
        /// The IPv4 header length is below 20 bytes or exceeds the packet (RFC 1812 5.2.2).
        BadHeaderLength = "bad-header-length",
        /// The IP length exceeds the frame, or is less than the header (RFC 1812 5.2.2).
        BadLength = "bad-length",
        /// The IPv4 header checksum is wrong (RFC 1812 5.2.2).
        BadChecksum = "bad-checksum",
        /// The source address is not valid on a link: multicast, broadcast, loopback, this network (RFC 1812 5.3.7).
        MartianSource = "martian-source",
        /// The destination address must not be forwarded to (RFC 1812 5.3.7).
        MartianDestination = "martian-destination",
        /// The TTL or hop limit expired here (RFC 1812 5.3.1, RFC 8200 3).
        TtlExceeded = "ttl-exceeded",
        /// The extension headers are truncated, or too many to follow (RFC 8200 4).
        BadExtension = "bad-extension-header",
        /// No route to the destination.
        NoRoute = "no-route",
        /// The route is a blackhole route.
        Blackhole = "blackhole",
        /// The route is an unreachable route.
        Unreachable = "unreachable",
        /// The route is a prohibit route.
        Prohibited = "prohibited",
        /// Exceeds the egress MTU, and may not be fragmented (RFC 1191, RFC 8201).
        TooBig = "too-big",
        /// The neighbour did not answer.
        NeighbourFailed = "neighbour-failed",
        /// Too many packets are already waiting for neighbour resolution.
        NeighbourQueueFull = "neighbour-queue-full",
        /// Should be punted to the kernel, but could not be handed over.
        PuntFailed = "punt-failed",
        /// No free buffer for a packet to be built from it.
        NoBuffer = "no-buffer",
        /// The tx queue was full: the device did not keep up.
        TxFull = "tx-full",
        /// The egress port is down.
        PortDown = "port-down",
        /// Too large for a buffer, or for the device.
        Oversize = "oversize",
        /// The destination address belongs to no modem.
        UnknownModem = "unknown-modem",
        /// Matched a dropping filter of its modem.
        Filtered = "filtered",
        /// Exceeds the rates of its service flow.
        Policed = "policed",
        /// The queue of its service flow was full, or it was evicted for a later packet.
        QueueOverflow = "queue-overflow",
        /// Dropped early by the active queue management of its service flow.
        Aqm = "aqm",
        /// The switch has no flow for it.
        NoFlow = "no-flow",
        /// A flow drops it, or has no output.
        FlowDrop = "flow-drop",
        /// The flows resubmit it more often than allowed.
        TooManyResubmits = "too-many-resubmits",
        /// A flow pushes a fourth MPLS label, or pops one of a stack of more than three.
        TooManyLabels = "too-many-labels",
        /// Not forwarded by the bridge: wrong VLAN, reserved destination, or the egress port is the ingress port.
        BridgeFiltered = "bridge-filtered",
        /// Exceeds a meter's rate.
        Metered = "metered",
        /// To be flooded, but exceeds its port's storm limit.
        Storm = "storm",
        /// A flow sends it, or a copy of it, to a controller: captures show it.
        Controller = "controller",
        /// Copy that a flow takes of some packets: captures show it.
        Sampled = "sampled",
        /// Received by a worker whose stages have panicked and do not run.
        WorkerFailed = "worker-failed",
    }
}

// A capture stores its set of reasons with one bit each.
const _: () = assert!(DROP_REASONS.len() <= u64::BITS as usize);

impl DropReason {
    /// Returns the reason's bit in a set of reasons.
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }
}

named! {
    /// Counted event that is not a drop.
    Event, EVENTS {
        /// An ICMP or ICMPv6 error was sent.
        IcmpSent = "icmp-sent",
        /// A copy of a packet was passed to the kernel, which sends an ICMP error about it.
        IcmpByKernel = "icmp-by-kernel",
        /// An ICMP error was due, and suppressed by the rate limit.
        IcmpLimited = "icmp-rate-limited",
        /// An ICMP error was due, but must not be sent for such a packet (RFC 1812 4.3.2.7, RFC 4443 2.4), or could not
        /// be built, or the kernel did not take the copy that it was to answer.
        IcmpWithheld = "icmp-withheld",
        /// A packet was fragmented.
        Fragmented = "fragmented",
        /// A fragment was made.
        FragmentMade = "fragment-made",
        /// A partial transport checksum was completed.
        ChecksumCompleted = "checksum-completed",
        /// A packet began to wait for neighbour resolution.
        NeighbourWait = "neighbour-wait",
        /// A packet that had waited for neighbour resolution was sent.
        NeighbourReleased = "neighbour-released",
        /// A packet was punted to the kernel from user space.
        Punted = "punted",
        /// A packet was punted to the kernel because one of the kernel's policies (firewall, IPsec, rule, filter)
        /// applies to it.
        KeptByPolicy = "kept-by-policy",
        /// A packet was encapsulated and sent to the remote of a tunnel.
        Encapsulated = "encapsulated",
        /// A packet from the remote of a tunnel was decapsulated.
        Decapsulated = "decapsulated",
        /// A MAC frame was packed into DEPI packets.
        DepiPacked = "depi-packed",
        /// A DEPI packet was made.
        DepiMade = "depi-made",
        /// A packet was copied, to be sent by one more port.
        CopyMade = "copy-made",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_kebab() {
        let names: Vec<&str> = DROP_REASONS.iter().map(|r| r.name()).chain(EVENTS.iter().map(|e| e.name())).collect();
        for (i, n) in names.iter().enumerate() {
            assert!(n.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'), "{n}");
            assert!(!names[..i].contains(n), "{n} twice");
        }
        assert!(DROP_REASONS.iter().enumerate().all(|(i, r)| *r as usize == i));
    }
}
