//! Simulated engine: a process whose registers are accessed by messages and that maps this process's arena.

use std::io::{BufReader, BufWriter, Error, Read, Result, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const WRITE: u8 = 1;
const READ: u8 = 2;
const PACKET: u8 = 3;
const RUN: u8 = 4;

/// Message as defined in `rtl/bench/cosim.cpp`.
struct Message {
    what: u8,
    port: u8,
    length: u32,
    value: u64,
}

/// Running simulation. It runs only while a call on this side waits for it; between calls only this process writes to
/// the arena.
pub struct Simulator {
    child: Child,
    to: BufWriter<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Simulator {
    /// Starts `program` on the memory behind `memory`, `size` bytes long, at the engine's address `bias`.
    pub fn start(program: &Path, memory: BorrowedFd<'_>, size: usize, bias: u64) -> Result<Self> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        let mut child = Command::new(program)
            .args([path, size.to_string(), bias.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = BufWriter::new(child.stdin.take().ok_or_else(Self::gone)?);
        let from = BufReader::new(child.stdout.take().ok_or_else(Self::gone)?);
        Ok(Self { child, to, from })
    }

    fn gone() -> Error {
        Error::other("the simulated engine has ended")
    }

    fn say(&mut self, m: &Message) -> Result<()> {
        let mut bytes = [0; 16];
        (bytes[0], bytes[1]) = (m.what, m.port);
        bytes[4..8].copy_from_slice(&m.length.to_le_bytes());
        bytes[8..].copy_from_slice(&m.value.to_le_bytes());
        self.to.write_all(&bytes)
    }

    fn hear(&mut self) -> Result<Message> {
        let mut bytes = [0; 16];
        self.from.read_exact(&mut bytes)?;
        let (head, value) = bytes.split_last_chunk().expect("8 of 16 bytes");
        let (_, length) = head.split_last_chunk().expect("4 of 8 bytes");
        let (length, value) = (u32::from_le_bytes(*length), u64::from_le_bytes(*value));
        Ok(Message { what: bytes[0], port: bytes[1], length, value })
    }

    fn ask(&mut self, m: &Message) -> Result<u64> {
        self.say(m)?;
        self.to.flush()?;
        let answer = self.hear()?;
        if answer.what == m.what { Ok(answer.value) } else { Err(Self::gone()) }
    }

    /// Reads a register.
    pub fn read(&mut self, at: u32) -> Result<u64> {
        self.ask(&Message { what: READ, port: 0, length: at, value: 0 })
    }

    /// Writes a register.
    pub fn write(&mut self, at: u32, value: u64) -> Result<()> {
        self.ask(&Message { what: WRITE, port: 0, length: at, value }).map(|_| ())
    }

    /// Queues a packet received by `port`; it arrives during the next [`Simulator::run`].
    pub fn receive(&mut self, port: u8, packet: &[u8]) -> Result<()> {
        self.say(&Message { what: PACKET, port, length: packet.len() as u32, value: 0 })?;
        self.to.write_all(packet)
    }

    /// Runs until the engine is idle, for at most `clocks` clocks. Calls `sent` with the port and bytes of each packet
    /// that leaves. Returns the number of queued packets that have not arrived yet.
    pub fn run(&mut self, clocks: u64, mut sent: impl FnMut(u8, &[u8])) -> Result<u64> {
        self.say(&Message { what: RUN, port: 0, length: 0, value: clocks })?;
        self.to.flush()?;
        let mut packet = vec![];
        loop {
            let m = self.hear()?;
            match m.what {
                PACKET => {
                    packet.resize(m.length as usize, 0);
                    self.from.read_exact(&mut packet)?;
                    sent(m.port, &packet);
                }
                RUN => return Ok(m.value),
                _ => return Err(Self::gone()),
            }
        }
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
