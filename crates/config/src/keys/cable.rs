//! Keys of a cable downstream.

use crate::choice::*;
use crate::key::Takes::*;
use crate::key::{Section, key};
use crate::keys::SECRET_FROM;
use crate::text;
use bywash_docsis::codeword::BITS;
use bywash_docsis::depi::MTUS;
use bywash_docsis::group::MODEMS_MAX;
use bywash_docsis::instance::RINGS;
use std::ops::RangeInclusive;

/// Valid rates in bit/s.
const RATE: RangeInclusive<usize> = 0..=1_000_000_000_000;
/// Valid code points of differentiated services.
const DSCP: RangeInclusive<usize> = 0..=63;

pub static CMTS: Section = Section {
    header: "[cmts]",
    doc: "Frame processing of a cable downstream, the same for all groups.",
    keys: &[
        key("crc", Bool, "true", "").doc("Appends a CRC-32 to each PDU.").example("false").only(Mode::Cmts),
        key("cipher", Bool, "true", "")
            .doc("Encrypts PDUs with AES-128 in CBC mode and residual block termination (BPI+).")
            .example("false")
            .only(Mode::Cmts),
        key("crypto", Choice(names::<Crypto>), "\"auto\"", "")
            .doc(
                "Encryption library. `auto`: libipsec-mb if it is installed, else portable code; `bywash show \
                 channels` shows which one is in use.",
            )
            .example("\"portable\"")
            .only(Mode::Cmts),
        key("assist", Bool, "true", "")
            .doc(
                "Lets the upper MAC's worker encrypt as well while 128 or more frames wait for the lower MAC's worker.",
            )
            .example("false")
            .only(Mode::Cmts),
        key("ring", Int(RINGS), "4096", "frames")
            .doc(
                "Capacity of the ring between the upper and the lower MAC of a group. When it is full, because the \
                 lower MAC's worker did not run for too long, frames are dropped as `tx-full`.",
            )
            .example("1024")
            .only(Mode::Cmts),
        key("queue", Int(1..=65_536), "256", "frames")
            .doc("Maximum length of the queue of one service flow.")
            .example("64")
            .only(Mode::Cmts),
        key("queues", Int(64..=1 << 20), "8192", "frames")
            .doc("Maximum length of all queues of a group together.")
            .example("1024")
            .only(Mode::Cmts),
        key("overflow", Choice(names::<Overflow>), "\"tail\"", "")
            .doc("Packet to drop when the queue of a flow is full. `tail`: the arriving one. `head`: the oldest one.")
            .example("\"head\"")
            .only(Mode::Cmts),
        key("cpes", Int(0..=1024), "16", "addresses")
            .doc(
                "Maximum number of addresses behind a modem that are learned, from upstream MAC frames that the \
                 group's output receives: on a modem's primary service flow, the SID in the privacy element is its \
                 SAID. Such frames are dropped as `filtered`. An address stays with its modem until it is no longer \
                 seen.",
            )
            .example("1")
            .only(Mode::Cmts),
        key("cpe_ageing_s", Int(1..=86_400), "3600", "seconds")
            .doc("Time after which a learned address behind a modem that is no longer seen is removed.")
            .example("300")
            .only(Mode::Cmts),
        key("channels", Or("auto", &OneOrMore("a rate", RATE)), "\"auto\"", "bit/s")
            .doc(
                "Rates of the OFDM channels of a group; 0: no limit. Traffic is distributed over the channels in \
                 proportion to their rates; a channel without limit counts as having the fastest rate. `auto`: one \
                 channel without limit.",
            )
            .example("[1_890_000_000, 1_890_000_000]")
            .only(Mode::Cmts),
    ],
};

