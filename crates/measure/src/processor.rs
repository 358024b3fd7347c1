//! Processor descriptions: sizes of caches and TLBs, with their published sources.

use serde::Serialize;

/// Geometry of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Size in bytes.
    pub bytes: usize,
    /// Associativity.
    pub ways: usize,
}

/// Geometry of one TLB level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TlbLevel {
    /// Number of entries.
    pub entries: usize,
    /// Associativity.
    pub ways: usize,
}

/// Replacement policy within a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Replacement {
    /// Evicts the least recently used entry.
    Lru,
    /// Two bits of age: the first entry of age 3 is evicted, and a new one gets age 1; if no entry has age 3, all ages
    /// are raised until one has. Abel and Reineke, nanoBench (ISPASS 2020), call it QLRU_Hxx_M1_R0_Ux.
    QuadAge {
        /// Age after a hit, indexed by the age before.
        hits: [u8; 4],
        /// Set if the entry just used is excluded from raising the ages (U1; else U0).
        others_only: bool,
    },
}

/// Processor parameters needed by the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Processor {
    /// Name given by the manufacturer.
    pub name: &'static str,
    /// Bytes per cache line.
    pub line: usize,
    /// Second-level cache of each core, shared by its threads.
    pub l2: Cache,
    /// Last-level cache, shared by all cores. Exclusive: it is filled by L2 victims and holds no copy of a line in an
    /// L2.
    pub llc: Cache,
    /// Replacement policy of the last level.
    pub llc_replacement: Replacement,
    /// Ways of the last level in which device writes may allocate; 0 if they go to memory.
    pub device_ways: usize,
    /// First-level data TLB for 4 KiB pages.
    pub tlb_4k: TlbLevel,
    /// First-level data TLB for 2 MiB pages.
    pub tlb_2m: TlbLevel,
    /// Set if both page sizes share the first level's entries.
    pub tlb_joint: bool,
    /// Second-level TLB, for both page sizes.
    pub tlb_l2: TlbLevel,
    /// Published source of each figure, by name of the figure.
    pub sources: &'static [(&'static str, &'static str)],
}

/// Reference processor of the model: 20 cores, 2.4 GHz, Skylake server.
pub const XEON_GOLD_6148: Processor = Processor {
    name: "Intel Xeon Gold 6148",
    line: 64,
    l2: Cache { bytes: 1 << 20, ways: 16 },
    llc: Cache { bytes: 20 * 1408 * 1024, ways: 11 },
    llc_replacement: Replacement::QuadAge { hits: [0, 0, 1, 1], others_only: false },
    device_ways: 2,
    tlb_4k: TlbLevel { entries: 64, ways: 4 },
    tlb_2m: TlbLevel { entries: 32, ways: 4 },
    tlb_joint: false,
    tlb_l2: TlbLevel { entries: 1536, ways: 12 },
    sources: &[
        ("l2", "Intel 64 and IA-32 Architectures Optimization Reference Manual, Skylake server: 1 MiB a core, 16 ways"),
        (
            "llc",
            "Intel ARK, Xeon Gold 6148: 27.5 MiB; the manual: 1.375 MiB a core, 11 ways, non-inclusive, filled by L2 victims",
        ),
        (
            "llc_replacement",
            "Abel and Reineke, nanoBench: QLRU_H11_M1_R0_U0 in Coffee Lake, the client part with the same cores; the server's \
             is not published",
        ),
        ("device_ways", "Intel Data Direct I/O: writes allocate in two ways (register IIO_LLC_WAYS, default 0x600)"),
        (
            "tlb",
            "the manual, Skylake TLB table: 64 entries of 4 KiB in 4 ways, 32 of 2 MiB in 4, second level 1536 in 12 for both",
        ),
    ],
};

/// Zen 5, one core complex of the server parts.
pub const ZEN_5: Processor = Processor {
    name: "AMD EPYC 9005 (Zen 5), one core complex",
    line: 64,
    l2: Cache { bytes: 1 << 20, ways: 16 },
    llc: Cache { bytes: 32 << 20, ways: 16 },
    llc_replacement: Replacement::Lru,
    device_ways: 0,
    tlb_4k: TlbLevel { entries: 96, ways: 96 },
    tlb_2m: TlbLevel { entries: 96, ways: 96 },
    tlb_joint: true,
    tlb_l2: TlbLevel { entries: 4096, ways: 16 },
    sources: &[
        ("l2", "AMD Software Optimization Guide for the Zen 5 Microarchitecture (58455): 1 MiB a core, 16 ways"),
        ("llc", "the guide: 32 MiB a complex, 16 ways, filled by L2 victims"),
        ("llc_replacement", "not published; exact LRU"),
        ("device_ways", "devices write to memory unless told otherwise per request; not modelled"),
        (
            "tlb",
            "the guide: first level 96 entries, fully associative, any page size; second level 4096 entries, 16 ways, shared",
        ),
    ],
};

