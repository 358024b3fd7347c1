//! Why a connection was refused or ended.

/// What a peer did that ends the connection. Its text is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A message of another size.
    #[error("invalid message size")]
    MessageSize,
    /// A message of a type that has no meaning.
    #[error("unknown message type")]
    MessageType,
    /// A message that is not expected now.
    #[error("unexpected message")]
    Unexpected,
    /// Nothing came for too long.
    #[error("handshake took too long")]
    Slow,
    /// No version that both speak.
    #[error("incompatible memif version")]
    Version,
    /// Packets without Ethernet header.
    #[error("only ethernet mode supported")]
    Mode,
    /// An interface that is not here.
    #[error("ID not found")]
    Id,
    /// No secret, or a wrong one.
    #[error("incorrect secret")]
    Secret,
    /// The interface has its peer.
    #[error("already connected")]
    Taken,
    /// A region without its descriptor.
    #[error("missing region fd")]
    RegionFd,
    /// A region out of turn, or one too many.
    #[error("invalid region index")]
    RegionIndex,
    /// A region larger than its file, or empty.
    #[error("region larger than its file")]
    RegionSize,
    /// A region whose file may be cut while it is mapped.
    #[error("region without F_SEAL_SHRINK")]
    Unsealed,
    /// A region that cannot be mapped.
    #[error("region cannot be mapped")]
    RegionMap,
    /// A ring without its descriptor.
    #[error("missing interrupt fd")]
    RingFd,
    /// A ring's descriptor that is something else.
    #[error("interrupt fd is no eventfd")]
    NoEventFd,
    /// More rings than one in each direction, or one of them twice.
    #[error("invalid ring index")]
    RingIndex,
    /// A ring of a size that we do not take.
    #[error("invalid ring size")]
    RingSize,
    /// A ring with private headers.
    #[error("private headers not supported")]
    PrivateHeader,
    /// A ring that is not in its region as a whole.
    #[error("ring outside of its region")]
    RingPlace,
    /// A ring that does not begin with the cookie.
    #[error("wrong ring cookie")]
    Cookie,
    /// Not both rings.
    #[error("missing ring")]
    RingMissing,
    /// A head or tail that moved farther than it can.
    #[error("ring index out of range")]
    Jump,
    /// A descriptor that points outside of its region, or to none.
    #[error("descriptor outside of its region")]
    Descriptor,
    /// A chain of descriptors without an end.
    #[error("chain without end")]
    Chain,
    /// Too many were waiting.
    #[error("too many connections")]
    Crowd,
    /// The system refused us something.
    #[error("out of resources")]
    Resources,
    /// We end.
    #[error("port closed")]
    Closed,
}
