//! Properties that hold for any frame, shared by the fuzz targets and the test that replays their findings.

use bywash_docsis::cipher::{BLOCK, Tek};
use bywash_docsis::classify::{Key, Rule, Rules, Verdict};
use bywash_docsis::crc::{CRC_LEN, hcs};
use bywash_docsis::header::{EXTENSION_MAX, HEADER_LEN, HEADER_MAX, Parsed, parse, upstream_sid};
use bywash_docsis::protect::{Protection, open, seal};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Name of a property and its check.
pub type Target = (&'static str, fn(&[u8]));

/// All properties, by the names of their fuzz targets.
pub const TARGETS: [Target; 3] =
    [("docsis_header", docsis_header), ("docsis_open", docsis_open), ("docsis_classify", docsis_classify)];

/// Checks that the parts of a parsed frame make up the frame, and that its header is the same after it is written and
/// parsed again. Does so again with a correct header check sequence, which random input seldom has.
pub fn docsis_header(data: &[u8]) {
    header_of(data);
    let mut mended = data.to_vec();
    let Some([control, parameter]) = mended.first_chunk_mut() else { return };
    *control &= 1;
    let extension = if *control == 1 { usize::from(*parameter) } else { 0 };
    let Some((head, rest)) = mended.split_at_mut_checked(HEADER_LEN - 2 + extension) else { return };
    if let Some(check) = rest.first_chunk_mut() {
        *check = hcs(head);
        header_of(&mended);
    }
}

fn header_of(data: &[u8]) {
    let Ok(parsed) = parse(data) else { return };
    let Parsed { header, header_len, pdu, rest } = parsed;
    assert_eq!(header_len + pdu.len() + rest.len(), data.len());
    assert!((HEADER_LEN..=HEADER_LEN + EXTENSION_MAX).contains(&header_len));
    assert_eq!(parse(&data[..data.len() - rest.len()]), Ok(Parsed { rest: &[], ..parsed }));
    if let Some(sid) = upstream_sid(data, &parsed) {
        assert!(sid < 1 << 14);
    }
    let mut written = [0; HEADER_MAX];
    let len = header.write(&mut written, 0).expect("room for every header");
    assert_eq!(parse(&written[..len]).map(|again| again.header), Ok(header));
}

/// Checks that a sealed PDU opens to itself, that opening anything ends within it, and that no byte that stays in the
/// clear changes. The first bytes of the input choose the protection and the key.
pub fn docsis_open(data: &[u8]) {
    let Some(([choice, offset, key], pdu)) = data.split_first_chunk() else { return };
    let how = Protection { crc: choice & 1 != 0, cipher: choice & 2 != 0, offset: usize::from(*offset) % 64 };
    let tek = Tek::new(&[*key; BLOCK], &[!key; BLOCK]);
    let mut opened = pdu.to_vec();
    if let Ok(len) = open(&tek, how, &mut opened) {
        assert_eq!(len, pdu.len() - how.added());
    }
    let clear = how.offset.min(pdu.len());
    assert_eq!(opened[..clear], pdu[..clear]);

    let mut bytes = pdu.to_vec();
    bytes.resize(pdu.len() + how.added(), 0);
    seal(&tek, how, &mut bytes);
    if !how.crc || how.offset >= pdu.len() + CRC_LEN {
        assert_eq!(bytes[..clear], pdu[..clear]);
    }
    assert_eq!(open(&tek, how, &mut bytes), Ok(pdu.len()));
    assert_eq!(bytes[..pdu.len()], *pdu);
}

/// Checks that ports are those of TCP and UDP, that a tag changes nothing of what rules see, and that the first rule
/// that admits a packet decides.
pub fn docsis_classify(data: &[u8]) {
    let key = Key::of(data);
    assert!([0, 4, 6].contains(&key.version) && key.dscp < 64);
    assert!(!key.has_ports || key.version != 0 && [6, 17].contains(&key.proto), "{key:?}");
    assert!(key.version == 6 || key.source >> 32 == 0 && key.destination >> 32 == 0, "{key:?}");
    if key.version == 0 {
        assert_eq!(key, Key::default());
    }
    let tagged = |frame: &[u8]| matches!(frame.get(12..14), Some([0x81, 0] | [0x88, 0xa8]));
    if data.len() >= 14 && !tagged(data) {
        let mut with_tags = data.to_vec();
        for tag in [[0x81, 0, 0, 5], [0x88, 0xa8, 0, 6]] {
            with_tags.splice(12..12, tag);
            assert_eq!(Key::of(&with_tags), key);
        }
    }
    let (four, six) = (IpAddr::from(Ipv4Addr::new(10, 0, 0, 0)), IpAddr::from(Ipv6Addr::LOCALHOST));
    let rules = Rules(vec![
        (Rule::default().source(four, 8), Verdict::Flow(1)),
        (Rule::default().destination(six, 128).proto(17), Verdict::Drop),
        (Rule::default().source_port(53..=53), Verdict::Flow(2)),
        (Rule::default().destination_port(0..=1023).proto(6), Verdict::Flow(3)),
        (Rule::default().dscp([46, 63]), Verdict::Flow(4)),
    ]);
    let first = rules.0.iter().find(|(rule, _)| rule.admits(&key)).map_or(Verdict::Flow(0), |(_, verdict)| *verdict);
    assert_eq!(rules.decide(data), first);
    if key.version == 0 {
        assert_eq!(first, Verdict::Flow(0));
    }
}