pub static GROUP: Section = Section {
    header: "[[group]]",
    doc: "A service group of a cable downstream. Each group has two workers: an upper MAC, which polls the input, and \
           a lower MAC.",
    keys: &[
        key("input", Text(&text::PORT), "(required)", "")
            .doc("Port on which Ethernet frames for the group's modems arrive.")
            .example("\"eth0\"")
            .only(Mode::Cmts),
        key("output", Text(&text::PORT), "(required)", "")
            .doc(
                "Port on which MAC frames are sent. Frames received on it are used to learn addresses behind modems \
                 (`cpes`), and then dropped as `filtered`.",
            )
            .example("\"cable\"")
            .only(Mode::Cmts),
        key("modems", Or("auto", &Int(0..=MODEMS_MAX)), "\"auto\"", "modems")
            .doc("Number of generated modems in the group. `auto`: 300, or none with `file`.")
            .example("1000")
            .only(Mode::Cmts),
        key("file", Text(&text::PATH), "(none)", "")
            .doc(
                "File of modems, beside the generated ones: a line for each with the columns that the first line \
                 names, separated by commas. `mac`: the address, required. `said`: by default the one after the \
                 previous modem's. `key`, `iv`: 32 hex digits each; by default derived like those of generated modems. \
                 `sequence`: number of the key, 0 to 15, by default 0. `cpe`: addresses behind the modem, separated by \
                 spaces. `channels`: numbers of the channels that the modem receives (its bonding group), from 1, \
                 separated by spaces; by default all. `flows`: names of the modem's service flows, separated by \
                 spaces, of which the first in the configuration takes what no other matches; by default all. \
                 `profile`: name of the modem's profile; by default the first. A group address as `mac`, such as \
                 `ff:ff:ff:ff:ff:ff`, makes the line a multicast group, whose frames have a DSID and a security \
                 association of their own. `#` begins a comment. A reload reads the file again, replaces the addresses \
                 behind modems and rolls over to keys with other sequence numbers, which must have the other parity; \
                 nothing else in it can change.",
            )
            .example("\"/etc/bywash/modems.csv\"")
            .only(Mode::Cmts),
        key("mac", Text(&text::MAC), "\"02:ca:b1:00:00:01\"", "")
            .doc(
                "MAC address of the first modem; those of the others follow consecutively. Frames to any other address \
                 are dropped as `unknown-modem`.",
            )
            .example("\"00:10:18:00:00:00\"")
            .only(Mode::Cmts),
        key("said", Int(0..=16_383), "1", "")
            .doc("Security association identifier (SAID) of the first modem; those of the others follow consecutively.")
            .example("100")
            .only(Mode::Cmts),
        key("key", Either(&Text(&text::BLOCK), &Table(&SECRET_FROM)), "\"00000000000000000000000000000000\"", "")
            .doc(
                "AES-128 key of the first modem. The key of the n-th modem after it is the number n, as one block, \
                 encrypted with this key: for labs, where no key exchange takes place. `{ file = \"PATH\" }` reads it \
                 from a file, `{ credential = \"NAME\" }` from a systemd credential; it is never shown.",
            )
            .example("\"2b7e151628aed2a6abf7158809cf4f3c\"")
            .only(Mode::Cmts),
        key("iv", Either(&Text(&text::BLOCK), &Table(&SECRET_FROM)), "\"00000000000000000000000000000000\"", "")
            .doc("Initialization vector of the first modem; those of the others are derived like their keys.")
            .example("\"000102030405060708090a0b0c0d0e0f\"")
            .only(Mode::Cmts),
        key("depi", Table(&DEPI), "(none)", "")
            .doc(
                "Remote PHY to send MAC frames to, by DEPI (L2TPv3 over IPv4): `{ local = \"192.0.2.1\", local_mac = \
                 \"..\", remote = \"192.0.2.2\", remote_mac = \"..\", session = 1, dscp = 0, mtu = \
                 1500 }`. Channel n uses session + n. MAC frames are packed into IP packets of at most `mtu` bytes, in \
                 one flow for each priority; a frame that does not fit continues in the next packet.",
            )
            .example(
                "{ local = \"192.0.2.1\", local_mac = \"02:00:00:00:00:01\", remote = \"192.0.2.2\", remote_mac = \
                 \"02:00:00:00:00:02\" }",
            )
            .only(Mode::Cmts),
    ],
};

/// Keys of `depi = { .. }`.
pub static DEPI: Section = Section {
    header: "`depi`",
    doc: "",
    keys: &[
        key("local", Text(&text::IPV4), "(required)", ""),
        key("local_mac", Text(&text::MAC), "(required)", ""),
        key("remote", Text(&text::IPV4), "(required)", ""),
        key("remote_mac", Text(&text::MAC), "(required)", ""),
        key("session", Int(1..=u32::MAX as usize), "1", ""),
        key("dscp", Int(DSCP), "0", ""),
        key("mtu", Int(MTUS), "1500", "bytes"),
    ],
};

