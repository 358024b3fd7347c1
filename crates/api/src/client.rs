//! Minimal HTTP client for the API: one request per connection over a Unix socket.

use crate::{Answer, CAPTURE_NUMBER, CaptureEnded, FlowsChanged, OfTopic, Problem, TakenOver, Topic};
use anyhow::{Context, Error, anyhow, bail};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_json::error::Category;
use std::borrow::Cow;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Timeout for each read and write.
const PATIENCE: Duration = Duration::from_secs(20);
/// Read timeout for requests that make a change, and for topics for which the instance first reads the kernel's tables
/// again.
const READING: Duration = Duration::from_secs(120);

/// Problem with an answer in which a field has an unexpected type.
const OTHER_VERSION: &str = "it answers in another format: do both have the same version?";

/// Returns the answer of the instance at `socket` for the topic of `T`, without a filter.
pub fn ask<T: OfTopic>(socket: &Path) -> anyhow::Result<T> {
    topic(socket, T::TOPIC, None)
}

/// Returns the answer of the instance at `socket` for a topic, as the topic's type or as a JSON value.
pub fn topic<T: DeserializeOwned>(socket: &Path, topic: Topic, filter: Option<&str>) -> anyhow::Result<T> {
    topic_for(socket, topic, filter, &format!("show {}", topic.name()))
}

/// Does the same for a command that errors name `what`.
pub fn topic_for<T>(socket: &Path, topic: Topic, filter: Option<&str>, what: &str) -> anyhow::Result<T>
where
    T: DeserializeOwned,
{
    let query = topic.filter().zip(filter).map(|(name, filter)| format!("?{name}={}", encode(filter)));
    let query = query.unwrap_or_default();
    request(socket, &format!("GET /v1/{}{query}", topic.name()), "", what)
}

/// Reads the answer of the instance at `socket` for a topic chosen at run time.
pub fn typed(socket: &Path, of: Topic, answer: Value) -> anyhow::Result<Answer> {
    Answer::read(of, answer).with_context(|| format!("the instance at {}: {OTHER_VERSION}", socket.display()))
}

/// Changes a switch's flows, groups and meters, and returns how many were changed. `op` and `strict` are the parameters
/// of `POST /v1/flows`; `what` names the command in errors.
pub fn change_flows(socket: &Path, (op, strict): (&str, bool), lines: &str, what: &str) -> anyhow::Result<u64> {
    request(socket, &format!("POST /v1/flows?op={op}&strict={strict}"), lines, what)
        .map(|done: FlowsChanged| done.changed)
}

/// Returns the instance's trace of a packet.
pub fn trace<T: DeserializeOwned>(socket: &Path, packet: &str) -> anyhow::Result<T> {
    request(socket, "POST /v1/trace", packet, "trace")
}

/// Changes the level of `ports`, or of all ports if the list is empty, and returns the resulting placement. `level` is
/// the name of a level.
pub fn set_level<T: DeserializeOwned>(socket: &Path, level: &str, ports: &[String]) -> anyhow::Result<T> {
    let ports: String = ports.iter().map(|port| format!("&port={}", encode(port))).collect();
    request(socket, &format!("POST /v1/level?level={level}{ports}"), "", "level")
}

/// Makes the instance reload its configuration file, and returns the list of changes. With `dry_run`, nothing is
/// changed.
pub fn reload<T: DeserializeOwned>(socket: &Path, dry_run: bool) -> anyhow::Result<T> {
    request(socket, &format!("POST /v1/reload?dry_run={dry_run}"), "", "reload")
}

/// Returns true if an instance listens on `socket`.
pub fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Makes the instance hand over to the process that waits at the socket `name`, an absolute path.
pub fn take_over(socket: &Path, name: &str) -> anyhow::Result<()> {
    request(socket, &format!("POST /v1/takeover?socket={}", encode(name)), "", "takeover").map(|_: TakenOver| ())
}

/// Running capture.
pub struct Capture {
    /// Number of the capture, for [`end_capture`].
    pub number: u64,
    /// pcapng stream; it ends with the capture.
    pub stream: Box<dyn Read>,
}

