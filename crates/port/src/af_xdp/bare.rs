//! Minimal XDP programs, the baseline of benchmarks.

use super::Error;
use super::attach::{Attached, Hook};
use super::link::LinkInfo;
use super::load::{chain, loader};
use super::program::attach_link;
use aya::Ebpf;
use aya::maps::{DevMap, MapData, MapError};
use aya::programs::{ProgramError, Xdp};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../xdp/bare.bpf.o");

/// XDP program that does not look at frames, attached to one interface in native mode. Detached when dropped.
pub struct Bare {
    // Dropped first: detached before its map is closed.
    _link: Attached,
    _ebpf: Ebpf,
}

impl Bare {
    /// Attaches a program that sends every frame received by `from` out of `to`. Both are in the calling thread's
    /// network namespace.
    ///
    /// # Errors
    /// [`Error::Load`], [`Error::Map`] and [`Error::Attach`] with the kernel's reasons; errors of [`LinkInfo::query`].
    pub fn redirect(from: &str, to: &str) -> Result<Self, Error> {
        let out = LinkInfo::query(to)?.index;
        let failed = |reason: String| Error::Map { interface: from.into(), map: "to", reason };
        Self::attach(from, "redirect", |ebpf| {
            let map = ebpf.map_mut("to").ok_or_else(|| failed("not in the object".into()))?;
            let mut map: DevMap<&mut MapData> = map.try_into().map_err(|e: MapError| failed(chain(&e)))?;
            map.set(0, out, None, 0).map_err(|e| failed(chain(&e)))
        })
    }

    /// Attaches a program that drops every frame received by `interface`.
    ///
    /// # Errors
    /// Errors of [`Bare::redirect`] but for [`Error::Map`].
    pub fn drop(interface: &str) -> Result<Self, Error> {
        Self::attach(interface, "drop", |_| Ok(()))
    }

    fn attach(on: &str, name: &str, set_up: impl FnOnce(&mut Ebpf) -> Result<(), Error>) -> Result<Self, Error> {
        let link = LinkInfo::query(on)?;
        let load = |reason: String| Error::Load { interface: on.into(), reason };
        let mut ebpf = loader().load(OBJECT).map_err(|e| load(chain(&e)))?;
        set_up(&mut ebpf)?;
        let xdp: &mut Xdp = ebpf
            .program_mut(name)
            .ok_or_else(|| load(format!("the object has no program `{name}`")))?
            .try_into()
            .map_err(|e: ProgramError| load(chain(&e)))?;
        xdp.load().map_err(|e| load(chain(&e)))?;
        let attached = attach_link(xdp, &link, Hook::XdpDriver);
        let attached = attached.map_err(|reason| Error::Attach { interface: on.into(), reason })?;
        Ok(Self { _link: attached, _ebpf: ebpf })
    }
}
