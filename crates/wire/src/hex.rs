//! Hex digits of keys, frames and PDUs.

use std::fmt::Write as _;

/// Decodes hex digits; whitespace between them is ignored. Errors at another character, or if the number of digits is
/// odd.
pub fn decode(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut high = None;
    for (at, c) in text.char_indices().filter(|(_, c)| !c.is_whitespace()) {
        let digit = c.to_digit(16).ok_or_else(|| format!("`{c}` in column {} is not a hex digit", at + 1))? as u8;
        match high.take() {
            None => high = Some(digit),
            Some(high) => bytes.push(high << 4 | digit),
        }
    }
    if high.is_some() { Err("an odd number of hex digits".into()) } else { Ok(bytes) }
}

/// Returns the bytes as lower-case hex digits.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, b| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{b:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits() {
        assert_eq!(decode("00 fF\n"), Ok(vec![0, 255]));
        assert_eq!(decode(""), Ok(vec![]));
        assert!(decode("0").unwrap_err().contains("odd"));
        assert!(decode("0x").unwrap_err().contains("column 2"));
        assert_eq!(encode(&[0, 255, 16]), "00ff10");
    }
}
