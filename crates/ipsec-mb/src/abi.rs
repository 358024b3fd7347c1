//! The part of the library's interface that is used, as in intel-ipsec-mb.h. It is the same in versions 1.2 to 2.0:
//! later versions only append to both structures.

use std::ffi::{c_char, c_int, c_void};

/// Leading part of `struct IMB_MGR`. The library allocates it.
#[repr(C)]
pub struct Mgr {
    flags: u64,
    features: u64,
    reserved: [u64; 5],
    used_arch: u32,
    errno: c_int,
    pub get_next_job: unsafe extern "C" fn(*mut Mgr) -> *mut RawJob,
    pub submit_job: unsafe extern "C" fn(*mut Mgr) -> *mut RawJob,
    pub submit_job_nocheck: unsafe extern "C" fn(*mut Mgr) -> *mut RawJob,
    get_completed_job: unsafe extern "C" fn(*mut Mgr) -> *mut RawJob,
    pub flush_job: unsafe extern "C" fn(*mut Mgr) -> *mut RawJob,
    queue_size: unsafe extern "C" fn(*mut Mgr) -> u32,
    pub keyexp_128: unsafe extern "C" fn(*const c_void, *mut c_void, *mut c_void),
}

/// Leading part of `struct IMB_JOB`. The library allocates it.
#[repr(C)]
pub struct RawJob {
    pub enc_keys: *const c_void,
    pub dec_keys: *const c_void,
    pub key_len: u64,
    pub src: *const u8,
    pub dst: *mut u8,
    pub cipher_start: u64,
    pub cipher_len: u64,
    pub hash_start: u64,
    pub hash_len: u64,
    pub iv: *const u8,
    pub iv_len: u64,
    pub tag: *mut u8,
    pub tag_len: u64,
    hash_fields: [u64; 3],
    pub status: u32,
    pub cipher_mode: u32,
    pub direction: u32,
    pub hash_alg: u32,
    pub chain_order: u32,
}

pub const CIPHER_DOCSIS_SEC_BPI: u32 = 4;
pub const DIR_ENCRYPT: u32 = 1;
pub const AUTH_NULL: u32 = 8;
pub const AUTH_DOCSIS_CRC32: u32 = 21;
pub const ORDER_HASH_CIPHER: u32 = 2;
pub const STATUS_COMPLETED: u32 = 3;

pub type AllocMgr = unsafe extern "C" fn(u64) -> *mut Mgr;
pub type FreeMgr = unsafe extern "C" fn(*mut Mgr);
pub type InitMgr = unsafe extern "C" fn(*mut Mgr, *mut u32);
pub type Version = unsafe extern "C" fn() -> u32;
pub type VersionText = unsafe extern "C" fn() -> *const c_char;

// Offsets in the headers of versions 1.2, 1.3, 1.4, 1.5, 2.0 and 2.0.2.
const _: () = {
    assert!(std::mem::offset_of!(Mgr, get_next_job) == 64);
    assert!(std::mem::offset_of!(Mgr, flush_job) == 96);
    assert!(std::mem::offset_of!(Mgr, keyexp_128) == 112);
    assert!(std::mem::offset_of!(RawJob, iv) == 72);
    assert!(std::mem::offset_of!(RawJob, tag) == 88);
    assert!(std::mem::offset_of!(RawJob, status) == 128);
    assert!(std::mem::offset_of!(RawJob, chain_order) == 144);
};
