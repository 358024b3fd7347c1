//! Compares `bywash docsis` with other implementations: the ciphers of openssl, the CRC of zlib, the decoder of tshark.

use bywash_lab::{has_tool, require};
use bywash_wire::hex::{decode, encode};
use std::io::Write;
use std::process::{Command, Stdio};

const KEYS: [(&str, &str); 3] = [
    ("2b7e151628aed2a6abf7158809cf4f3c", "000102030405060708090a0b0c0d0e0f"),
    ("00000000000000000000000000000000", "00000000000000000000000000000000"),
    ("ffeeddccbbaa99887766554433221100", "89abcdef0123456789abcdef01234567"),
];
const CLEAR: usize = 12;
const BLOCK: usize = 16;

/// Runs a command with `input`. Returns its standard output, and whether it succeeded.
fn filter(command: &mut Command, input: &[u8]) -> (Vec<u8>, bool) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut to = child.stdin.take().unwrap();
    let input = input.to_vec();
    // The command may end before it has read everything, so that an error is ignored.
    let writer = std::thread::spawn(move || drop(to.write_all(&input)));
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap();
    (out.stdout, out.status.success())
}

fn docsis(args: &[&str], lines: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let input: String = lines.iter().map(|bytes| encode(bytes) + "\n").collect();
    let (out, good) = filter(Command::new(env!("CARGO_BIN_EXE_bywash")).arg("docsis").args(args), input.as_bytes());
    assert!(good, "bywash docsis {args:?}");
    let out: Vec<Vec<u8>> = String::from_utf8(out).unwrap().lines().map(|line| decode(line).unwrap()).collect();
    assert_eq!(out.len(), lines.len());
    out
}

/// Returns random PDUs, one of each length from 1 to 1600, in a mixed order.
fn pdus() -> Vec<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..1600).map(|i| 1 + i * 769 % 1600).map(|len| (0..len).map(|_| random()).collect()).collect()
}

fn openssl(cipher: &str, key: &str, iv: Option<&str>, text: &[u8]) -> Vec<u8> {
    let mut command = Command::new("openssl");
    command.args(["enc", "-e", "-nopad", cipher, "-K", key]);
    if let Some(iv) = iv {
        command.args(["-iv", iv]);
    }
    let (out, good) = filter(&mut command, text);
    assert!(good, "openssl enc {cipher}");
    out
}

/// Seals a PDU by openssl's CBC and CFB. Starts up to two processes.
fn by_openssl(key: &str, iv: &str, text: &[u8]) -> Vec<u8> {
    let (blocks, rest) = text.split_at(text.len() / BLOCK * BLOCK);
    let mut out = if blocks.is_empty() { vec![] } else { openssl("-aes-128-cbc", key, Some(iv), blocks) };
    if !rest.is_empty() {
        let last = if out.is_empty() { iv.to_string() } else { encode(&out[out.len() - BLOCK..]) };
        out.extend(openssl("-aes-128-cfb", key, Some(&last), rest));
    }
    out
}

/// Returns zlib's CRC-32 of each PDU, in wire order.
fn by_zlib(pdus: &[Vec<u8>]) -> Vec<[u8; 4]> {
    const SCRIPT: &str = "import sys, zlib\nfor line in sys.stdin:\n print(zlib.crc32(bytes.fromhex(line)))";
    let input: String = pdus.iter().map(|bytes| encode(bytes) + "\n").collect();
    let (out, good) = filter(Command::new("python3").args(["-c", SCRIPT]), input.as_bytes());
    assert!(good, "python3");
    String::from_utf8(out).unwrap().lines().map(|crc| crc.parse::<u32>().unwrap().to_le_bytes()).collect()
}

fn cryptos() -> Vec<&'static str> {
    let probe = ["seal", "--key", KEYS[0].0, "--iv", KEYS[0].1, "--crypto", "ipsec-mb"];
    let (_, library) = filter(Command::new(env!("CARGO_BIN_EXE_bywash")).arg("docsis").args(probe), b"");
    if library {
        vec!["portable", "ipsec-mb"]
    } else {
        println!("SKIP: libipsec-mb is not installed: portable only");
        vec!["portable"]
    }
}