pub static PROFILE: Section = Section {
    header: "[[profile]]",
    doc: "A profile of the OFDM channels. Frames of a profile share codewords (16,200 bits, 14,216 of them payload), \
          and the cost of a frame follows from the codewords that it begins and from the bits per symbol. A modem in a \
          file has the profile that column `profile` names; all others have the first profile, which every modem must \
          be able to receive. Without any `[[profile]]`, a frame costs its own bytes.",
    keys: &[
        key("name", Text(&text::NAME), "(required)", "")
            .doc("Name of the profile in the file of modems.")
            .example("\"A\"")
            .only(Mode::Cmts),
        key("bits", OneOf("number of bits", &BITS), "12", "bits per symbol")
            .doc(
                "Modulation: 4 for 16-QAM, 12 for 4096-QAM. The rates of `channels` are those of payload in full \
                 codewords of the profile with the most bits.",
            )
            .example("10")
            .only(Mode::Cmts),
    ],
};

pub static FLOW: Section = Section {
    header: "[[flow]]",
    doc: "A service flow of every modem, or of those that the file of modems names. A packet belongs to the first flow \
          of its modem whose classifier keys match it, or else to the first one. Without any `[[flow]]`, each modem \
          has one flow without limits.",
    keys: &[
        key("name", Text(&text::NAME), "(required)", "")
            .doc("Name of the flow in `show`.")
            .example("\"voice\"")
            .only(Mode::Cmts),
        key("priority", Int(0..=7), "0", "")
            .doc("Traffic priority. Packets of flows with a higher priority are sent first.")
            .example("5")
            .only(Mode::Cmts),
        key("rate", Int(RATE), "0", "bit/s")
            .doc(
                "Maximum sustained rate; packets above it are dropped as `policed`. A packet counts from the \
                 destination address to the end of the CRC, also with `crc = false`. 0: no limit.",
            )
            .example("100_000_000")
            .only(Mode::Cmts),
        key("burst", Int(0..=u32::MAX as usize), "0", "bytes")
            .doc("Maximum burst above the sustained rate, at least 2004: the longest PDU with its CRC. 0: 3044.")
            .example("100_000")
            .only(Mode::Cmts),
        key("peak", Int(RATE), "0", "bit/s").doc("Peak rate. 0: no limit.").example("200_000_000").only(Mode::Cmts),
        key("shape", Bool, "false", "")
            .doc(
                "Traffic shaping: packets above `rate` and `peak` wait in the flow's queue until they conform, instead \
                 of being dropped as `policed`.",
            )
            .example("true")
            .only(Mode::Cmts),
        key("reserved", Int(RATE), "0", "bit/s")
            .doc(
                "Minimum reserved rate: packets within it are sent before all others, whatever their priority. At most \
                 `rate`. 0: none.",
            )
            .example("1_000_000")
            .only(Mode::Cmts),
        key("aqm", Choice(names::<Aqm>), "\"none\"", "")
            .doc(
                "Active queue management of a flow with `shape` and `rate`. `pie`: DOCSIS-PIE (RFC 8034), which drops \
                 packets early, as `aqm`, to keep the delay in the queue near `latency_ms`. Its buffer is `queue` of \
                 `[cmts]`, counted with 1024 bytes a packet.",
            )
            .example("\"pie\"")
            .only(Mode::Cmts),
        key("latency_ms", Int(1..=1000), "10", "ms")
            .doc("Delay in the queue that `aqm` aims at.")
            .example("20")
            .only(Mode::Cmts),
        key("dscp", OneOrMore("a code point", DSCP), "(any)", "")
            .doc("Matches packets with one of these DSCP values.")
            .example("[46]")
            .only(Mode::Cmts),
        key("proto", Int(0..=255), "(any)", "")
            .doc("Matches packets of this IP protocol.")
            .example("17")
            .only(Mode::Cmts),
        key("source", Text(&text::PREFIX), "(any)", "")
            .doc("Matches packets from these addresses.")
            .example("\"10.0.0.0/8\"")
            .only(Mode::Cmts),
        key("destination", Text(&text::PREFIX), "(any)", "")
            .doc("Matches packets to these addresses.")
            .example("\"fd00::/8\"")
            .only(Mode::Cmts),
        key("source_port", Text(&text::PORTS), "(any)", "")
            .doc("Matches packets from this port or range of ports.")
            .example("\"5060\"")
            .only(Mode::Cmts),
        key("destination_port", Text(&text::PORTS), "(any)", "")
            .doc("Matches packets to this port or range of ports.")
            .example("\"16384-32767\"")
            .only(Mode::Cmts),
        key("drop", Bool, "false", "")
            .doc(
                "Makes this a filter instead of a flow: matching packets are dropped as `filtered` before they are \
                 classified into flows.",
            )
            .example("true")
            .only(Mode::Cmts),
    ],
};