/// Starts a capture. A read of its stream that gets no data for `look` fails with `WouldBlock`.
pub fn capture(socket: &Path, query: &[(&str, String)], filter: &str, look: Duration) -> anyhow::Result<Capture> {
    let query: Vec<_> = query.iter().map(|(key, value)| format!("{key}={}", encode(value))).collect();
    let name = socket.display();
    let mut stream = connect(socket)?;
    let line = format!("POST /v1/capture?{}", query.join("&"));
    // With HTTP/1.0 the answer is not chunked; it ends with the connection.
    send(&mut stream, &line, "1.0", filter).map_err(|why| no_answer(why, socket, PATIENCE))?;
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    let end = loop {
        if let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        let n = stream.read(&mut piece).map_err(|why| no_answer(why, socket, PATIENCE))?;
        anyhow::ensure!(n > 0, "no answer from the instance at {name}");
        answer.extend(&piece[..n]);
    };
    let header = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let mut fields = header.lines().filter_map(|line| line.split_once(':'));
    let number = fields.find(|(name, _)| *name == CAPTURE_NUMBER);
    let Some(number) = number.and_then(|(_, number)| number.trim().parse().ok()) else {
        stream.read_to_end(&mut answer).map_err(|why| no_answer(why, socket, PATIENCE))?;
        understand::<IgnoredAny>(&answer, &name.to_string(), "capture")?;
        bail!("the instance at {name} sent no capture number: do both have the same version?");
    };
    stream.set_read_timeout(Some(look))?;
    Ok(Capture { number, stream: Box::new(std::io::Cursor::new(answer.split_off(end + 4)).chain(stream)) })
}

/// Ends a capture. Its stream still delivers the packets recorded so far.
pub fn end_capture(socket: &Path, number: u64) -> anyhow::Result<()> {
    request(socket, &format!("DELETE /v1/capture?number={number}"), "", "capture").map(|_: CaptureEnded| ())
}

/// Sends a request and returns the answer; `what` names the request in error messages.
fn request<T: DeserializeOwned>(socket: &Path, line: &str, body: &str, what: &str) -> anyhow::Result<T> {
    let name = socket.display().to_string();
    let mut stream = connect(socket)?;
    let mut answer = Vec::new();
    let reads = [Topic::Drift, Topic::KernelConnections].iter().any(|t| line.ends_with(&format!("/{}", t.name())));
    let patience = if line.starts_with("POST") || reads { READING } else { PATIENCE };
    let exchange = || {
        let sent = send(&mut stream, line, "1.1", body);
        let refused = |why: &std::io::Error| [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&why.kind());
        if sent.as_ref().is_err_and(|why| !refused(why)) {
            return sent;
        }
        stream.set_read_timeout(Some(patience))?;
        // The server closes after one answer.
        let read = stream.read_to_end(&mut answer).map(drop);
        sent.and(read)
    };
    let got: std::io::Result<()> = { exchange }();
    match got {
        // A server that refuses a request says so, and closes the connection before all of it has been sent.
        Err(why) if parse(&answer).is_none() => Err(no_answer(why, socket, patience)),
        _ => understand(&answer, &name, what),
    }
}

/// Returns the error for an instance that did not answer within `patience`, or whose connection failed.
fn no_answer(why: std::io::Error, socket: &Path, patience: Duration) -> Error {
    let name = socket.display();
    match why.kind() {
        // A read that has timed out.
        ErrorKind::WouldBlock => {
            let seconds = patience.as_secs();
            anyhow!("no answer from the instance at {name} within {seconds} s: is the process stopped or overloaded?")
        }
        _ => Error::new(why).context(format!("no answer from the instance at {name}")),
    }
}

