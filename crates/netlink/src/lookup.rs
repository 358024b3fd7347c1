//! Looks up one interface by name.

use crate::parse::{Event, parse};
use crate::uapi::*;
use bywash_fib::model::Link;
use bywash_nl::Error;
use bywash_nl::socket::{DATAGRAM, Socket};

/// Returns the interface called `name` in the calling thread's network namespace; `None` if there is none.
///
/// # Errors
/// If the kernel cannot be queried.
pub fn interface_by_name(name: &str) -> Result<Option<Link>, Error> {
    let mut socket = Socket::open(&[], 1 << 20)?;
    let mut found = None;
    let mask = RTEXT_FILTER_SKIP_STATS.to_ne_bytes();
    socket.dump(
        RTM_GETLINK,
        &[0; 16],
        &[(IFLA_EXT_MASK, &mask)],
        &mut vec![0; DATAGRAM],
        |message| {
            if let Ok(Some(Event::Link { link, .. })) = parse(message)
                && link.name == name
            {
                found = Some(link);
            }
        },
        || Ok(()),
    )?;
    Ok(found)
}
