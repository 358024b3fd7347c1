//! Netlink dumps that are repeated until no change interrupts them.

use bywash_nl::socket::{Dumped, Socket};
use bywash_nl::wire::Message;
use bywash_nl::{Error, retry};

/// Attempts at a dump before giving up because changes interrupt it.
const TRIES: u32 = 8;

/// Dumps all objects of a kind; `None` if the kernel does not support it. Errors if a message is malformed or changes
/// interrupt every attempt.
pub fn dump<T>(
    socket: &mut Socket,
    kind: u16,
    body: &[u8],
    attributes: &[(u16, &[u8])],
    buffer: &mut [u8],
    read: impl Fn(&Message<'_>) -> Result<Option<T>, ()>,
) -> Result<Option<Vec<T>>, String> {
    for _ in 0..TRIES {
        let (mut found, mut malformed) = (vec![], false);
        let dumped = retry(|| {
            found.clear();
            malformed = false;
            let each = |message: &Message<'_>| match read(message) {
                Ok(one) => found.extend(one),
                Err(()) => malformed = true,
            };
            socket.dump(kind, body, attributes, buffer, each, || Ok(()))
        });
        match dumped.map_err(|error| text(&error))? {
            _ if malformed => return Err("malformed netlink message from the kernel".into()),
            Dumped::Whole => return Ok(Some(found)),
            Dumped::Unsupported => return Ok(None),
            Dumped::Interrupted => {}
        }
    }
    Err("changes interrupted every attempt".into())
}

/// Returns the error's text with its cause.
pub fn text(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}
