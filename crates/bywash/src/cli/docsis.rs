//! The arguments of `bywash docsis`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// What can be done with PDUs and frames.
#[derive(Debug, Subcommand)]
pub enum DocsisArgs {
    /// Append the CRC to PDUs and encipher them
    Seal(SealArgs),
    /// Decipher what was sealed, check the CRC and remove it
    Open(SealArgs),
    /// Put a MAC header before PDUs, sealed or not
    Frame(FrameArgs),
    /// Take MAC frames apart
    Parse(ParseArgs),
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Do it
    On,
    /// Do not
    Off,
}

impl Switch {
    pub fn on(self) -> bool {
        self == Self::On
    }
}

/// Who seals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Crypto {
    /// libipsec-mb where it is installed, else portable
    #[default]
    Auto,
    /// libipsec-mb, or an error
    IpsecMb,
    /// Portable code
    Portable,
}

impl From<Crypto> for bywash_docsis::seal::Crypto {
    fn from(crypto: Crypto) -> Self {
        match crypto {
            Crypto::Auto => Self::Auto,
            Crypto::IpsecMb => Self::IpsecMb,
            Crypto::Portable => Self::Portable,
        }
    }
}

/// `bywash docsis seal` and `bywash docsis open`
#[derive(Debug, Args)]
#[command(after_help = "Reads lines of hex, a PDU each (an Ethernet frame without FCS); writes a line for each.")]
pub struct SealArgs {
    /// AES-128 key: 32 hex digits
    #[arg(long, value_name = "HEX", value_parser = block)]
    pub key: [u8; 16],
    /// Initialization vector: 32 hex digits
    #[arg(long, value_name = "HEX", value_parser = block)]
    pub iv: [u8; 16],
    /// The PDU's CRC-32, four bytes at its end
    #[arg(long, value_name = "WHEN", default_value = "on", hide_possible_values = true)]
    pub crc: Switch,
    /// AES-128 in CBC mode with residual block termination
    #[arg(long, value_name = "WHEN", default_value = "on", hide_possible_values = true)]
    pub cipher: Switch,
    /// Bytes at the front that stay clear
    #[arg(long, value_name = "N", default_value_t = bywash_docsis::protect::CLEAR)]
    pub offset: usize,
    /// Who seals; `open` is always portable
    #[arg(long, value_name = "WHO", default_value = "auto")]
    pub crypto: Crypto,
}

/// `bywash docsis frame`
#[derive(Debug, Args)]
#[command(after_help = "Reads lines of hex, a PDU each; writes a line for each.")]
pub struct FrameArgs {
    /// Security association: adds the privacy element
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..1 << 14))]
    pub said: Option<u16>,
    /// The PDUs are not enciphered
    #[arg(long, requires = "said")]
    pub clear: bool,
    /// Sequence number of the key
    #[arg(long, value_name = "N", default_value_t = 0, requires = "said", value_parser = clap::value_parser!(u8).range(0..16))]
    pub key_sequence: u8,
    /// Downstream service: adds the element of it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..1 << 20))]
    pub dsid: Option<u32>,
    /// Sequence number of the first PDU; the others follow
    #[arg(long, value_name = "N", requires = "dsid")]
    pub sequence: Option<u16>,
    /// Traffic priority: adds the element of it
    #[arg(long, value_name = "0-7", value_parser = clap::value_parser!(u8).range(0..8))]
    pub priority: Option<u8>,
    /// Write the frames to this capture file as well (link type DOCSIS)
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
}

/// `bywash docsis parse`
#[derive(Debug, Args)]
#[command(after_help = "Reads lines of hex, a MAC frame each; writes a line for each.")]
pub struct ParseArgs {
    /// Print a JSON object for each frame
    #[arg(long)]
    pub json: bool,
}

fn block(text: &str) -> Result<[u8; 16], String> {
    let bytes = crate::docsis::unhex(text)?;
    bytes.try_into().map_err(|_| format!("expected 32 hex digits, found {}", text.trim().len()))
}