/// Compares every block of every PDU. A CBC block is the encryption of the plaintext XOR the previous ciphertext block,
/// which the result contains, so that one run of openssl in ECB mode checks all blocks. This check is as strict as CBC
/// itself, because the block before the first wrong one is right. Some PDUs also go through openssl's CBC and CFB.
#[test]
fn sealed_as_openssl_and_zlib_would() {
    require!(has_tool("openssl"), has_tool("python3"));
    let pdus = pdus();
    let crcs = by_zlib(&pdus);
    for crypto in cryptos() {
        for (key, iv) in KEYS {
            let how = ["seal", "--key", key, "--iv", iv, "--crypto", crypto];
            let sealed = docsis(&how, &pdus);
            let (mut asked, mut expected) = (vec![], vec![]);
            for ((pdu, crc), sealed) in pdus.iter().zip(&crcs).zip(&sealed) {
                let plain = [&pdu[..], crc].concat();
                assert_eq!(sealed.len(), plain.len());
                let clear = CLEAR.min(plain.len());
                assert_eq!(sealed[..clear], plain[..clear]);
                let mut last = decode(iv).unwrap();
                for (text, block) in plain[clear..].chunks(BLOCK).zip(sealed[clear..].chunks(BLOCK)) {
                    if text.len() == BLOCK {
                        asked.extend(text.iter().zip(&last).map(|(a, b)| a ^ b));
                        expected.extend(block);
                    } else {
                        // The residue is XORed with the encryption of the last block. The rest of that encryption is
                        // not visible in the result, and not compared.
                        asked.extend(&last);
                        expected.extend(text.iter().zip(block).map(|(a, b)| a ^ b));
                        expected.extend([0; BLOCK].iter().skip(text.len()));
                    }
                    last = block.to_vec();
                }
            }
            let answered = openssl("-aes-128-ecb", key, None, &asked);
            let mut at = 0;
            for (pdu, sealed) in pdus.iter().zip(&sealed) {
                let text = (sealed.len()).saturating_sub(CLEAR);
                let mut left = text;
                while left > 0 {
                    let n = left.min(BLOCK);
                    assert_eq!(answered[at..at + n], expected[at..at + n], "{crypto}: a PDU of {} bytes", pdu.len());
                    at += BLOCK;
                    left -= n;
                }
            }
            assert_eq!(at, answered.len());
        }
        let (key, iv) = KEYS[2];
        let some: Vec<Vec<u8>> = pdus.iter().filter(|pdu| pdu.len() % 97 == 1 || pdu.len() < 40).cloned().collect();
        let sealed =
            docsis(&["seal", "--key", key, "--iv", iv, "--crypto", crypto, "--crc", "off", "--offset", "3"], &some);
        for (pdu, sealed) in some.iter().zip(sealed).filter(|(pdu, _)| pdu.len() > 3) {
            assert_eq!(sealed[3..], by_openssl(key, iv, &pdu[3..]), "{crypto}: {} bytes", pdu.len());
        }
    }
}

#[test]
fn opened_again_and_faults_seen() {
    let (key, iv) = KEYS[0];
    let how = ["--key", key, "--iv", iv];
    let pdus = pdus();
    let sealed = docsis(&[&["seal"], &how[..]].concat(), &pdus);
    assert_eq!(docsis(&[&["open"], &how[..]].concat(), &sealed), pdus);
    let bare = docsis(&[&["seal", "--crc", "off"], &how[..]].concat(), &pdus);
    assert_eq!(docsis(&[&["open", "--crc", "off"], &how[..]].concat(), &bare), pdus);

    let fails = |args: &[&str], bytes: &[u8], word: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bywash"));
        command.arg("docsis").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all((encode(bytes) + "\n").as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{said}");
        assert!(said.contains(word) && said.contains("line 1"), "{said}");
    };
    let mut damaged = sealed[0].clone();
    for at in [0, damaged.len() / 2, damaged.len() - 1] {
        damaged[at] ^= 0x10;
        fails(&[&["open"], &how[..]].concat(), &damaged, "CRC");
        damaged[at] ^= 0x10;
    }
    let longer = sealed.iter().find(|sealed| sealed.len() > 60).unwrap();
    fails(&["open", "--key", KEYS[1].0, "--iv", iv], longer, "CRC");
    fails(&["open", "--key", key, "--iv", KEYS[1].1], longer, "CRC");
    fails(&[&["open"], &how[..]].concat(), &[1, 2, 3], "3 bytes");
    fails(&["parse"], &[0, 0, 0], "cut off");
    fails(&["parse"], &[0xc0, 0, 0, 0, 0, 0], "frame control");
    fails(&["frame"], &vec![0; 65_536], "too long");
}

