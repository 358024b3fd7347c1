//! Time for the hot path: the processor's time-stamp counter and its rate.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Reads the time-stamp counter. Takes about 20 cycles and is not serialising, so call it per burst, never per packet.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: RDTSC has no preconditions; every x86-64 processor has it and Linux leaves it enabled.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns the rate of the time-stamp counter in ticks per second, measured once against the monotonic clock (sleeps 10
/// ms at first use).
pub fn tsc_hz() -> u64 {
    static HZ: OnceLock<u64> = OnceLock::new();
    *HZ.get_or_init(|| {
        let (t0, c0) = (Instant::now(), tsc());
        std::thread::sleep(Duration::from_millis(10));
        let (dt, dc) = (t0.elapsed(), tsc() - c0);
        (u128::from(dc) * 1_000_000_000 / dt.as_nanos().max(1)) as u64
    })
}

/// Returns the core clock cycles per tick of the time-stamp counter on the present CPU, from the time of a chain of
/// squarings and additions. Each takes four cycles: three for IMUL r64 (Intel from Sandy Bridge on, AMD Zen; Agner Fog,
/// "Instruction tables"), one for the addition. A chain of products alone would be reassociated by the compiler. Takes a
/// millisecond or two.
pub fn core_cycles_per_tick() -> f64 {
    const LENGTH: u32 = 10_000;
    const LATENCY: u32 = 4;
    let addend = std::hint::black_box(3u64);
    let ticks = (0..20).map(|_| {
        let start = tsc();
        std::hint::black_box((0..LENGTH).fold(addend, |x, _| x.wrapping_mul(x).wrapping_add(addend)));
        tsc() - start
    });
    // The sample that no interrupt lengthened.
    f64::from(LENGTH * LATENCY) / ticks.min().unwrap_or(1).max(1) as f64
}

/// Converts microseconds to time-stamp counter ticks.
pub fn us_to_ticks(us: u64) -> u64 {
    (u128::from(us) * u128::from(tsc_hz()) / 1_000_000) as u64
}

/// Converts time-stamp counter ticks to nanoseconds.
pub fn ticks_to_ns(ticks: u64) -> u64 {
    (u128::from(ticks) * 1_000_000_000 / u128::from(tsc_hz())) as u64
}
