//! Sealing of frames: with libipsec-mb, many at a time, where it is installed, otherwise one by one.

use crate::cipher::{BLOCK, Tek};
use crate::protect::{self, CLEAR, Protection};
use bywash_frame::{Arena, Frame};
use bywash_ipsec_mb::{Job, Library, Manager, Unavailable};
use std::sync::Arc;

/// Implementation that encrypts PDUs and computes their CRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Crypto {
    /// libipsec-mb if it is installed, else portable code.
    #[default]
    Auto,
    /// libipsec-mb; an error if it is not installed.
    IpsecMb,
    /// Portable code.
    Portable,
}

/// Key and initialization vector from the key exchange.
pub type KeyPair = ([u8; BLOCK], [u8; BLOCK]);

/// Error of [`Sealer::new`].
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// libipsec-mb is required but not available.
    #[error("crypto `ipsec-mb` is not available: {0}; install libipsec-mb1, or set crypto to `auto` or `portable`")]
    Unavailable(#[from] Unavailable),
    /// Output of libipsec-mb that differs from that of the portable code.
    #[error("{0} is not used: its output differs from that of the portable code; set crypto to `portable`")]
    Differs(String),
}

/// Loads libipsec-mb if it is installed, for sealers that are created where no files can be opened, as in a sandbox.
pub fn load_library() {
    // A sealer reports why there is none.
    let _ = Library::load();
}

/// Sealer of frames that keeps their order: with libipsec-mb, a frame may be returned only after more frames were
/// submitted.
///
/// # Thread-safety
/// Used by one worker.
pub struct Sealer {
    how: Protection,
    arena: Arc<Arena>,
    teks: Vec<Tek>,
    library: Option<Manager>,
    note: String,
}

impl Sealer {
    /// Creates a sealer for frames of `arena`; keys are referred to by their index in `keys`.
    pub fn new(crypto: Crypto, how: Protection, arena: &Arc<Arena>, keys: &[KeyPair]) -> Result<Self, SealError> {
        let (library, note) = match crypto {
            Crypto::Portable => (None, "portable".into()),
            _ if !how.cipher => (None, "portable: encryption is off".into()),
            Crypto::IpsecMb => Self::library(arena, keys).map(|(manager, note)| (Some(manager), note))?,
            Crypto::Auto => match Self::library(arena, keys) {
                Ok((manager, note)) => (Some(manager), note),
                Err(SealError::Unavailable(why)) => {
                    (None, format!("portable: {why}; install libipsec-mb1 for a higher rate"))
                }
                Err(SealError::Differs(name)) => {
                    (None, format!("portable: the output of {name} differs from that of the portable code"))
                }
            },
        };
        let teks = keys.iter().map(|(key, iv)| Tek::new(key, iv)).collect();
        Ok(Self { how, arena: arena.clone(), teks, library, note })
    }

    /// Loads the library and checks that its output equals that of the portable code.
    fn library(arena: &Arc<Arena>, keys: &[KeyPair]) -> Result<(Manager, String), SealError> {
        let library = Library::load()?;
        let name = format!("libipsec-mb {}", library.version());
        let trial = ([0x5a; BLOCK], [0xa5; BLOCK]);
        let mut manager = Manager::new(&library, arena, &[trial])?;
        let tek = Tek::new(&trial.0, &trial.1);
        for (len, crc) in [(14, true), (60, true), (61, false), (1518, true)] {
            let how = Protection { crc, ..Protection::default() };
            let mut ours: Vec<u8> = (0..len + how.added()).map(|i| i as u8).collect();
            let mut theirs = ours.clone();
            protect::seal(&tek, how, &mut ours);
            if !manager.seal_bytes(&mut theirs, 0, CLEAR, crc) || ours != theirs {
                return Err(SealError::Differs(name));
            }
        }
        Ok((Manager::new(&library, arena, keys)?, name))
    }

    /// Returns the implementation used, with the reason if it is not libipsec-mb.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Returns whether libipsec-mb is used.
    pub fn fast(&self) -> bool {
        self.library.is_some()
    }

