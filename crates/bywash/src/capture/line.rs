//! Packets as lines of text.

use super::blocks::Block;
use bywash_wire::summary;
use std::io::{Result, Write};

/// Writes packets as lines. Interface blocks in the stream give the ports' names.
#[derive(Default)]
pub struct Lines {
    ports: Vec<String>,
}

impl Lines {
    /// Writes a line for a packet, and nothing for other blocks.
    pub fn put(&mut self, block: &Block, out: &mut impl Write) -> Result<()> {
        match block {
            Block::Interface(name) => self.ports.push(name.clone()),
            Block::Packet { interface, time_ns, length, bytes, sent, comment } => {
                let port = self.ports.get(*interface).map_or("?", String::as_str);
                let seconds = time_ns / 1_000_000_000;
                let (h, m, s, us) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60, time_ns / 1000 % 1_000_000);
                let happened = comment.as_deref().unwrap_or(if *sent { "sent" } else { "received" });
                let what = summary::line(bytes);
                writeln!(out, "{h:02}:{m:02}:{s:02}.{us:06}Z {port} {happened}: {length} B {what}")?;
            }
            _ => {}
        }
        Ok(())
    }
}
