//! Arguments of `bywash docsis`.

use crate::config::Crypto;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Subcommands of `bywash docsis`.
#[derive(Debug, Subcommand)]
pub enum DocsisArgs {
    /// Append the CRC to PDUs and encrypt them
    Seal(SealArgs),
    /// Decrypt sealed PDUs, check the CRC and remove it
    Open(SealArgs),
    /// Prepend a MAC header to PDUs, sealed or not
    Frame(FrameArgs),
    /// Parse MAC frames and print their fields
    Parse(ParseArgs),
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Enabled
    On,
    /// Disabled
    Off,
}

impl Switch {
    pub fn on(self) -> bool {
        self == Self::On
    }
}

/// `bywash docsis seal` and `bywash docsis open`
#[derive(Debug, Args)]
#[command(
    after_help = "Reads one PDU per line in hex (an Ethernet frame without FCS) from standard input and writes one line for each."
)]
pub struct SealArgs {
    /// AES-128 key: 32 hex digits
    #[arg(long, value_name = "HEX", value_parser = block)]
    pub key: [u8; 16],
    /// Initialization vector: 32 hex digits
    #[arg(long, value_name = "HEX", value_parser = block)]
    pub iv: [u8; 16],
    /// CRC-32 in the last four bytes of the PDU
    #[arg(long, value_name = "WHEN", default_value = "on", hide_possible_values = true)]
    pub crc: Switch,
    /// Encryption with AES-128 in CBC mode and residual block termination
    #[arg(long, value_name = "WHEN", default_value = "on", hide_possible_values = true)]
    pub cipher: Switch,
    /// Number of bytes at the start of the PDU that stay in clear text
    #[arg(long, value_name = "N", default_value_t = bywash_docsis::protect::CLEAR)]
    pub offset: usize,
    /// Encryption library; `open` always uses portable code
    #[arg(long, value_name = "WHO", default_value = "auto")]
    pub crypto: Crypto,
}

/// `bywash docsis frame`
#[derive(Debug, Args)]
#[command(after_help = "Reads one PDU per line in hex from standard input and writes one line for each.")]
pub struct FrameArgs {
    /// Security association identifier (SAID); adds the BPI+ privacy element
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..1 << 14))]
    pub said: Option<u16>,
    /// Mark the PDUs as not encrypted
    #[arg(long, requires = "said")]
    pub clear: bool,
    /// Key sequence number of the privacy element
    #[arg(long, value_name = "N", default_value_t = 0, requires = "said", value_parser = clap::value_parser!(u8).range(0..16))]
    pub key_sequence: u8,
    /// Downstream service identifier (DSID); adds its extended header element
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..1 << 20))]
    pub dsid: Option<u32>,
    /// Packet sequence number of the first PDU; it increases by one for each PDU
    #[arg(long, value_name = "N", requires = "dsid")]
    pub sequence: Option<u16>,
    /// Traffic priority; adds its extended header element
    #[arg(long, value_name = "0-7", value_parser = clap::value_parser!(u8).range(0..8))]
    pub priority: Option<u8>,
    /// Also write the frames to this capture file (link type DOCSIS)
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}

/// `bywash docsis parse`
#[derive(Debug, Args)]
#[command(after_help = "Reads one MAC frame per line in hex from standard input and writes one line for each.")]
pub struct ParseArgs {
    /// Print a JSON object for each frame
    #[arg(long)]
    pub json: bool,
}

fn block(text: &str) -> Result<[u8; 16], String> {
    let bytes = bywash_wire::hex::decode(text)?;
    bytes.try_into().map_err(|_| format!("expected 32 hex digits, found {}", text.trim().len()))
}
