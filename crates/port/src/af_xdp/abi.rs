//! What the XDP program and this process agree on: the Rust side of `xdp/bywash.h`.

use serde::Serialize;

/// Names of the program's counters, in the order of `enum bywash_reason`: where each frame went, and why.
pub const REASONS: [&str; 15] = [
    "to_user",
    "pass_disabled",
    "pass_no_socket",
    "pass_not_mine",
    "pass_vlan",
    "pass_ethertype",
    "pass_options",
    "pass_local",
    "pass_multicast",
    "pass_link_local",
    "pass_reserved",
    "pass_superframe",
    "pass_short",
    "pass_route",
    "pass_returned",
];

/// Whose packets to a destination are: what the program's prefix maps say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The kernel's: an address of the host.
    Local = 7,
    /// The kernel's: its way out is an interface that is no port.
    Route = 13,
    /// User space's, where a shorter prefix says otherwise.
    User = 0xff,
}

/// `struct bywash_counters`: slots, the first `REASONS.len()` of them used.
pub(crate) type RawCounters = [u64; 16];

pub(crate) const FLAG_ENABLED: u16 = 1 << 0;
pub(crate) const FLAG_PREFIX4: u16 = 1 << 1;
pub(crate) const FLAG_PREFIX6: u16 = 1 << 2;
pub(crate) const FLAG_RAW: u16 = 1 << 3;

/// `struct bywash_config`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct RawConfig {
    pub mac: [u8; 6],
    pub flags: u16,
    pub max_frame: u32,
    pub reserved: u32,
}

// SAFETY: repr(C), integers only, 16 bytes without padding.
unsafe impl aya::Pod for RawConfig {}

/// Frames by what the XDP program did with them, summed over CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpCounters([u64; REASONS.len()]);

impl XdpCounters {
    pub(crate) fn sum<'a>(cpus: impl Iterator<Item = &'a RawCounters>) -> Self {
        let mut all = Self::default();
        for cpu in cpus {
            all.0.iter_mut().zip(cpu).for_each(|(sum, n)| *sum = sum.wrapping_add(*n));
        }
        all
    }

    /// Name and count of every reason.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        REASONS.into_iter().zip(self.0)
    }

    /// The count of one reason; 0 for a name that is none.
    pub fn get(&self, name: &str) -> u64 {
        self.iter().find(|(n, _)| *n == name).map_or(0, |(_, count)| count)
    }
}

impl Serialize for XdpCounters {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../../../xdp/bywash.h");

    /// Identifiers in front of the first `,` or ` =` of each line of an enum.
    fn names(of: &str) -> Vec<(String, String)> {
        let body = HEADER.split(&format!("enum {of} {{")).nth(1).unwrap().split('}').next().unwrap();
        body.lines()
            .filter_map(|line| line.split(',').next())
            .map(|entry| entry.split_once(" = ").unwrap_or((entry, "")))
            .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
            .filter(|(name, _)| !name.is_empty())
            .collect()
    }

    #[test]
    fn reasons_are_the_programs() {
        let mut c: Vec<_> = names("bywash_reason").into_iter().map(|(name, _)| name.to_lowercase()).collect();
        assert_eq!(c.pop().as_deref(), Some("bywash_reasons"));
        assert_eq!(c, REASONS);
        assert!(REASONS.len() <= size_of::<RawCounters>() / 8);
        assert!(HEADER.contains("__u64 frames[16];"));
    }

    #[test]
    fn verdicts_are_reasons() {
        assert_eq!(REASONS[Verdict::Local as usize], "pass_local");
        assert_eq!(REASONS[Verdict::Route as usize], "pass_route");
        assert!(HEADER.contains(&format!("#define BYWASH_USER {:#x}", Verdict::User as u8)));
    }

    #[test]
    fn flags_are_the_programs() {
        let ours = [
            ("BYWASH_ENABLED", FLAG_ENABLED),
            ("BYWASH_PREFIX4", FLAG_PREFIX4),
            ("BYWASH_PREFIX6", FLAG_PREFIX6),
            ("BYWASH_RAW", FLAG_RAW),
        ];
        let c: Vec<_> = names("bywash_flag");
        assert_eq!(c.len(), ours.len());
        for ((name, value), (our_name, our_value)) in c.iter().zip(ours) {
            assert_eq!(name, our_name);
            assert_eq!(
                value.strip_prefix("1 << ").and_then(|s| s.parse().ok()).map(|s: u32| 1u16 << s),
                Some(our_value)
            );
        }
        assert_eq!(size_of::<RawConfig>(), 16);
    }

    #[test]
    fn counters_add_up_over_cpus() {
        let mut cpus = [RawCounters::default(); 2];
        (cpus[0][0], cpus[1][0], cpus[1][7]) = (3, 4, 5);
        let sum = XdpCounters::sum(cpus.iter());
        assert_eq!((sum.get("to_user"), sum.get("pass_local"), sum.get("nonsense")), (7, 5, 0));
    }
}
