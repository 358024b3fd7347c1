//! Reasons for refusing or ending a connection.

use super::{MAPPED, REGIONS};

/// Reason for refusing or ending a connection. Its text is sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Message of a wrong size.
    #[error("invalid message size")]
    MessageSize,
    /// Message of an unknown type.
    #[error("unknown message type")]
    MessageType,
    /// Message that is not expected in this state.
    #[error("unexpected message")]
    Unexpected,
    /// The handshake exceeded its time limit.
    #[error("handshake took too long")]
    Slow,
    /// No common protocol version.
    #[error("incompatible memif version")]
    Version,
    /// Interface mode other than Ethernet.
    #[error("only ethernet mode supported")]
    Mode,
    /// Unknown interface ID.
    #[error("ID not found")]
    Id,
    /// Missing or wrong secret.
    #[error("incorrect secret")]
    Secret,
    /// The interface is already connected to a peer.
    #[error("already connected")]
    Taken,
    /// Region without a file descriptor.
    #[error("missing region fd")]
    RegionFd,
    /// Region with an index out of sequence.
    #[error("invalid region index")]
    RegionIndex,
    /// More than [`REGIONS`] regions.
    #[error("more than {REGIONS} regions")]
    RegionCount,
    /// Regions that have more than [`MAPPED`] bytes together.
    #[error("regions of more than {} GiB together", MAPPED >> 30)]
    RegionTotal,
    /// Region that is empty or larger than its file.
    #[error("region empty or larger than its file")]
    RegionSize,
    /// Region whose file can be shrunk while it is mapped.
    #[error("region without F_SEAL_SHRINK")]
    Unsealed,
    /// Region in huge pages, which the peer can take out of its file.
    #[error("region in huge pages, which can be taken away")]
    HugePages,
    /// Region that cannot be mapped.
    #[error("region cannot be mapped")]
    RegionMap,
    /// Ring without an interrupt file descriptor.
    #[error("missing interrupt fd")]
    RingFd,
    /// Interrupt file descriptor that is not an eventfd.
    #[error("interrupt fd is not an eventfd")]
    NoEventFd,
    /// More than one ring in a direction.
    #[error("invalid ring index")]
    RingIndex,
    /// Unsupported ring size.
    #[error("invalid ring size")]
    RingSize,
    /// Ring with private headers, which are not supported.
    #[error("private headers not supported")]
    PrivateHeader,
    /// Ring that is misaligned or not entirely inside its region.
    #[error("ring misaligned or outside of its region")]
    RingPlace,
    /// Ring without the memif cookie at its start.
    #[error("invalid ring cookie")]
    Cookie,
    /// Connect message before both rings were added.
    #[error("missing ring")]
    RingMissing,
    /// Head or tail that advanced by more than the ring allows.
    #[error("ring index out of range")]
    Jump,
    /// Descriptor that points outside of its region, or to an unknown region.
    #[error("descriptor outside of its region")]
    Descriptor,
    /// Descriptor chain without a last descriptor.
    #[error("descriptor chain without end")]
    Chain,
    /// Too many concurrent handshakes, or former connections that do not end.
    #[error("too many connections")]
    Crowd,
    /// A system call failed on this side.
    #[error("out of resources")]
    Resources,
    /// This port is closed.
    #[error("port closed")]
    Closed,
}
