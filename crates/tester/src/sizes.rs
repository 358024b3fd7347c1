//! Frame sizes, in the order in which they are sent.

use std::str::FromStr;

/// Frame sizes in bytes, FCS included, sent in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<usize>);

/// Number of sizes that a range is divided into.
const SPREAD: usize = 64;
/// Valid frame sizes in bytes.
const BOUNDS: std::ops::RangeInclusive<usize> = 64..=9216;

impl Sizes {
    /// Returns the simple IMIX: of twelve frames seven have 64 bytes, four 594 and one 1518, interleaved.
    pub fn imix() -> Self {
        Self(vec![64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 594, 64])
    }

    /// Returns the mean size.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<usize>() as f64 / self.0.len().max(1) as f64
    }

    /// Returns the largest size.
    pub fn largest(&self) -> usize {
        self.0.iter().copied().max().unwrap_or(0)
    }
}

impl FromStr for Sizes {
    type Err = String;

    /// Parses `64`, `64,512,1518` (sent in turn), `64-1518` (spread evenly and mixed) or `imix`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "imix" {
            return Ok(Self::imix());
        }
        let size = |text: &str| {
            let size = text.trim().parse().ok().filter(|size| BOUNDS.contains(size));
            size.ok_or_else(|| format!("invalid frame size `{text}`: expected {} to {}", BOUNDS.start(), BOUNDS.end()))
        };
        let Some((low, high)) = text.split_once('-') else {
            return Ok(Self(text.split(',').map(size).collect::<Result<_, _>>()?));
        };
        let (low, high) = (size(low)?, size(high)?);
        if low > high {
            return Err(format!("`{text}` runs backwards: write `{high}-{low}`"));
        }
        // The step is coprime to the number of sizes: mixed, and the same in every run.
        let spread = |i: usize| low + (high - low) * (i * 37 % SPREAD) / (SPREAD - 1);
        Ok(Self((0..SPREAD).map(spread).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_written() {
        assert_eq!("64".parse(), Ok(Sizes(vec![64])));
        assert_eq!("64,1518".parse(), Ok(Sizes(vec![64, 1518])));
        let imix: Sizes = "imix".parse().unwrap();
        assert_eq!((imix.0.len(), imix.mean() as usize, imix.largest()), (12, 361, 1518));
        let range: Sizes = "100-200".parse().unwrap();
        assert_eq!((range.0.iter().min(), range.largest()), (Some(&100), 200));
        assert!((range.mean() - 150.0).abs() < 1.0);
        for bad in ["", "63", "64-", "200-100", "9217", "64,,65"] {
            assert!(bad.parse::<Sizes>().is_err(), "{bad}");
        }
    }
}
