//! Packets to trace, as clients send them.

/// Parses a packet in the format of `POST /v1/trace`: the port's name and the frame in hex, in which spaces and colons
/// are ignored.
pub fn parse(text: &str) -> Result<(&str, Vec<u8>), String> {
    let (port, hex) = text
        .trim()
        .split_once(char::is_whitespace)
        .ok_or("expected a port and a frame in hex, as `bywash trace` takes them")?;
    let digits: Vec<u8> = hex.bytes().filter(|c| !c.is_ascii_whitespace() && *c != b':').collect();
    let digit = |c: u8| char::from(c).to_digit(16);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    let bytes = bytes.filter(|bytes| !bytes.is_empty()).ok_or("the frame is not hex: two digits a byte")?;
    Ok((port, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_in_hex() {
        assert_eq!(parse("r0 0a:0B 0c\n"), Ok(("r0", vec![10, 11, 12])));
        for bad in ["", "r0", "r0 ", "r0 0", "r0 0x", "r0 xy", "r0 \u{e4}"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
