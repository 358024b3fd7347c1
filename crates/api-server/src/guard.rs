//! Conditions for answers at a TCP address: the client is on this machine, or has the token.

use crate::error;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, SocketAddr};

/// User name that comes with the token in a browser.
const USER: &str = "bywash";

/// Conditions for answers at a TCP address.
#[derive(Clone)]
pub struct Guard {
    /// Credentials that carry the token, by authentication scheme: as a bearer's, and as a user's password. `None` if
    /// there is no token.
    expected: Option<[(&'static str, String); 2]>,
    /// Address of the loopback interface, which only this machine reaches, if true.
    loopback: bool,
}

impl std::fmt::Debug for Guard {
    /// Leaves the token out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("loopback", &self.loopback).finish_non_exhaustive()
    }
}

impl Guard {
    /// Creates an instance for a listening address.
    pub fn new(at: SocketAddr, token: Option<&str>) -> Self {
        let basic = |token| base64(format!("{USER}:{token}").as_bytes());
        let expected = token.map(|token| [("Bearer", token.to_owned()), ("Basic", basic(token))]);
        Self { expected, loopback: at.ip().is_loopback() }
    }

    /// Returns why a request gets no answer.
    fn refuses(&self, headers: &HeaderMap) -> Option<Response> {
        let given = |name| headers.get(name).map_or(&b""[..], |value| value.as_bytes());
        match &self.expected {
            Some(expected) if expected.iter().any(|one| carries(given(header::AUTHORIZATION), one)) => None,
            Some(_) => {
                let hint = format!("give it as a bearer token, or as the password of user {USER}");
                let refused = error(StatusCode::UNAUTHORIZED, "the token is missing or wrong", &hint);
                let challenge = [(header::WWW_AUTHENTICATE, "Basic realm=\"bywash\"")];
                Some((challenge, refused).into_response())
            }
            // A name that resolves to this address (DNS rebinding) would let a foreign page read.
            None if self.loopback && !own(given(header::HOST)) => {
                let hint = "ask by a loopback address, or localhost";
                Some(error(StatusCode::MISDIRECTED_REQUEST, "unknown host name", hint))
            }
            None => None,
        }
    }
}

/// Returns whether a header's value has these credentials. The scheme's case does not matter (RFC 9110, section 11.1).
fn carries(value: &[u8], (scheme, credentials): &(&str, String)) -> bool {
    let Some((given, rest)) = value.split_at_checked(scheme.len()) else { return false };
    given.eq_ignore_ascii_case(scheme.as_bytes())
        && rest.strip_prefix(b" ").is_some_and(|rest| same(credentials.as_bytes(), rest))
}

/// Answers requests that meet the guard's conditions.
pub async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.refuses(request.headers()) {
        Some(refused) => refused,
        None => next.run(request).await,
    }
}

/// Returns whether a host, with or without a port, is this machine. Browsers always send one.
fn own(host: &[u8]) -> bool {
    let host = std::str::from_utf8(host).unwrap_or("?");
    let address = |text: &str| text.parse::<IpAddr>().is_ok_and(|addr| addr.is_loopback());
    let name = host.rsplit_once(':').map_or(host, |(name, port)| if port.parse::<u16>().is_ok() { name } else { host });
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    host.is_empty() || name == "localhost" || address(inner.unwrap_or(name))
}

/// Compares two values in a time that does not depend on the position of a difference.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Encodes bytes by RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | usize::from(group.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let digit = DIGITS[bits >> (18 - 6 * at) & 63];
            text.push(if at <= group.len() { digit.into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for host in ["localhost", "localhost:8469", "127.0.0.1:8469", "127.0.0.2", "[::1]:80", "[::1]", ""] {
            assert!(own(host.as_bytes()), "{host}");
        }
        for host in
            ["elsewhere.example", "localhost.example:80", "10.0.0.1", "[fd00::1]:80", "127.0.0.1.example", "x:80"]
        {
            assert!(!own(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn passwords() {
        // RFC 4648, section 10.
        for (text, code) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(text.as_bytes()), code);
        }
        assert!(same(b"ab", b"ab") && !same(b"ab", b"ac") && !same(b"ab", b"abc") && !same(b"", b"a"));
    }
}
