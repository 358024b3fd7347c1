//! Opens AF_XDP ports: the program on the interface, the settings it needs, and the sockets.

use super::opened::{End, Opened};
use super::xdp::Xdp;
use super::{OfQueue, forwards, interface, queues};
use anyhow::Context as _;
use bywash_config::{Checksum, Level, PortConfig, XdpMode};
use bywash_port::Port;
use bywash_port::af_xdp::{
    AfXdpPort, Attachment, Below, Error, Features, Journal, LinkInfo, Polling, Program, Promiscuous, SocketConfig,
    TAKE_TAGS_OFF, Umem, XdpAttach, XdpConfig, XdpGate, ZeroCopy, max_frame,
};
use bywash_router::xdp::XdpTableSink;
use std::io::ErrorKind;
use std::sync::Arc;

/// Attaches the program to an interface, or takes over the one attached by `from`, and sets up everything except the
/// sockets.
pub fn attach(
    (id, port): (usize, &PortConfig),
    umem: &Arc<Umem>,
    (shared, raw): (&XdpTableSink, bool),
    journal: &mut Journal,
    from: Option<Attachment>,
) -> anyhow::Result<Opened> {
    let af_xdp = port.af_xdp.clone().unwrap_or_default();
    let interface = interface(port)?;
    let link = LinkInfo::query(interface)?;
    let below = Below::of(&link);
    let driver = below.driver();
    let how = match af_xdp.xdp {
        // A native program on a veth takes segmentation offload from its peer: TCP sent there runs at less than half
        // the rate (docs/decisions/af_xdp.md). It pays off for packet rates, and then has to be configured. Modes other
        // than router cannot leave frames too long for a cell to the kernel: there the peer must segment.
        XdpMode::Auto if driver == "veth" && !raw => XdpAttach::Generic,
        XdpMode::Auto => XdpAttach::Auto,
        XdpMode::Native => XdpAttach::Native,
        XdpMode::Generic => XdpAttach::Generic,
    };
    let user = af_xdp.user_program();
    let mut program = match from {
        Some(from) => {
            let other = how != XdpAttach::Auto && from.native != (how == XdpAttach::Native);
            anyhow::ensure!(
                !other || af_xdp.xdp == XdpMode::Auto,
                "{interface} cannot be taken over: its XDP program is {}; restart bywash",
                if from.native { "native" } else { "not native" }
            );
            Program::succeed(&shared.program, id as u16, &link, from, user.as_ref())?
        }
        None => {
            let program = Program::attach_to(&shared.program, id as u16, &link, how, user.as_ref())?;
            if let Some((id, mode)) = link.program {
                let left = if mode == "generic" { "; the kernel forwards the frames that it copies" } else { "" };
                tracing::warn!("{interface}: another XDP program, id {id} ({mode}), runs first and stays{left}");
            }
            if af_xdp.xdp == XdpMode::Auto && how == XdpAttach::Generic {
                tracing::info!(
                    "{interface}: native XDP is not used, because it would turn off TCP segmentation offload at the \
                     veth's peer; xdp = \"native\" gives a higher packet rate"
                );
            } else if !program.note().is_empty() {
                tracing::warn!("{interface}: not the best mode: {}", program.note());
            }
            program
        }
    };
    shared.program.set_device(id as u16, link.index)?;
    prepare(&below, (program.is_native(), raw), journal);
    let room = umem.arena().max_data();
    let max_frame = max_frame(link.mtu, room) as u32;
    let partial_checksums = match af_xdp.checksum {
        // Generic XDP sees packets that GRO has merged, whose checksums are unfinished.
        Checksum::Auto => below.leaves_checksums(program.is_native()) || !(program.is_native() || raw),
        Checksum::Fix => true,
        Checksum::Trust => false,
    };
    // A router's port forwards nothing until the kernel's policies are known.
    let gate = if raw { XdpGate::default() } else { XdpGate::CLOSED };
    let config = XdpConfig { mac: link.mac, max_frame, partial: partial_checksums, raw, gate, ..XdpConfig::default() };
    program.set_config(config)?;
    let spread = match program.set_cpus(&af_xdp.spread) {
        Ok(()) => Ok(af_xdp.spread),
        Err(e) => {
            tracing::warn!("{e}");
            Err(e.to_string())
        }
    };
    let promiscuous = raw.then(|| Promiscuous::new(link.index));
    let xdp = Xdp {
        program,
        interface: interface.into(),
        room,
        mtu: link.mtu,
        hides_tags: below.hides_tags(),
        left: None,
        left_without_tags: None,
        halted: None,
        begun: false,
        failed: None,
        refused: shared.program.refused(),
        kernel_forwards: forwards(interface),
        level: af_xdp.level,
        targets: shared.targets.clone(),
        refuses_frames: false,
        id,
        index: link.index,
        spread,
        sockets: vec![],
        limits: vec![],
        zero_copy: false,
        _promiscuous: promiscuous.transpose().with_context(|| format!("cannot make {interface} promiscuous"))?,
    };
    if matches!(xdp.level(), Level::User) {
        xdp.program.may_receive()?;
    }
    if let Some(user) = user {
        tracing::info!("{interface}: the program {} runs first", user.file.display());
    }
    xdp.query_target();
    Ok(Opened { index: link.index, partial_checksums, xdp: Some(xdp), ..Opened::none(port) })
}