    /// Returns the number of frames held.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.library.as_ref().map_or(0, Manager::waiting)
    }

    /// Returns the number of frames that libipsec-mb rejected: a bug if not zero.
    pub fn failed(&self) -> u64 {
        self.library.as_ref().map_or(0, Manager::failed)
    }

    /// Seals `frame` with key `key`. The PDU begins at `start` and, with a CRC, ends four bytes before the end of the
    /// frame. Finished frames go to `out`, in the order they were submitted.
    ///
    /// # Panics
    /// Panics if there is no such key.
    #[inline]
    pub fn seal(&mut self, frame: Frame, key: usize, start: usize, mut out: impl FnMut(Frame)) {
        let Some(library) = &mut self.library else { return out(self.by_hand(frame, key, start)) };
        let job = Job { start, clear: self.how.offset, crc: self.how.crc };
        match library.seal(frame, key, job) {
            Ok(done) => Self::done(library, done, out),
            Err(frame) => {
                // The library does not support this frame (for example a runt). Earlier frames are returned first.
                self.flush(&mut out);
                out(self.by_hand(frame, key, start));
            }
        }
    }

    /// Passes `frame` on unsealed, behind the frames submitted before.
    #[inline]
    pub fn pass(&mut self, frame: Frame, mut out: impl FnMut(Frame)) {
        let Some(library) = &mut self.library else { return out(frame) };
        match library.pass(frame) {
            Ok(done) => Self::done(library, done, out),
            Err(frame) => {
                self.flush(&mut out);
                out(frame);
            }
        }
    }

    /// Passes on the returned frame and the unsealed frames behind it.
    #[inline]
    fn done(library: &mut Manager, first: Option<Frame>, mut out: impl FnMut(Frame)) {
        let mut next = first;
        while let Some(frame) = next {
            out(frame);
            next = library.passed();
        }
    }

    /// Completes and returns all frames held.
    #[inline]
    pub fn flush(&mut self, mut out: impl FnMut(Frame)) {
        let Some(library) = &mut self.library else { return };
        while let Some(frame) = library.flush() {
            out(frame);
        }
    }

    fn by_hand(&self, mut frame: Frame, key: usize, start: usize) -> Frame {
        let bytes = &mut self.arena.data_mut(&mut frame)[start..];
        protect::seal(&self.teks[key], self.how, bytes);
        frame
    }

    /// Replaces key `key`, after sealing all frames held, which go to `out`.
    ///
    /// # Panics
    /// Panics if there is no such key.
    pub fn set_key(&mut self, key: usize, pair: &KeyPair, out: impl FnMut(Frame)) {
        self.flush(out);
        if let Some(library) = &mut self.library {
            library.set_key(key, pair);
        }
        self.teks[key] = Tek::new(&pair.0, &pair.1);
    }

    /// Seals one PDU in `bytes` at once.
    ///
    /// # Panics
    /// Panics if there is no such key, or if frames are held.
    pub fn seal_bytes(&mut self, bytes: &mut [u8], key: usize) {
        let Protection { crc, offset, .. } = self.how;
        let by_library = self.library.as_mut().is_some_and(|l| l.seal_bytes(bytes, key, offset, crc));
        if !by_library {
            protect::seal(&self.teks[key], self.how, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc::CRC_LEN;
    use bywash_frame::{ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
    use proptest::prelude::*;

    /// Seals PDUs of these lengths and keys as frames, with the sealer and with `protect::seal`, and compares.
    fn both(crypto: Crypto, how: Protection, lens: &[(usize, usize)]) -> Result<(), String> {
        let keys: Vec<KeyPair> = (0..5u8).map(|k| ([k; 16], [!k; 16])).collect();
        let arena = Arena::new(ArenaConfig { cells: 1024, ..Default::default() }).unwrap();
        let pools = PoolSet::new(arena.clone(), &[PoolConfig::stack("test", 1024)]).unwrap();
        let mut bufs = Buffers::attach(&pools, 0);
        let mut sealer = Sealer::new(crypto, how, &arena, &keys).unwrap();
        let (mut expected, mut got) = (vec![], vec![]);
        let mut done = vec![];
        for (i, &(len, key)) in lens.iter().enumerate() {
            let mut frame = bufs.alloc_one().unwrap();
            let pdu: Vec<u8> = (0..len).map(|b| (b * 31 + i * 7) as u8).collect();
            let bytes = [&b"head"[..], &pdu, &[0; CRC_LEN][..how.added()]].concat();
            assert!(arena.write(&mut frame, &bytes));
            let mut by_hand = bytes;
            protect::seal(&Tek::new(&keys[key].0, &keys[key].1), how, &mut by_hand[4..]);
            expected.push(by_hand);
            sealer.seal(frame, key, 4, |f| done.push(f));
            if i % 97 == 96 {
                sealer.flush(|f| done.push(f));
                assert_eq!(sealer.waiting(), 0);
            }
        }
        sealer.flush(|f| done.push(f));
        assert_eq!(sealer.failed(), 0);
        for frame in done {
            got.push(arena.data(&frame).to_vec());
            bufs.free_one(frame);
        }
        let mut all = Batch::new();
        assert_eq!(bufs.alloc(&mut all, 64), 64);
        bufs.free(&mut all);
        match expected.iter().zip(&got).position(|(a, b)| a != b) {
            Some(at) => Err(format!("PDU {at}: {:?} with {how:?}", lens[at])),
            None if got.len() != expected.len() => Err(format!("{} of {}", got.len(), expected.len())),
            None => Ok(()),
        }
    }

    fn with_library() -> bool {
        match Library::load() {
            Ok(_) => true,
            Err(why) => {
                println!("SKIP: {why}");
                false
            }
        }
    }

    const HOWS: [Protection; 5] = [
        Protection { crc: true, cipher: true, offset: CLEAR },
        Protection { crc: false, cipher: true, offset: CLEAR },
        Protection { crc: true, cipher: false, offset: CLEAR },
        Protection { crc: true, cipher: true, offset: 14 },
        Protection { crc: false, cipher: true, offset: 0 },
    ];

    #[test]
    fn every_length_in_order_by_either() {
        let lens: Vec<(usize, usize)> = (0..900).map(|i| (i * 1700 / 900, i % 5)).collect();
        for how in HOWS {
            both(Crypto::Portable, how, &lens).unwrap();
            if with_library() {
                both(Crypto::IpsecMb, how, &lens).unwrap();
            }
        }
    }

    #[test]
    fn every_short_length_by_the_library() {
        if !with_library() {
            return;
        }
        let lens: Vec<(usize, usize)> = (0..1000).map(|i| (i % 100, i % 5)).collect();
        HOWS.iter().for_each(|how| both(Crypto::IpsecMb, *how, &lens).unwrap());
    }

    /// PDUs up to the size of a jumbo frame, which a cell of 2 KiB cannot hold: both implementations seal them alike,
    /// and they can be opened again.
    #[test]
    fn pdus_of_0_to_9000_bytes() {
        let arena = Arena::new(ArenaConfig { cells: 1, ..Default::default() }).unwrap();
        let key: KeyPair = ([0x11; 16], [0x22; 16]);
        let tek = Tek::new(&key.0, &key.1);
        let lens = (0..40).chain((40..8990).step_by(331)).chain(8990..=9000);
        for how in HOWS {
            let mut sealers = vec![Sealer::new(Crypto::Portable, how, &arena, &[key]).unwrap()];
            if with_library() {
                sealers.push(Sealer::new(Crypto::IpsecMb, how, &arena, &[key]).unwrap_or_else(|why| panic!("{why}")));
            }
            for len in lens.clone() {
                let pdu: Vec<u8> = (0..len).map(|i| (i * 73 + len) as u8).collect();
                let sealed: Vec<Vec<u8>> = sealers
                    .iter_mut()
                    .map(|sealer| {
                        let mut bytes = [&pdu[..], &[0; CRC_LEN][..how.added()]].concat();
                        sealer.seal_bytes(&mut bytes, 0);
                        bytes
                    })
                    .collect();
                assert!(sealed.iter().all(|bytes| *bytes == sealed[0]), "{len} bytes, {how:?}");
                let mut opened = sealed[0].clone();
                assert_eq!(protect::open(&tek, how, &mut opened), Ok(len), "{how:?}");
                assert!(opened[..len] == pdu);
                if how.crc && len > 0 {
                    let mut damaged = sealed[0].clone();
                    damaged[len / 2] ^= 1;
                    assert!(protect::open(&tek, how, &mut damaged).is_err(), "{len} bytes, {how:?}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..Default::default() })]
        #[test]
        fn any_mix_by_the_library(lens in proptest::collection::vec((0..1700usize, 0..5usize), 0..300), how in 0..5usize) {
            if with_library() {
                both(Crypto::IpsecMb, HOWS[how], &lens).map_err(TestCaseError::fail)?;
            }
        }
    }
}
