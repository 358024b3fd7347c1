//! Ports of a device.

use crate::{NetDevice, error};
use bywash_port::pcap::{PcapPort, PcapRecorder, PcapSource};
use bywash_port::{Port, TapConfig, TapPort};
use libc::c_int;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Adds a port that receives the packets of the capture file `file` and records those that it sends to the file
/// `record`. Either may be NULL: nothing is received, or what is sent is discarded. Returns the port's number, or -1 on
/// failure, with the reason in net_device_error().
///
/// # Safety
/// `device` is from create_net_device() and has not been destroyed, and no other thread uses it yet. The paths end with
/// a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn add_pcap_port(device: *mut NetDevice, file: *const c_char, record: *const c_char) -> c_int {
    // SAFETY: the caller vouches for the paths.
    let (file, record) = unsafe { (text(file), text(record)) };
    let open = || -> Result<Box<dyn Port>, String> {
        let source = file.map(|path| PcapSource::load(path_of(path))).transpose().map_err(|why| why.to_string())?;
        let cannot = |path: &Path, why| format!("cannot create `{}`: {why}", path.display());
        let record = record.map(path_of);
        let sink = record.map(|path| PcapRecorder::create(path).map_err(|why| cannot(path, why))).transpose()?;
        Ok(Box::new(PcapPort::new(source, sink)))
    };
    // SAFETY: the caller vouches for the device.
    unsafe { add(device, "add_pcap_port", open) }
}

/// Adds a port that creates the TAP interface `name` and receives what the kernel sends by it (needs CAP_NET_ADMIN).
/// The interface goes away with the device. Returns the port's number, or -1 on failure, with the reason in
/// net_device_error().
///
/// # Safety
/// `device` is from create_net_device() and has not been destroyed, and no other thread uses it yet. `name` ends with a
/// zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn add_tap_port(device: *mut NetDevice, name: *const c_char) -> c_int {
    // SAFETY: the caller vouches for the name.
    let name = unsafe { text(name) };
    let open = || -> Result<Box<dyn Port>, String> {
        let name = name.ok_or("no name of an interface")?.to_string_lossy().into_owned();
        let config = TapConfig { name, up: true, ..TapConfig::default() };
        Ok(Box::new(TapPort::create(&config).map_err(|why| why.to_string())?))
    };
    // SAFETY: the caller vouches for the device.
    unsafe { add(device, "add_tap_port", open) }
}

/// Adds the port that `open` returns.
///
/// # Safety
/// `device` is null or valid, and not used elsewhere.
unsafe fn add(device: *mut NetDevice, function: &str, open: impl FnOnce() -> Result<Box<dyn Port>, String>) -> c_int {
    // SAFETY: the caller vouches for it.
    let port = match unsafe { device.as_mut() } {
        None => Err("no device".into()),
        Some(device) if device.started.is_some() => Err("the device has been started: add its ports before".into()),
        Some(device) => open().map(|port| {
            device.ports.push(port);
            device.ports.len() - 1
        }),
    };
    match port {
        Ok(number) => number as c_int,
        Err(why) => {
            error::keep(function, why);
            -1
        }
    }
}

/// # Safety
/// `text` is null, or ends with a zero byte and stays as it is.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller vouches for it.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}

fn path_of(text: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(text.to_bytes()))
}
