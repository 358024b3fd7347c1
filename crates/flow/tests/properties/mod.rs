//! What must hold of any text and any frame: for the fuzz targets, and for the tests that replay what they found.

use bywash_flow::extract::extract;
use bywash_flow::key::{Flow, KEY_WORDS};
use bywash_flow::model::OfPort;
use bywash_flow::syntax::{self, Shown, SyntaxError};

/// A property's name, and the property.
pub type Target = (&'static str, fn(&[u8]));

/// All of them, by the names of their targets.
pub const TARGETS: [Target; 2] = [("flow_syntax", flow_syntax), ("flow_extract", flow_extract)];

fn names(name: &str) -> Option<OfPort> {
    (name == "lan").then_some(OfPort(7))
}

/// Text is read or refused, with a column that is in it; and what was read says the same when it is shown and read again.
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
            syntax::filter(line, &names).err(),
            syntax::packet(line, &names).err(),
            syntax::group_id(line).err(),
            syntax::meter_id(line).err(),
        ] {
            error.into_iter().for_each(place);
        }
    }
}

/// A frame has its fields at any length, headers where they are said to be, and no bytes from behind its end.
pub fn flow_extract(data: &[u8]) {
    let mut key = [u64::MAX; KEY_WORDS];
    let Some(layout) = extract(data, 7, &mut key) else { return assert!(data.len() < 14) };
    assert!(usize::from(layout.l3) <= data.len() && usize::from(layout.l4) <= data.len(), "{layout:?}");
    assert!(layout.l4 == 0 || layout.l4 > layout.l3, "{layout:?}");
    assert_eq!(Flow::from(&key).key(), &key);
    // Whatever lay in the buffer behind the frame makes no difference.
    let mut longer = data.to_vec();
    longer.extend([0xa5; 64]);
    let mut again = [0; KEY_WORDS];
    let same = extract(&longer[..data.len()], 7, &mut again);
    assert_eq!((same, again), (Some(layout), key));
    // Nor does where it came from, but for that.
    let mut other = [0; KEY_WORDS];
    assert_eq!(extract(data, 8, &mut other), Some(layout));
    let differing = key.iter().zip(&other).filter(|(a, b)| a != b).count();
    assert_eq!(differing, 1, "more than the port differs");
}
