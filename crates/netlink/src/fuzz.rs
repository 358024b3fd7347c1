//! Properties of the parser for any datagram, shared by its fuzz target and the test that replays its findings.

#[path = "../../../fuzz/attributes.rs"]
mod attributes;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

use crate::State;
use crate::kernel::{Kernel, Origin};
use crate::parse::{Event, parse, upper_elsewhere};
use crate::uapi::*;
use attributes::{Choice, datagram};
use bywash_nl::wire::{Attributes, Messages};

/// Messages that the parser knows.
pub(crate) const CHOICE: Choice = Choice {
    kinds: &[
        RTM_NEWLINK,
        RTM_DELLINK,
        RTM_NEWADDR,
        RTM_DELADDR,
        RTM_NEWROUTE,
        RTM_DELROUTE,
        RTM_NEWNEIGH,
        RTM_DELNEIGH,
        RTM_NEWNEXTHOP,
        RTM_DELNEXTHOP,
        RTM_NEWNETCONF,
        RTM_NEWVLAN,
        RTM_DELVLAN,
        RTM_NEWTUNNEL,
        RTM_DELTUNNEL,
    ],
    families: &[AF_UNSPEC, AF_INET, AF_INET6, 7],
    fixed: |kind| match kind {
        RTM_NEWLINK | RTM_DELLINK => 16,
        RTM_NEWADDR | RTM_DELADDR | RTM_NEWNEXTHOP | RTM_DELNEXTHOP => 8,
        RTM_NEWVLAN | RTM_DELVLAN | RTM_NEWTUNNEL | RTM_DELTUNNEL => 8,
        RTM_NEWNETCONF => 4,
        _ => 12,
    },
};

/// Checks that messages of rtnetlink are parsed or refused, that prefixes and links in them are valid, and that the
/// changes reported after each message lead to the same state as those reported once at the end.
pub fn rtnetlink(data: &[u8]) {
    let datagram = datagram(data, &CHOICE);
    let (mut often, mut once) = (Kernel::default(), Kernel::default());
    let (mut of_often, mut of_once) = (State::default(), State::default());
    let mut messages = Messages::new(&datagram);
    let (mut seen, mut silent) = (0, false);
    for message in messages.by_ref() {
        seen += message.body.len() + 16;
        let attributes = Attributes::after(message.body, 0).map(|(_, value)| value.len() + 4).sum::<usize>();
        assert!(attributes <= message.body.len());
        if message.kind == RTM_NEWLINK {
            let link = upper_elsewhere(message.body, 0);
            assert!(link.is_none_or(|link| !link.name.is_empty()));
        }
        let Ok(Some(event)) = parse(&message) else { continue };
        match &event {
            Event::Link { link, .. } => assert!(!link.name.is_empty() && link.parent != Some(link.index)),
            Event::Route { key, .. } => {
                assert!(key.prefix.len <= if key.prefix.addr.is_ipv4() { 32 } else { 128 });
            }
            Event::Address { address, .. } => assert!(address.len <= if address.addr.is_ipv4() { 32 } else { 128 }),
            Event::Neighbour(neighbour) => assert!(!neighbour.addr.is_multicast()),
            _ => {}
        }
        let origin = if message.flags & NLM_F_APPEND == 0 { Origin::Live } else { Origin::Replay };
        if once.must_report(&event) {
            once.report(|change| of_once.apply(&change));
        }
        // Objects that the kernel changes without a message are read again.
        silent |= !once.apply(event.clone(), origin).is_empty();
        silent |= !often.apply(event, origin).is_empty();
        often.report(|change| of_often.apply(&change));
        assert_eq!(often.pending(), 0);
    }
    assert!(seen <= datagram.len());
    once.report(|change| of_once.apply(&change));
    assert!(silent || of_once == of_often, "{of_once:?} {of_often:?}");
    assert_eq!(once.sizes(), often.sizes());
    let [links, addresses, _, _, neighbours, _] = once.sizes();
    let reported = [of_once.links().count(), of_once.addresses().count(), of_once.neighbours().count()];
    assert_eq!(reported, [links, addresses, neighbours]);
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpus_and_crashes() {
        super::replay::corpus_and_crashes(&[("rtnetlink", super::rtnetlink)]);
    }
}
