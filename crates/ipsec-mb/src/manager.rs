//! One thread's manager, which holds the frames that the library works on.

use crate::abi::{
    AUTH_DOCSIS_CRC32, AUTH_NULL, CIPHER_DOCSIS_SEC_BPI, DIR_ENCRYPT, Mgr, ORDER_HASH_CIPHER, RawJob, STATUS_COMPLETED,
};
use crate::{Library, Unavailable};
use bywash_frame::{Arena, Frame};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

/// Size of the CRC in bytes.
const CRC: usize = 4;
/// Bytes at the start of a PDU that stay unencrypted when the library computes the CRC, too: it supports no other
/// number.
const CLEAR: usize = 12;
/// Minimum size of a PDU with a CRC in bytes: an Ethernet header.
const SHORTEST: usize = 14;
/// Maximum size of a frame in bytes: the library uses 16-bit lengths.
const LONGEST: usize = 65_535;
/// Maximum number of frames held (`IMB_MAX_JOBS` is 128 in the oldest version, 256 since).
const QUEUE: usize = 256;

/// Expanded AES-128 key with its initialization vector.
#[repr(C, align(16))]
pub struct Key {
    enc: [u8; 176],
    dec: [u8; 176],
    iv: [u8; 16],
}

/// Description of the processing of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Offset of the PDU in the frame in bytes.
    pub start: usize,
    /// Bytes at the start of the PDU that stay unencrypted.
    pub clear: usize,
    /// Set if the frame's last four bytes are room for the PDU's CRC, to be computed before encryption.
    pub crc: bool,
}

struct Waiting {
    frame: Frame,
    /// Set if the library works on the frame. If not, it only keeps its place in the order.
    job: bool,
}

/// One thread's handle on the library: encrypts several frames at a time.
///
/// # Thread-safety
/// Used by one thread at a time. Managers share no state.
pub struct Manager {
    library: Arc<Library>,
    mgr: NonNull<Mgr>,
    arena: Arc<Arena>,
    keys: Box<[Key]>,
    /// Frames that the library works on and frames that wait behind them, oldest first.
    waiting: VecDeque<Waiting>,
    /// Buffer for copies of the CRCs, which the library also writes after the PDUs.
    tag: Box<[u8; 16]>,
    failed: u64,
}

// SAFETY: the manager's state is one allocation that only this handle reaches; the library keeps none per thread.
unsafe impl Send for Manager {}

impl Manager {
    /// Creates a manager for frames of `arena`, with a key for each of `keys` (key, initialization vector). Errors with
    /// [`Unavailable::Start`] if the library cannot start.
    pub fn new(library: &Arc<Library>, arena: &Arc<Arena>, keys: &[([u8; 16], [u8; 16])]) -> Result<Self, Unavailable> {
        // SAFETY: flags 0 select no optional behaviour.
        let mgr = NonNull::new(unsafe { (library.alloc)(0) }).ok_or(Unavailable::Start)?;
        let mut arch = 0;
        // SAFETY: the library has just allocated `mgr`.
        unsafe { (library.init)(mgr.as_ptr(), &raw mut arch) };
        let mut manager = Self {
            library: library.clone(),
            mgr,
            arena: arena.clone(),
            keys: Box::new([]),
            waiting: VecDeque::with_capacity(QUEUE + 1),
            tag: Box::new([0; 16]),
            failed: 0,
        };
        if arch == 0 {
            return Err(Unavailable::Start);
        }
        manager.keys = keys.iter().map(|(key, iv)| manager.expand(key, iv)).collect();
        Ok(manager)
    }

    fn expand(&self, key: &[u8; 16], iv: &[u8; 16]) -> Key {
        let mut expanded = Key { enc: [0; 176], dec: [0; 176], iv: *iv };
        // SAFETY: the manager is initialised; the function reads 16 bytes and writes 11 round keys of 16 bytes each to
        // either schedule, both aligned to 16.
        unsafe {
            let expand = self.mgr.as_ref().keyexp_128;
            expand(key.as_ptr().cast(), (&raw mut expanded.enc).cast(), (&raw mut expanded.dec).cast());
        }
        expanded
    }

