//! Measurement of the energy that the processors and their memory take, by the kernel's powercap zones (RAPL).
//!
//! The zones count for the whole machine, not for one program: other programs are included.

use std::io;
use std::path::{Path, PathBuf};

/// Energy since the counters were opened, in joules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Joules {
    /// Energy of all processors.
    pub package: f64,
    /// Energy of their memory; `None` if it is not counted apart.
    pub dram: Option<f64>,
}

/// Counters of energy.
pub struct Energy {
    packages: Vec<Zone>,
    drams: Vec<Zone>,
}

/// Zone of the powercap tree, with the microjoules at which its counter begins anew and those when it was opened.
struct Zone {
    directory: PathBuf,
    range: u64,
    before: u64,
}

impl Energy {
    /// Opens the counters of the whole machine.
    ///
    /// # Errors
    /// Returns the reason if there are none, or if they cannot be read.
    pub fn open() -> Result<Self, String> {
        Self::open_in(Path::new("/sys"))
    }

    fn open_in(sys: &Path) -> Result<Self, String> {
        let class = sys.join("class/powercap");
        let mut zones: Vec<PathBuf> =
            std::fs::read_dir(&class).map(|all| all.flatten().map(|e| e.path()).collect()).unwrap_or_default();
        // The driver has this name on processors of AMD, too; its double, intel-rapl-mmio, counts the same energy.
        zones.retain(|zone| zone.file_name().is_some_and(|name| name.to_string_lossy().starts_with("intel-rapl:")));
        let of = |what: &str| -> Result<Vec<Zone>, String> {
            let named = |zone: &&PathBuf| {
                std::fs::read_to_string(zone.join("name")).is_ok_and(|name| name.trim().starts_with(what))
            };
            let open = |zone: &PathBuf| Zone::open(zone).map_err(|why| format!("{}: {why}", zone.display()));
            zones.iter().filter(named).map(open).collect()
        };
        let (packages, drams) = (of("package")?, of("dram")?);
        if packages.is_empty() {
            return Err(format!("no zone of a processor (intel-rapl) below {}", class.display()));
        }
        Ok(Self { packages, drams })
    }

    /// Returns the energy since the counters were opened. A counter may begin anew once in between: after half an hour
    /// at 150 W.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn read(&self) -> io::Result<Joules> {
        let sum = |zones: &[Zone]| zones.iter().map(Zone::joules).sum::<io::Result<f64>>();
        let dram = if self.drams.is_empty() { None } else { Some(sum(&self.drams)?) };
        Ok(Joules { package: sum(&self.packages)?, dram })
    }
}

impl Zone {
    fn open(directory: &Path) -> io::Result<Self> {
        let (range, before) = (number(directory, "max_energy_range_uj")?, number(directory, "energy_uj")?);
        Ok(Self { directory: directory.into(), range, before })
    }

    fn joules(&self) -> io::Result<f64> {
        let now = number(&self.directory, "energy_uj")?;
        let anew = if now < self.before { self.range } else { 0 };
        Ok((now + anew - self.before) as f64 / 1e6)
    }
}

fn number(directory: &Path, file: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(directory.join(file))?;
    text.trim().parse().map_err(|_| io::Error::other(format!("{file}: {}", text.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn zones_are_summed_by_name() {
        let sys = tempfile::tempdir().unwrap();
        let put = |zone: &str, file: &str, text: &str| {
            let zone = sys.path().join("class/powercap").join(zone);
            fs::create_dir_all(&zone).unwrap();
            fs::write(zone.join(file), text).unwrap();
        };
        let why = Energy::open_in(sys.path()).err().unwrap();
        assert!(why.contains("intel-rapl"), "{why}");
        let zones = [
            ("intel-rapl:0", "package-0", 1_000_000),
            ("intel-rapl:0:0", "core", 0),
            ("intel-rapl:1", "package-1", 9_000_000),
            ("intel-rapl-mmio:0", "package-0", 0),
        ];
        for (zone, name, energy) in zones {
            put(zone, "name", &format!("{name}\n"));
            put(zone, "max_energy_range_uj", "10000000\n");
            put(zone, "energy_uj", &format!("{energy}\n"));
        }
        let energy = Energy::open_in(sys.path()).unwrap();
        put("intel-rapl:0", "energy_uj", "3500000\n");
        // The counter has begun anew.
        put("intel-rapl:1", "energy_uj", "500000\n");
        assert_eq!(energy.read().unwrap(), Joules { package: 4.0, dram: None });
        put("intel-rapl:1:0", "name", "dram\n");
        let why = Energy::open_in(sys.path()).err().unwrap();
        assert!(why.contains("intel-rapl:1:0: "), "{why}");
        put("intel-rapl:1:0", "max_energy_range_uj", "10000000\n");
        put("intel-rapl:1:0", "energy_uj", "0\n");
        let energy = Energy::open_in(sys.path()).unwrap();
        put("intel-rapl:1:0", "energy_uj", "250000\n");
        assert_eq!(energy.read().unwrap(), Joules { package: 0.0, dram: Some(0.25) });
    }
}