/// Ice Lake server, such as the Xeon Platinum 8375C.
pub const ICE_LAKE: Processor = Processor {
    name: "Intel Xeon, third generation (Ice Lake)",
    line: 64,
    l2: Cache { bytes: 1280 << 10, ways: 20 },
    llc: Cache { bytes: 32 * 1536 * 1024, ways: 12 },
    llc_replacement: Replacement::QuadAge { hits: [0, 0, 0, 0], others_only: true },
    device_ways: 2,
    tlb_4k: TlbLevel { entries: 64, ways: 4 },
    tlb_2m: TlbLevel { entries: 32, ways: 4 },
    tlb_joint: false,
    tlb_l2: TlbLevel { entries: 2048, ways: 16 },
    sources: &[
        ("l2", "Intel optimization manual, Ice Lake server: 1.25 MiB a core, 20 ways"),
        ("llc", "the manual: 1.5 MiB a core, 12 ways, non-inclusive; 32 cores"),
        (
            "llc_replacement",
            "uops.info, after nanoBench: QLRU_H00_M1_R0_U1 in Ice Lake's client part; the server's is not published",
        ),
        ("device_ways", "as Skylake server"),
        (
            "tlb",
            "the manual, Sunny Cove TLB table: loads 64 entries of 4 KiB in 4 ways, 32 of 2 MiB in 4, second level 2048 in 16",
        ),
    ],
};

/// Emerald Rapids, fifth-generation Xeon: Golden Cove's successor with the same TLBs, 52 cores.
pub const EMERALD_RAPIDS: Processor = Processor {
    name: "Intel Xeon, fifth generation (Emerald Rapids)",
    line: 64,
    l2: Cache { bytes: 2 << 20, ways: 16 },
    llc: Cache { bytes: 52 * 5 * 1024 * 1024, ways: 20 },
    llc_replacement: Replacement::QuadAge { hits: [0, 0, 0, 0], others_only: true },
    device_ways: 2,
    tlb_4k: TlbLevel { entries: 96, ways: 6 },
    tlb_2m: TlbLevel { entries: 32, ways: 4 },
    tlb_joint: false,
    tlb_l2: TlbLevel { entries: 2048, ways: 16 },
    sources: &[
        ("l2", "Intel optimization manual, Golden Cove: 2 MiB a core, 16 ways (CPUID leaf 4 says the same)"),
        ("llc", "Intel ARK, Xeon Platinum 8500: 5 MiB a core; 20 ways by CPUID leaf 4"),
        ("llc_replacement", "not published; as Ice Lake"),
        ("device_ways", "as Skylake server"),
        (
            "tlb",
            "the manual, Golden Cove TLB table: loads 96 entries of 4 KiB in 6 ways, 32 of 2 MiB in 4, second level 2048 in 16",
        ),
    ],
};

/// Returns the processor this runs on, by family and model; `None` if it is not one of those known here.
pub fn this() -> Option<&'static Processor> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let field = |name: &str| {
        let line = info.lines().find(|l| l.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split(':').nth(1)?.trim().to_string())
    };
    let (vendor, family, model) = (field("vendor_id")?, field("cpu family")?, field("model")?);
    // Families and models as in Linux's arch/x86/include/asm/intel-family.h and kernel/cpu/amd.c.
    match (vendor.as_str(), family.parse().ok()?, model.parse().ok()?) {
        ("GenuineIntel", 6u32, 0x55u32) => Some(&XEON_GOLD_6148),
        ("GenuineIntel", 6, 0x6a | 0x6c) => Some(&ICE_LAKE),
        ("GenuineIntel", 6, 0xcf) => Some(&EMERALD_RAPIDS),
        ("AuthenticAMD", 0x1a, _) => Some(&ZEN_5),
        _ => None,
    }
}