    /// Replaces key `key`.
    ///
    /// # Panics
    /// Panics if there is no such key, or if the manager holds frames, whose jobs may refer to it.
    pub fn set_key(&mut self, key: usize, (bytes, iv): &([u8; 16], [u8; 16])) {
        assert!(self.waiting.is_empty(), "frames are waiting");
        self.keys[key] = self.expand(bytes, iv);
    }

    /// Returns the number of frames held.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of frames that the library rejected, which are filled with zeros: a bug if not zero.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// Submits `frame` for encryption with key `key` and returns the oldest frame if it is done. Errors with the frame
    /// if the library cannot process it: the PDU is too short or too long, the key is unknown, or the queue is full.
    #[inline]
    pub fn seal(&mut self, frame: Frame, key: usize, job: Job) -> Result<Option<Frame>, Frame> {
        let (at, len) = (frame.addr() as usize, frame.len());
        let added = if job.crc { CRC } else { 0 };
        let Some(pdu) = len.checked_sub(job.start + added) else { return Err(frame) };
        let fits = if job.crc { job.clear == CLEAR && pdu >= SHORTEST } else { pdu > job.clear };
        if !fits || len > LONGEST || key >= self.keys.len() || self.waiting.len() >= QUEUE {
            return Err(frame);
        }
        assert!(at + len <= self.arena.size(), "frame of another arena");
        let bytes = self.arena.base().wrapping_add(at + job.start);
        // SAFETY: the frame's bytes lie in the arena, which is kept as long as this manager, and the manager owns the
        // frame until the library is done with it. Key and tag outlive the job as well.
        let done = unsafe { self.submit(bytes, pdu, key, job) };
        self.waiting.push_back(Waiting { frame, job: true });
        Ok(self.finish(done))
    }

    /// Queues `frame` unprocessed behind earlier frames, or returns it at once if there are none. Errors with the frame
    /// if the queue is full.
    #[inline]
    pub fn pass(&mut self, frame: Frame) -> Result<Option<Frame>, Frame> {
        if self.waiting.is_empty() {
            return Ok(Some(frame));
        }
        if self.waiting.len() >= QUEUE {
            return Err(frame);
        }
        self.waiting.push_back(Waiting { frame, job: false });
        Ok(None)
    }

    /// Returns the oldest frame if it was only queued by [`Manager::pass`]. To be called after each frame that was
    /// returned.
    #[inline]
    pub fn passed(&mut self) -> Option<Frame> {
        if self.waiting.front().is_some_and(|waiting| !waiting.job) { self.oldest() } else { None }
    }

    #[inline]
    fn oldest(&mut self) -> Option<Frame> {
        self.waiting.pop_front().map(|waiting| waiting.frame)
    }

    /// Returns the oldest frame, completing its job if necessary. `None` if there are no frames.
    #[inline]
    pub fn flush(&mut self) -> Option<Frame> {
        if self.waiting.front().is_none_or(|oldest| !oldest.job) {
            return self.oldest();
        }
        // SAFETY: the manager is initialised.
        let done = unsafe { (self.mgr.as_ref().flush_job)(self.mgr.as_ptr()) };
        self.finish(done)
    }

    /// Returns the frame of a job that the library returned. Jobs are returned in submission order.
    #[inline]
    fn finish(&mut self, job: *mut RawJob) -> Option<Frame> {
        if job.is_null() {
            return None;
        }
        // SAFETY: a job that the library returned stays valid until the next call.
        let completed = unsafe { (*job).status } == STATUS_COMPLETED;
        // The caller has drained frames queued by `pass`, so the oldest frame is a job. If not, the oldest job's frame
        // is found all the same: the library may still write to any other.
        let at = self.waiting.iter().position(|waiting| waiting.job)?;
        let mut frame = self.waiting.remove(at).map(|waiting| waiting.frame)?;
        if !completed {
            self.failed += 1;
            // Nothing leaves in clear.
            self.arena.data_mut(&mut frame).fill(0);
        }
        Some(frame)
    }

