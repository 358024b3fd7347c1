//! Transmit rates as given by the user.

use std::fmt;
use std::str::FromStr;

/// Bytes that a frame occupies on the wire in addition to itself: preamble, start of frame, and interframe gap (IEEE
/// 802.3).
pub const OVERHEAD: usize = 20;

/// Returns the bits that a frame of `size` bytes, FCS included, occupies on the wire.
pub fn wire_bits(size: f64) -> f64 {
    (size + OVERHEAD as f64) * 8.0
}

/// Transmit rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rate {
    /// No limit: as fast as possible.
    #[default]
    Full,
    /// Frames per second.
    Packets(f64),
    /// Bits per second on the wire, with FCS, preamble and gap: `1gbps` fills a gigabit link.
    Bits(f64),
    /// Percentage of the link's rate, above 0 and up to 100.
    Percent(f64),
}

impl Rate {
    /// Returns the rate in frames per second for frames of the mean size `size` (bytes, FCS included) on a link of
    /// `link` bits per second; `None` means as fast as possible.
    ///
    /// # Errors
    /// If the rate is a percentage and the link's rate is not known.
    pub fn pps(self, size: f64, link: Option<f64>) -> Result<Option<f64>, String> {
        Ok(match self {
            Self::Full => None,
            Self::Packets(pps) => Some(pps),
            Self::Bits(bits) => Some(bits / wire_bits(size)),
            Self::Percent(percent) => {
                let link = link.ok_or("the link's rate is not known: give the rate in pps or bps")?;
                Some(link * percent / 100.0 / wire_bits(size))
            }
        })
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid rate `{text}`: expected a value such as 100kpps, 1.5mpps, 1gbps, 50% or max");
        let lower = text.trim().to_ascii_lowercase();
        if lower == "max" {
            return Ok(Self::Full);
        }
        let split = lower.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, unit) = lower.split_at(split);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let unit = unit.trim();
        let scaled = |unit: &str| match unit {
            "" => Some(1.0),
            "k" => Some(1e3),
            "m" => Some(1e6),
            "g" => Some(1e9),
            _ => None,
        };
        let rate = if unit == "%" {
            Self::Percent(number)
        } else if let Some(scale) = unit.strip_suffix("pps").and_then(scaled) {
            Self::Packets(number * scale)
        } else if let Some(scale) = unit.strip_suffix("bps").and_then(scaled) {
            Self::Bits(number * scale)
        } else {
            return Err(wrong());
        };
        match rate {
            Self::Percent(p) if p > 100.0 => {
                Err(format!("rate `{text}` exceeds the link's rate: must be at most 100%"))
            }
            Self::Percent(n) | Self::Packets(n) | Self::Bits(n) if n <= 0.0 => {
                Err(format!("invalid rate `{text}`: must be above 0"))
            }
            rate => Ok(rate),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("max"),
            Self::Packets(n) => write!(f, "{n}pps"),
            Self::Bits(n) => write!(f, "{n}bps"),
            Self::Percent(n) => write!(f, "{n}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_written() {
        assert_eq!("100kpps".parse(), Ok(Rate::Packets(1e5)));
        assert_eq!("1.5Mpps".parse(), Ok(Rate::Packets(1.5e6)));
        assert_eq!("1 gbps".parse(), Ok(Rate::Bits(1e9)));
        assert_eq!("50%".parse(), Ok(Rate::Percent(50.0)));
        assert_eq!("max".parse(), Ok(Rate::Full));
        for bad in ["", "100", "kpps", "0pps", "101%", "-1pps", "1xpps", "1.2.3gbps", "nanpps"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn gigabit_of_short_frames() {
        let pps = Rate::Percent(100.0).pps(64.0, Some(1e9)).unwrap().unwrap();
        assert_eq!(pps as u64, 1_488_095);
        assert_eq!(Rate::Bits(1e9).pps(64.0, None), Ok(Some(pps)));
        assert!(Rate::Percent(1.0).pps(64.0, None).is_err());
    }
}