/// Connects to the instance at `socket`; an error says why it failed and what to do.
fn connect(socket: &Path) -> anyhow::Result<UnixStream> {
    let name = socket.display();
    match UnixStream::connect(socket) {
        Ok(stream) => Ok(stream),
        Err(why) if why.kind() == ErrorKind::NotFound => {
            bail!("no bywash runs here (socket {name} not found): start one with `bywash run ...`")
        }
        Err(why) if why.kind() == ErrorKind::ConnectionRefused => {
            bail!("no bywash runs here any more (nothing listens on {name}): start one with `bywash run ...`")
        }
        Err(why) if why.kind() == ErrorKind::PermissionDenied => {
            bail!(
                "no permission to connect to the instance at {name}: use sudo, or set `group` in its [api] to one of your groups"
            )
        }
        Err(why) => Err(why).with_context(|| format!("cannot connect to the instance at {name}")),
    }
}

fn send(stream: &mut UnixStream, line: &str, version: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let request = format!(
        "{line} HTTP/{version}\r\nHost: bywash\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())
}

/// Returns the value of an answer; errors with the message that the answer contains.
fn understand<T: DeserializeOwned>(answer: &[u8], name: &str, what: &str) -> anyhow::Result<T> {
    let (status, body) = parse(answer).with_context(|| format!("incomplete or malformed answer from {name}"))?;
    if status == 200 {
        return read(&body, name);
    }
    let Problem { error, hint } = read(&body, name)?;
    match hint.as_str() {
        "" => bail!("{what}: {error}"),
        hint => bail!("{what}: {error}: {hint}"),
    }
}

fn read<T: DeserializeOwned>(body: &[u8], name: &str) -> anyhow::Result<T> {
    serde_json::from_slice(body).map_err(|why| match why.classify() {
        Category::Data => Error::new(why).context(format!("the instance at {name}: {OTHER_VERSION}")),
        _ => Error::new(why).context(format!("the answer from {name} is not JSON")),
    })
}

/// Splits an answer into status and body; `None` if it is malformed or incomplete.
fn parse(answer: &[u8]) -> Option<(u16, Cow<'_, [u8]>)> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (header, body) = (std::str::from_utf8(&answer[..end]).ok()?, &answer[end + 4..]);
    let mut lines = header.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            // A shorter body means that the server closed the connection early.
            return (value.trim().parse() == Ok(body.len())).then_some((status, body.into()));
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return (value.trim() == "chunked").then(|| unchunk(body))?.map(|body| (status, body.into()));
        }
    }
    None
}

/// Joins the chunks of a body (RFC 9112, section 7.1); `None` if it is malformed, or ends before its last chunk.
fn unchunk(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::with_capacity(body.len());
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&body[..end]).ok()?.split(';').next()?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        body = &body[end + 2..];
        if size == 0 {
            return Some(whole);
        }
        whole.extend(body.get(..size)?);
        body = body[size..].strip_prefix(b"\r\n")?;
    }
}

/// Percent-encodes a query parameter (RFC 3986, section 2.1).
fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let good = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(parse(good), Some((200, b"{}".into())));
        assert_eq!(parse(&good[..good.len() - 1]), None);
        assert_eq!(parse(b"HTTP/1.1 200 OK\r\n\r\n{}"), None);
        assert_eq!(parse(b"SSH-2.0-x\r\n\r\n"), None);
    }

    #[test]
    fn an_instance_that_does_not_answer_is_named() {
        let why = no_answer(ErrorKind::WouldBlock.into(), Path::new("/x.sock"), PATIENCE).to_string();
        assert!(why.starts_with("no answer from the instance at /x.sock within 20 s"), "{why}");
    }

    #[test]
    fn answers_in_pieces() {
        let good = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n[\r\nA;x=y\r\n\r\n3456789,\r\n2\r\n1]\r\n0\r\n\r\n";
        assert_eq!(parse(good), Some((200, b"[\r\n3456789,1]".into())));
        for end in 0..good.len() - 2 {
            assert_eq!(parse(&good[..end]), None, "{end}");
        }
        for wrong in ["x\r\n", "5\r\n12\r\n0\r\n", "2\r\n1234\r\n0\r\n", "ffffffffffffffff\r\n"] {
            assert_eq!(unchunk(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn queries() {
        assert_eq!(encode("2001:db8::/32"), "2001:db8::/32");
        assert_eq!(encode("a b&c=\u{e4}"), "a%20b%26c%3D%C3%A4");
    }
}