    /// Submits a job for the PDU of `pdu` bytes at `bytes`, with the key of this index, and returns the oldest job if
    /// that is complete.
    ///
    /// # Safety
    /// `bytes` points to `pdu` bytes, and to four more if `job.crc` is set, which nobody else accesses until the
    /// library returns the job; `job.clear` is at most their number. The library supports the job, which it may not
    /// check (see [`Manager::seal`]).
    #[inline]
    unsafe fn submit(&mut self, bytes: *mut u8, pdu: usize, key: usize, job: Job) -> *mut RawJob {
        let key = &raw const self.keys[key];
        let mgr = self.mgr.as_ptr();
        // SAFETY: the manager is initialised. The job from `get_next_job` may be filled until it is submitted. What it
        // points to stays valid until it is returned: the PDU by contract, keys and tag because the manager owns them.
        unsafe {
            let raw = ((*mgr).get_next_job)(mgr);
            let added = if job.crc { CRC } else { 0 };
            (*raw).enc_keys = (&raw const (*key).enc).cast();
            (*raw).dec_keys = (&raw const (*key).dec).cast();
            (*raw).key_len = 16;
            (*raw).src = bytes;
            (*raw).dst = bytes.add(job.clear);
            (*raw).cipher_start = job.clear as u64;
            (*raw).cipher_len = (pdu + added - job.clear) as u64;
            (*raw).hash_start = 0;
            (*raw).hash_len = pdu as u64;
            (*raw).iv = (&raw const (*key).iv).cast();
            (*raw).iv_len = 16;
            (*raw).tag = self.tag.as_mut_ptr();
            (*raw).tag_len = CRC as u64;
            (*raw).cipher_mode = CIPHER_DOCSIS_SEC_BPI;
            (*raw).direction = DIR_ENCRYPT;
            (*raw).hash_alg = if job.crc { AUTH_DOCSIS_CRC32 } else { AUTH_NULL };
            (*raw).chain_order = ORDER_HASH_CIPHER;
            if cfg!(debug_assertions) { ((*mgr).submit_job)(mgr) } else { ((*mgr).submit_job_nocheck)(mgr) }
        }
    }

    /// Encrypts `bytes` in place and at once, for single PDUs. Returns false, leaving them unchanged, if the library
    /// cannot process them.
    ///
    /// # Panics
    /// Panics if the manager holds frames.
    pub fn seal_bytes(&mut self, bytes: &mut [u8], key: usize, clear: usize, crc: bool) -> bool {
        assert!(self.waiting.is_empty(), "frames are waiting");
        let added = if crc { CRC } else { 0 };
        let Some(pdu) = bytes.len().checked_sub(added) else { return false };
        let fits = if crc { clear == CLEAR && pdu >= SHORTEST } else { pdu > clear };
        if !fits || bytes.len() > LONGEST || key >= self.keys.len() {
            return false;
        }
        // The library loads whole vectors, so the copy has room behind the data.
        let mut room = vec![0; bytes.len() + 64];
        room[..bytes.len()].copy_from_slice(bytes);
        // SAFETY: `room` outlives the job: with no other one waiting, flushing finishes it.
        let sealed = unsafe {
            let done = self.submit(room.as_mut_ptr(), pdu, key, Job { start: 0, clear, crc });
            let done = if done.is_null() { (self.mgr.as_ref().flush_job)(self.mgr.as_ptr()) } else { done };
            !done.is_null() && (*done).status == STATUS_COMPLETED
        };
        if sealed {
            bytes.copy_from_slice(&room[..bytes.len()]);
        }
        sealed
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // SAFETY: allocated by this library and not used any more. Unfinished jobs are dropped: the library works only
        // while it is called.
        unsafe { (self.library.free)(self.mgr.as_ptr()) };
    }
}
