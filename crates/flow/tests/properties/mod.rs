//! Properties that hold for any text and any frame, shared by the fuzz targets and the tests that replay their
//! findings.

use bywash_flow::extract::extract;
use bywash_flow::key::{Flow, KEY_WORDS, TAGS};
use bywash_flow::model::OfPort;
use bywash_flow::syntax::{self, Shown, SyntaxError};

/// Name of a property and its check.
pub type Target = (&'static str, fn(&[u8]));

/// All properties, by the names of their fuzz targets.
pub const TARGETS: [Target; 2] = [("flow_syntax", flow_syntax), ("flow_extract", flow_extract)];

fn names(name: &str) -> Option<OfPort> {
    (name == "lan").then_some(OfPort(7))
}

/// Checks that text is parsed or refused with a column within the line, and that parsed text is unchanged when it is
/// shown and parsed again.
pub fn flow_syntax(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for line in text.lines() {
        let columns = line.chars().count() + 1;
        let place = |error: SyntaxError| {
            assert!((1..=columns).contains(&error.column), "{error} in {line:?}");
            assert!(!error.what.is_empty(), "{line:?}");
        };
        match syntax::flow(line, &names) {
            Ok(flow) => {
                let shown = Shown(&flow).to_string();
                let again = syntax::flow(&shown, &names).unwrap_or_else(|e| panic!("{line:?} as {shown:?}: {e}"));
                assert_eq!(Shown(&again).to_string(), shown, "{line:?}");
                assert_eq!(again.matches, flow.matches, "{line:?} as {shown:?}");
            }
            Err(error) => place(error),
        }
        match syntax::group(line, &names) {
            Ok(group) => {
                let shown = Shown(&group).to_string();
                let again = syntax::group(&shown, &names).unwrap_or_else(|e| panic!("{line:?} as {shown:?}: {e}"));
                assert_eq!(Shown(&again).to_string(), shown, "{line:?}");
            }
            Err(error) => place(error),
        }
        match syntax::meter(line) {
            Ok(meter) => {
                let shown = Shown(&meter).to_string();
                assert_eq!(syntax::meter(&shown).unwrap_or_else(|e| panic!("{shown:?}: {e}")), meter, "{line:?}");
            }
            Err(error) => place(error),
        }
        for error in [
            syntax::filter(line, &names, true).err(),
            syntax::packet(line, &names).err(),
            syntax::group_id(line).err(),
            syntax::meter_id(line).err(),
        ] {
            error.into_iter().for_each(place);
        }
    }
}

/// Checks extraction from frames of any length: header offsets are valid, and no bytes behind the end are used.
pub fn flow_extract(data: &[u8]) {
    (1..=TAGS).for_each(|tags| flow_extract_with(data, tags));
}

fn flow_extract_with(data: &[u8], tags: usize) {
    let mut key = [u64::MAX; KEY_WORDS];
    let Some(layout) = extract(data, 7, tags, &mut key) else { return assert!(data.len() < 14) };
    assert!(usize::from(layout.l3) <= data.len() && usize::from(layout.l4) <= data.len(), "{layout:?}");
    assert!(layout.l4 == 0 || layout.l4 > layout.l3, "{layout:?}");
    assert_eq!(Flow::from(&key).key(), &key);
    // Bytes behind the frame in the buffer must not matter.
    let mut longer = data.to_vec();
    longer.extend([0xa5; 64]);
    let mut again = [0; KEY_WORDS];
    let same = extract(&longer[..data.len()], 7, tags, &mut again);
    assert_eq!((same, again), (Some(layout), key));
    // The ingress port must change only its own field.
    let mut other = [0; KEY_WORDS];
    assert_eq!(extract(data, 8, tags, &mut other), Some(layout));
    let differing = key.iter().zip(&other).filter(|(a, b)| a != b).count();
    assert_eq!(differing, 1, "more than the port differs");
}
