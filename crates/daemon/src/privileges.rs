//! Check for the privileges that `run` needs.

use anyhow::bail;

/// Capabilities that `run` uses: number (linux/capability.h), name, purpose.
const NEEDED: [(u32, &str, &str); 4] = [
    (12, "CAP_NET_ADMIN", "attach XDP, set interfaces"),
    (13, "CAP_NET_RAW", "open AF_XDP sockets"),
    (14, "CAP_IPC_LOCK", "keep packet buffers in memory"),
    (39, "CAP_BPF", "load the XDP program"),
];

/// Errors with the names of the capabilities that this process lacks.
pub fn check() -> anyhow::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let missing = missing(&status);
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = missing.iter().map(|(_, name, what)| format!("{name} ({what})")).collect();
    let again: Vec<String> = std::env::args().skip(1).collect();
    bail!("not permitted to run, for lack of {}: try `sudo bywash {}`", list.join(", "), again.join(" "))
}

fn missing(status: &str) -> Vec<(u32, &'static str, &'static str)> {
    let field = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    // Without the field nothing can be checked here; the kernel refuses what is not permitted.
    let Some(effective) = field.and_then(|field| u64::from_str_radix(field.trim(), 16).ok()) else { return Vec::new() };
    NEEDED.into_iter().filter(|(bit, ..)| effective >> bit & 1 == 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities() {
        assert!(missing("CapEff:\t000001ffffffffff\n").is_empty());
        assert!(missing("nothing").is_empty());
        assert_eq!(missing("CapEff:\t0000000000000000\n").len(), 4);
        let without_bpf = format!("Name:\tx\nCapEff:\t{:016x}\n", !(1u64 << 39));
        assert_eq!(missing(&without_bpf)[0].1, "CAP_BPF");
    }
}
