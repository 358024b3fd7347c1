//! Properties that hold for any datagram, shared by the fuzz target and the test that replays its findings.

#[path = "../../../../fuzz/attributes.rs"]
mod attributes;

use attributes::{Choice, datagram};
use bywash_conntrack::{Event, TCP, UDP, obstacle, parse_event};
use bywash_nl::wire::Messages;

/// Name of a property and its check.
pub type Target = (&'static str, fn(&[u8]));

/// All properties, by the names of their fuzz targets.
pub const TARGETS: [Target; 1] = [("ctnetlink", ctnetlink)];

// IPCTNL_MSG_CT_NEW and IPCTNL_MSG_CT_DELETE, with the size of struct nfgenmsg.
const CHOICE: Choice = Choice { kinds: &[0x100, 0x102], families: &[2, 10, 0], fixed: |_| 4 };

/// Checks that announced connections are of TCP or UDP, that their tuples are of one family, and that those without an
/// obstacle have nothing that only the kernel can do.
pub fn ctnetlink(data: &[u8]) {
    for message in Messages::new(&datagram(data, &CHOICE)) {
        let Some(found) = parse_event(&message) else { continue };
        let key = found.key();
        let family = key.original.src.is_ipv6();
        assert!([TCP, UDP].contains(&key.protocol));
        assert_eq!(key.original.dst.is_ipv6(), family);
        let Event::Present { connection } = found else { continue };
        assert_eq!([connection.reply.src.is_ipv6(), connection.reply.dst.is_ipv6()], [family; 2]);
        assert_eq!([false, true].map(|replies| connection.translated(replies).dst.is_ipv6()), [family; 2]);
        if obstacle(&connection).is_none() {
            let special = [connection.helper, connection.expected, connection.sequence_changes];
            assert_eq!((special, key.zone, connection.unknown), ([false; 3], 0, None));
        }
    }
}
