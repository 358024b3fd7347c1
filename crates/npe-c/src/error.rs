//! Reason of the last failure.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the reason of a failure of `function` for [`net_device_error`].
pub fn keep(function: &str, why: impl std::fmt::Display) {
    // A path may have contained a zero byte no more than a message of this program does.
    let text = CString::new(format!("{function}: {why}")).unwrap_or_default();
    LAST.with(|last| last.replace(text));
}

/// Returns the reason of this thread's last failure of a function that says so; an empty text if there was none. The
/// text stays until the next such failure on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn net_device_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}
