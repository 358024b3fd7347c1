//! Properties that hold for any trace, shared by the fuzz target and the test that replays its findings.

use bywash_measure::lackey::{Access, LINE, Mark, Parser};
use bywash_measure::processor::{Cache, Processor};
use bywash_measure::{Memory, XEON_GOLD_6148};

/// Name of a property and its check.
pub type Target = (&'static str, fn(&[u8]));

/// All properties, by the names of their fuzz targets.
pub const TARGETS: [Target; 1] = [("lackey", lackey)];

/// Most lines that one access touches.
const LINES: usize = 65;

/// Checks that marks are read as they are written, that accesses touch few and whole lines, those of a device only what
/// it may access, and that the model of the caches takes them all.
pub fn lackey(data: &[u8]) {
    // Small caches, from which lines are evicted.
    let (l2, llc) = (Cache { bytes: 8 * 64, ways: 2 }, Cache { bytes: 16 * 64, ways: 4 });
    let of = Processor { l2, llc, device_ways: 1, ..XEON_GOLD_6148 };
    let (mut parser, mut memory) = (Parser::default(), Memory::new(&of, 1, 1));
    let (mut dma, mut counts, mut touched) = (vec![], false, 0);
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        let mark = parser.line(line);
        if let Some(mark) = &mark {
            assert_eq!(Parser::default().line(mark.to_string().as_bytes()).as_ref(), Some(mark));
        }
        let touches = parser.take();
        assert!(touches.len() <= if counts && mark.is_none() { LINES } else { 0 });
        for touch in touches {
            assert_eq!(touch.addr % LINE, 0);
            let last = touch.addr + (LINE - 1);
            let device = matches!(touch.access, Access::DeviceRead | Access::DeviceWrite);
            // An access begins in a range, and may end behind it.
            let begun = |range: &std::ops::Range<u64>| range.start <= last && !range.is_empty();
            assert!(!device || dma.iter().any(begun), "{touch:?} of {dma:?}");
            touched += 1;
            match touch.access {
                Access::Read => memory.read(0, touch.addr, LINE as usize),
                Access::Write => memory.write(0, touch.addr, LINE as usize),
                Access::DeviceRead => memory.device_read(0, touch.addr, LINE as usize),
                Access::DeviceWrite => memory.device_write(0, touch.addr, LINE as usize),
            }
        }
        match mark {
            Some(Mark::Dma(range)) => dma.push(range),
            Some(Mark::Device | Mark::Core) => counts = true,
            _ => {}
        }
    }
    assert!(parser.said().iter().all(|line| !line.starts_with("==")));
    // A written line was read before, or written by a device.
    let traffic = memory.traffic();
    assert!(traffic.read_lines <= touched && traffic.written_lines <= touched);
}