/// Longest wait, in milliseconds, for the kernel to release the queues of a process that has closed its sockets.
const RELEASE_MS: u64 = 10_000;

/// Opens the sockets of a port whose program is attached. Sockets that may be zero-copy get buffers of the queue's
/// worker first; in copy mode the kernel needs no buffers before there is a frame.
pub fn open_sockets(
    umem: &Arc<Umem>,
    opened: &mut Opened,
    journal: &mut Journal,
    of_queue: OfQueue<'_>,
) -> anyhow::Result<()> {
    let af_xdp = opened.config.af_xdp.clone().unwrap_or_default();
    let interface = interface(&opened.config)?;
    let link = LinkInfo::query(interface)?;
    let mut config = SocketConfig {
        rings: af_xdp.ring,
        zero_copy: match (af_xdp.zero_copy, af_xdp.level) {
            (ZeroCopy::Auto, Level::Driver) => ZeroCopy::Off,
            (wanted, _) => wanted,
        },
        transmit: af_xdp.transmit,
        burst: af_xdp.rx_burst,
        need_wakeup: af_xdp.need_wakeup,
        in_order: af_xdp.in_order,
        ..SocketConfig::default()
    };
    if af_xdp.busy_poll > 0 {
        (config.polling, config.budget) = (Polling::BusyPoll, af_xdp.busy_poll);
        journal.busy_poll(interface).map_err(why_read_only)?;
    }
    // The other process has closed its sockets. On a busy machine the kernel may take seconds to release their queues,
    // and nobody serves the port any more.
    if opened.xdp.as_ref().is_some_and(|xdp| xdp.program.succeeds()) {
        config.bind_timeout_ms = RELEASE_MS;
    }
    let (mut sockets, mut limits, mut zero_copy) = (vec![], vec![], false);
    for queue in queues(&opened.config)? {
        let mut bufs = if config.zero_copy == ZeroCopy::Off { None } else { of_queue(queue) };
        let end = AfXdpPort::open_with(umem, (&link, queue), &config, opened.injectors.pop(), bufs.as_mut())?;
        if let (0, Some(why)) = (queue, end.transmit_fallback()) {
            tracing::warn!("{interface}: {why}");
        }
        if let (true, Some(why)) = (limits.is_empty(), end.copy_fallback()) {
            tracing::info!("{interface}: copy mode, in which the kernel copies each frame for user space: {why}");
        }
        if let Some(fd) = end.fd() {
            sockets.push((queue, fd.try_clone_to_owned().context("a socket's descriptor")?));
        }
        limits.push(end.frame_limit());
        zero_copy |= end.zero_copy();
        #[cfg_attr(not(debug_assertions), expect(unused_mut, reason = "changed by faults"))]
        let mut port: Box<dyn Port> = Box::new(end);
        #[cfg(debug_assertions)]
        if config.zero_copy != ZeroCopy::Off {
            let broken = crate::fault::device(interface, port);
            zero_copy |= broken.is_ok();
            port = broken.unwrap_or_else(|whole| whole);
        }
        opened.ends.push(End { queue, counters: port.counters(), port });
    }
    if let Some(xdp) = &mut opened.xdp {
        (xdp.sockets, xdp.limits, xdp.zero_copy) = (sockets, limits, zero_copy);
    }
    Ok(())
}

/// Adds the likely cause to an error of a setting in sysfs.
fn why_read_only(error: Error) -> anyhow::Error {
    let read_only = matches!(&error, Error::Feature { source, .. } if source.kind() == ErrorKind::ReadOnlyFilesystem);
    let error = anyhow::Error::new(error);
    if !read_only {
        return error;
    }
    error.context(
        "busy_poll needs a writable /sys, which systemd does not give the service: add ProtectKernelTunables=no to \
         [Service] in a drop-in (`systemctl edit bywash`), or leave out busy_poll",
    )
}

/// Changes the interface settings that the fast path needs, and records them in the journal so that they can be
/// restored.
fn prepare(below: &Below, (native, raw): (bool, bool), journal: &mut Journal) {
    let interface = below.names().next().unwrap_or_default();
    if below.driver() == "veth" && native && !raw {
        // The peer no longer sends TCP in large segments. GRO merges its frames again, which halves the cost of those
        // left to the kernel.
        set(interface, ("rx-gro", true, "to merge frames for the kernel"), journal);
    }
    // The program sees VLAN tags only in the frame, and NICs strip them, those below a bond, too.
    for device in below.strippers() {
        for feature in TAKE_TAGS_OFF {
            set(device, (feature, false, "to keep VLAN tags in the frame"), journal);
        }
    }
    if raw && !native {
        set(interface, ("rx-gro", false, "frames stay as they came"), journal);
        set(interface, ("rx-lro", false, "frames stay as they came"), journal);
    }
}

/// Sets a feature of an interface that has it, and logs why.
fn set(interface: &str, (feature, on, why): (&str, bool, &str), journal: &mut Journal) {
    let done = Features::of(interface).and_then(|f| match f.get(feature)? {
        Some(now) if now != on => journal.set(&f, feature, on),
        _ => Ok(false),
    });
    match done {
        Ok(true) => tracing::info!("{interface}: {feature} turned {}: {why}", if on { "on" } else { "off" }),
        Ok(false) => {}
        Err(e) => tracing::warn!("{interface}: {e}"),
    }
}
