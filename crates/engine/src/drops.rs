//! Why packets are dropped, and what else is worth counting. Every name a user sees stands here.

macro_rules! named {
    ($(#[$meta:meta])* $name:ident, $all:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        /// All of them, in order.
        pub const $all: &[$name] = &[$($name::$variant,)*];

        impl $name {
            /// The name in `show`, in the API and in captures.
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
    /// Why a packet was dropped. A dropped packet is counted under exactly one.
    DropReason, DROP_REASONS {
        /// Too short for the headers it must have.
        Runt = "runt",
        /// The Ethernet type is neither IPv4 nor IPv6.
        NotIp = "not-ip",
        /// It is for another machine: the port receives every frame there is on its link.
        NotMine = "not-mine",
        /// The IP version does not match the Ethernet type (RFC 1812 5.2.2).
        BadVersion = "bad-version",
        /// The IPv4 header length is below 20 bytes or beyond the packet (RFC 1812 5.2.2).
        BadHeaderLength = "bad-header-length",
        /// The IP length is beyond the frame, or below the header (RFC 1812 5.2.2).
        BadLength = "bad-length",
        /// The IPv4 header checksum is wrong (RFC 1812 5.2.2).
        BadChecksum = "bad-checksum",
        /// The source may not appear on a wire: multicast, broadcast, loopback, this network (RFC 1812 5.3.7).
        MartianSource = "martian-source",
        /// The destination may not be forwarded to (RFC 1812 5.3.7).
        MartianDestination = "martian-destination",
        /// TTL or hop limit ran out here (RFC 1812 5.3.1, RFC 8200 3).
        TtlExceeded = "ttl-exceeded",
        /// The extension headers are cut off, or too many to follow (RFC 8200 4).
        BadExtension = "bad-extension-header",
        /// No route to the destination.
        NoRoute = "no-route",
        /// A blackhole route.
        Blackhole = "blackhole",
        /// An unreachable route.
        Unreachable = "unreachable",
        /// A prohibit route.
        Prohibited = "prohibited",
        /// Larger than the way out takes, and not to be fragmented (RFC 1191, RFC 8201).
        TooBig = "too-big",
        /// The neighbour did not answer.
        NeighbourFailed = "neighbour-failed",
        /// Too many packets already wait for neighbours.
        NeighbourQueueFull = "neighbour-queue-full",
        /// It is the kernel's, and could not be handed over.
        PuntFailed = "punt-failed",
        /// No free buffer for what had to be made of it.
        NoBuffer = "no-buffer",
        /// The tx queue was full: the device did not keep up.
        TxFull = "tx-full",
        /// The port it should leave by is down.
        PortDown = "port-down",
        /// Too large for a cell of the arena, or for the device.
        Oversize = "oversize",
        /// Its destination address is no modem's.
        UnknownModem = "unknown-modem",
        /// A filter of its modem's says so.
        Filtered = "filtered",
        /// Above the rates of its flow.
        Policed = "policed",
        /// Its flow's queue was full, or it made room for a later packet.
        QueueOverflow = "queue-overflow",
        /// The switch has no flow for it.
        NoFlow = "no-flow",
        /// A flow says so, or sends it nowhere.
        FlowDrop = "flow-drop",
        /// The flows look it up again and again without end.
        TooManyResubmits = "too-many-resubmits",
        /// The bridge does not forward it: a wrong VLAN, a reserved destination, or the port it came from.
        BridgeFiltered = "bridge-filtered",
        /// It exceeds a meter's rate.
        Metered = "metered",
        /// It would be flooded, and exceeds its port's storm limit.
        Storm = "storm",
    }
}

// A capture's choice of reasons is a bit each.
const _: () = assert!(DROP_REASONS.len() <= u64::BITS as usize);

impl DropReason {
    /// Its bit in a choice of reasons.
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }
}

named! {
    /// Something counted that is not a drop.
    Event, EVENTS {
        /// An ICMP or ICMPv6 error was sent.
        IcmpSent = "icmp-sent",
        /// The kernel was given a copy of a packet, to send an ICMP error about it.
        IcmpByKernel = "icmp-by-kernel",
        /// An ICMP error was due, and withheld by the rate limit.
        IcmpLimited = "icmp-rate-limited",
        /// An ICMP error was due, and must not be sent for such a packet (RFC 1812 4.3.2.7, RFC 4443 2.4).
        IcmpWithheld = "icmp-withheld",
        /// A packet was fragmented.
        Fragmented = "fragmented",
        /// A fragment was made.
        FragmentMade = "fragment-made",
        /// A partial transport checksum was completed.
        ChecksumCompleted = "checksum-completed",
        /// A packet began to wait for its neighbour.
        NeighbourWait = "neighbour-wait",
        /// A packet that had waited was sent.
        NeighbourReleased = "neighbour-released",
        /// A packet was handed to the kernel from user space.
        Punted = "punted",
        /// A packet was handed to the kernel because one of its policies (firewall, IPsec, rule, filter) concerns it.
        KeptByPolicy = "kept-by-policy",
        /// A packet was copied, to be sent by one port more.
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
