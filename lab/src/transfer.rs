//! Verified TCP transfer between two namespaces: the bytes received are compared with those sent, and both are hashed.

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::patience;
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const CHUNK: usize = 64 * 1024;

/// Parameters of a transfer. The content is pseudo-random, so that misplaced bytes are detected.
#[derive(Debug, Clone)]
pub struct Transfer {
    bytes: u64,
    seed: u64,
    stall: Duration,
}

/// Result of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferReport {
    /// Bytes received.
    pub received: u64,
    /// SHA-256 of the bytes sent, in hex.
    pub sent_hash: String,
    /// SHA-256 of the bytes received, in hex.
    pub received_hash: String,
    /// Offset of the first byte that differs from the one sent.
    pub first_difference: Option<u64>,
    /// Time from the connection to the receiver's end of file.
    pub elapsed: Duration,
}

impl TransferReport {
    /// Returns whether everything arrived as it was sent.
    pub fn is_intact(&self) -> bool {
        self.first_difference.is_none() && self.sent_hash == self.received_hash
    }

    /// Returns the payload bits received per second.
    pub fn bits_per_second(&self) -> f64 {
        self.received as f64 * 8.0 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl Transfer {
    /// Creates a transfer of `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, seed: 1, stall: Duration::from_secs(60) }
    }

    /// Sets the seed of the content.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets how long either side waits without progress before it fails; a minute by default.
    #[must_use]
    pub fn stall(mut self, stall: Duration) -> Self {
        self.stall = stall;
        self
    }

    /// Sends from `from` to a receiver listening on `address` in `to`, on a free port.
    pub fn run(&self, from: &Namespace, to: &Namespace, address: impl Into<IpAddr>) -> Result<TransferReport> {
        let address = address.into();
        let (tell_port, port) = mpsc::channel();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| to.enter(|| self.receive(address, tell_port)).and_then(|result| result));
            // The channel closes without a port if the receiver could not listen; its own error gives the reason.
            let sent = match port.recv() {
                Ok(socket) => from.enter(|| self.send(socket)).and_then(|result| result),
                Err(_) => Ok(String::new()),
            };
            let received = match receiver.join() {
                Ok(received) => received,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            // If both fail, the sender's error is the cause: the receiver only missed the connection.
            let sent_hash = sent?;
            Ok(TransferReport { sent_hash, ..received? })
        })
    }

    fn receive(&self, address: IpAddr, tell_port: mpsc::Sender<SocketAddr>) -> Result<TransferReport> {
        let listener =
            TcpListener::bind((address, 0)).map_err(|source| Error::io(format!("listening on {address}"), source))?;
        let local = listener.local_addr().map_err(|source| Error::io("reading the port", source))?;
        listener.set_nonblocking(true).map_err(|source| Error::io("making the listener non-blocking", source))?;
        let _ = tell_port.send(local);
        drop(tell_port);

        let deadline = Instant::now() + patience(self.stall);
        let mut stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(source) => return Err(Error::io(format!("waiting for a connection to {local}"), source)),
            }
        };
        let started = Instant::now();
        let setup = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(patience(self.stall))));
        setup.map_err(|source| Error::io("setting up the receiver", source))?;

        let mut hash = Sha256::new();
        let mut expected = Content::new(self.seed);
        let (mut got, mut wanted) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut received = 0u64;
        let mut first_difference = None;
        loop {
            let count = fill(&mut stream, &mut got)
                .map_err(|source| Error::io(format!("receiving at byte {received}"), source))?;
            if count == 0 {
                break;
            }
            hash.update(&got[..count]);
            if first_difference.is_none() {
                expected.write(&mut wanted);
                let at = got[..count].iter().zip(&wanted).position(|(got, wanted)| got != wanted);
                first_difference = at.map(|at| received + at as u64);
            }
            received += count as u64;
        }
        if first_difference.is_none() && received != self.bytes {
            first_difference = Some(received.min(self.bytes));
        }
        Ok(TransferReport {
            received,
            sent_hash: String::new(),
            received_hash: hex(&hash.finalize()),
            first_difference,
            elapsed: started.elapsed(),
        })
    }

    fn send(&self, to: SocketAddr) -> Result<String> {
        let deadline = Instant::now() + patience(self.stall);
        let mut stream = loop {
            match TcpStream::connect_timeout(&to, patience(self.stall)) {
                Ok(stream) => break stream,
                // A kernel gives up a neighbour that has not answered for three seconds, as on a busy machine.
                Err(error) if error.kind() == ErrorKind::HostUnreachable && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(source) => return Err(Error::io(format!("connecting to {to}"), source)),
            }
        };
        stream
            .set_write_timeout(Some(patience(self.stall)))
            .map_err(|source| Error::io("setting up the sender", source))?;
        let mut hash = Sha256::new();
        let mut content = Content::new(self.seed);
        let mut chunk = vec![0; CHUNK];
        let mut left = self.bytes;
        while left > 0 {
            content.write(&mut chunk);
            let count = left.min(CHUNK as u64) as usize;
            hash.update(&chunk[..count]);
            let at = self.bytes - left;
            stream.write_all(&chunk[..count]).map_err(|source| Error::io(format!("sending at byte {at}"), source))?;
            left -= count as u64;
        }
        Ok(hex(&hash.finalize()))
    }
}

/// Reads until the buffer is full or the stream ends, so that chunks align with the sender's.
fn fill(stream: &mut TcpStream, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Content generator: SplitMix64 (Steele, Lea, Flood 2014), eight bytes per step.
struct Content(u64);

impl Content {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn write(&mut self, chunk: &mut [u8]) {
        for word in chunk.chunks_exact_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the receiver's report on a stream of 200,000 bytes modified by `spoil`.
    fn received(spoil: impl FnOnce(&mut Vec<u8>)) -> TransferReport {
        let transfer = Transfer::new(200_000).seed(7);
        let mut stream = vec![0; 200_000];
        Content::new(7).write(&mut stream);
        spoil(&mut stream);
        let (tell_port, port) = mpsc::channel();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| transfer.receive(IpAddr::from([127, 0, 0, 1]), tell_port));
            TcpStream::connect(port.recv().unwrap()).unwrap().write_all(&stream).unwrap();
            receiver.join().unwrap().unwrap()
        })
    }

    #[test]
    fn every_kind_of_damage_is_found_where_it_is() {
        assert_eq!(received(|_| {}).first_difference, None);
        assert_eq!(received(|stream| stream[150_001] ^= 1).first_difference, Some(150_001));
        assert_eq!(received(|stream| stream.truncate(199_999)).first_difference, Some(199_999));
        assert_eq!(received(|stream| stream.push(0)).first_difference, Some(200_000));
        assert!(received(|stream| stream.swap(10, 11)).first_difference.is_some());
        let repeated = received(|stream| stream.copy_within(65_536..131_072, 0));
        assert_eq!((repeated.first_difference, repeated.received), (Some(0), 200_000));
    }
}
