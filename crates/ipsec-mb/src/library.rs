//! Loading of the library.

use crate::abi::{AllocMgr, FreeMgr, InitMgr, Version, VersionText};
use std::ffi::{CStr, c_void};
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

/// Versions whose data structures are known here, as returned by `imb_get_version`: 1.2.0 to 2.0.255.
pub const VERSIONS: RangeInclusive<u32> = 0x01_02_00..=0x02_00_ff;

/// Names under which the library is installed, newest first.
const NAMES: [&CStr; 2] = [c"libIPSec_MB.so.2", c"libIPSec_MB.so.1"];

/// Reason for not using the library.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unavailable {
    /// Not installed, or rejected by the dynamic loader.
    #[error("libipsec-mb is not installed ({0})")]
    Missing(String),
    /// A function is missing.
    #[error("libipsec-mb has no `{0}`")]
    Symbol(&'static str),
    /// Unsupported version.
    #[error("libipsec-mb {0} is not supported: must be version 1.2 to 2.0")]
    Version(String),
    /// The library cannot allocate a manager, or has no implementation for this processor.
    #[error("libipsec-mb cannot start on this processor")]
    Start,
}

/// Loaded library. It is never unloaded.
pub struct Library {
    pub(crate) alloc: AllocMgr,
    pub(crate) free: FreeMgr,
    pub(crate) init: InitMgr,
    version: String,
}

impl Library {
    /// Loads the library once; later calls return the same result.
    pub fn load() -> Result<Arc<Self>, Unavailable> {
        static LIBRARY: OnceLock<Result<Arc<Library>, Unavailable>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::open().map(Arc::new)).clone()
    }

    /// Returns the library's version string.
    pub fn version(&self) -> &str {
        &self.version
    }

    fn open() -> Result<Self, Unavailable> {
        let mut why = String::new();
        for name in NAMES {
            // SAFETY: a NUL-terminated name. Loading runs the library's initializers, as intended.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Self::bind(handle);
            }
            // SAFETY: dlerror returns a string of this thread's, valid until its next dl call, or null.
            let text = unsafe { libc::dlerror() };
            if !text.is_null() {
                // SAFETY: not null, and no dl call was made since.
                why = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
            }
        }
        Err(Unavailable::Missing(why))
    }

    fn bind(handle: *mut c_void) -> Result<Self, Unavailable> {
        let find = |name: &'static CStr| {
            // SAFETY: a live handle, never closed, and a NUL-terminated name.
            let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if at.is_null() { Err(Unavailable::Symbol(name.to_str().unwrap_or("?"))) } else { Ok(at) }
        };
        let (version, text) = (find(c"imb_get_version")?, find(c"imb_get_version_str")?);
        // SAFETY: the functions of these names have these types in every version (intel-ipsec-mb.h); both take no
        // arguments, and the text is a constant of the library.
        let (number, version) = unsafe {
            let number = std::mem::transmute::<*mut c_void, Version>(version)();
            let text = std::mem::transmute::<*mut c_void, VersionText>(text)();
            (number, CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        if !VERSIONS.contains(&number) {
            return Err(Unavailable::Version(version));
        }
        let (alloc, free, init) = (find(c"alloc_mb_mgr")?, find(c"free_mb_mgr")?, find(c"init_mb_mgr_auto")?);
        // SAFETY: the functions of these names have these types in the versions admitted above (intel-ipsec-mb.h).
        unsafe {
            Ok(Self {
                alloc: std::mem::transmute::<*mut c_void, AllocMgr>(alloc),
                free: std::mem::transmute::<*mut c_void, FreeMgr>(free),
                init: std::mem::transmute::<*mut c_void, InitMgr>(init),
                version,
            })
        }
    }
}