#[test]
fn frames_are_parsed_again() {
    let pdus: Vec<Vec<u8>> = [0usize, 1, 13, 64, 1518, 9000].iter().map(|len| vec![0x5a; *len]).collect();
    let frames = docsis(&["frame", "--said", "291", "--dsid", "5", "--sequence", "65535", "--priority", "3"], &pdus);
    let input: String = frames.iter().map(|frame| encode(frame) + "\n").collect();
    let parse = ["docsis", "parse", "--json"];
    let (out, good) = filter(Command::new(env!("CARGO_BIN_EXE_bywash")).args(parse), input.as_bytes());
    assert!(good);
    for ((line, pdu), sequence) in String::from_utf8(out).unwrap().lines().zip(&pdus).zip([65535, 0, 1, 2, 3, 4]) {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["privacy"]["said"], 291);
        assert_eq!(value["service"]["sequence"], sequence);
        assert_eq!((&value["service"]["dsid"], &value["service"]["priority"]), (&5.into(), &3.into()));
        assert_eq!(value["pdu"], encode(pdu));
    }
}

#[test]
fn tshark_decodes_every_frame() {
    require!(has_tool("tshark"));
    let dir = tempfile::tempdir().unwrap();
    let (key, iv) = KEYS[0];
    // Ethernet frames of an experimental type: random bytes behind a type such as IPv4 would be malformed.
    let pdus: Vec<Vec<u8>> = pdus().into_iter().filter(|pdu| pdu.len() >= 60 && pdu.len() <= 1518).take(1000).collect();
    let pdus: Vec<Vec<u8>> = pdus
        .into_iter()
        .map(|mut pdu| {
            pdu[12..14].copy_from_slice(&[0x88, 0xb5]);
            pdu
        })
        .collect();
    for (name, seal, frame) in [
        (
            "sealed",
            &["--crc", "on"][..],
            &["--said", "291", "--dsid", "74565", "--sequence", "7", "--priority", "3"][..],
        ),
        ("clear", &["--cipher", "off"], &["--said", "291", "--clear"]),
        ("bare", &["--cipher", "off"], &[]),
    ] {
        let sealed = docsis(&[&["seal", "--key", key, "--iv", iv], seal].concat(), &pdus);
        let path = dir.path().join(format!("{name}.pcap"));
        docsis(&[&["frame", "--pcap", path.to_str().unwrap()], frame].concat(), &sealed);
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(&path).args(["-T", "fields", "-e", "frame.protocols", "-e", "docsis.hcs.status"]);
        tshark.args(["-e", "docsis.ehdr.said", "-e", "docsis.ehdr.ds_dsid", "-e", "docsis.ehdr.ds_pkt_seq_num"]);
        tshark.args(["-e", "_ws.malformed", "-e", "_ws.expert.message", "-e", "docsis.ehdr.ds_traffic_pri"]);
        let (out, good) = filter(&mut tshark, b"");
        let out = String::from_utf8(out).unwrap();
        assert!(good, "tshark");
        assert_eq!(out.lines().count(), pdus.len());
        for (at, line) in out.lines().enumerate() {
            let fields: Vec<&str> = line.split('\t').collect();
            assert!(fields[0].starts_with("docsis"), "{name}: {line}");
            assert_eq!((fields[1], fields[5]), ("1", ""), "{name}, frame {at}: {line}");
            assert!(!line.contains("alformed"), "{name}: {line}");
            if name == "sealed" {
                let sequence = (7 + at).to_string();
                assert_eq!((fields[2], fields[3], fields[4], fields[7]), ("291", "74565", &*sequence, "3"), "{line}");
            }
        }
    }
}
