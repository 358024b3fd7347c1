//! Packets: receiving, sending and releasing them.

use crate::NetDevice;
use crate::device::{Lane, Started};
use bywash_frame::{Frame, META};
use libc::{EAGAIN, EINVAL, EMSGSIZE, c_int};

/// Received packet. It lies in the metadata of the packet's cell, in front of the packet.
#[repr(C)]
pub struct NetPkt {
    /// First byte of the packet. The program may change the packet, and lengthen it up to 1,792 bytes.
    pub data: *mut u8,
    /// Next packet of this channel: where it will be once it is received. NULL if that is not known yet. Only an
    /// address to prefetch; recv_pkt() says when it is there.
    pub next: *const NetPkt,
    /// Its device. Not for the program.
    pub device: *const NetDevice,
    /// Length in bytes, without check sequence.
    pub len: u32,
    /// Port that received it.
    pub port: u16,
    /// Channel that received it.
    pub channel: u16,
}

/// Place of a [`NetPkt`] in the metadata, behind the device's descriptor.
const AT: usize = 64;
const _: () = assert!(AT + size_of::<NetPkt>() <= META && AT.is_multiple_of(align_of::<NetPkt>()));

impl Started {
    /// Returns the address of the [`NetPkt`] in the cell with the packet at `addr`.
    fn packet(&self, addr: u64) -> *mut NetPkt {
        let arena = self.pools.arena();
        arena.base().wrapping_add(arena.cell_addr(arena.cell_of(addr)) as usize + AT).cast()
    }

    /// Returns the lane and the held frame of a packet; `None` if its device is not running.
    ///
    /// # Safety
    /// `packet` is null, or from [`recv_pkt`] on this thread, and its device has not been destroyed.
    #[inline]
    unsafe fn of<'a>(packet: *mut NetPkt) -> Option<(&'a mut Lane, &'a mut Option<Frame>)> {
        // SAFETY: the caller vouches for the packet, which names its device.
        let started = unsafe { packet.as_ref()?.device.as_ref()?.started.as_ref()? };
        let cell = (packet.addr().wrapping_sub(started.pools.arena().base().addr())) as u64;
        let held = started.held.get(started.pools.arena().cell_of(cell) as usize)?;
        // SAFETY: as above.
        let lane = started.lanes.get(usize::from(unsafe { (*packet).channel }))?;
        // SAFETY: only the thread that receives from a channel uses its lane and the cells of its packets. A packet's
        // way to this thread was a queue, which orders this access behind those of the thread that had the cell before.
        Some(unsafe { (&mut *lane.get(), &mut *held.get()) })
    }
}

/// Returns the next packet of a channel, or NULL if there is none now. It is the program's until the same thread sends
/// or releases it.
///
/// # Safety
/// `device` is from create_net_device() and has not been destroyed. A channel is used by one thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv_pkt(device: *const NetDevice, channel: u32) -> *mut NetPkt {
    // SAFETY: the caller vouches for the device.
    let Some(started) = (unsafe { device.as_ref() }).and_then(|device| device.started.as_ref()) else {
        return std::ptr::null_mut();
    };
    let Some(lane) = started.lanes.get(channel as usize) else { return std::ptr::null_mut() };
    // SAFETY: the caller vouches that only this thread uses the channel.
    let lane = unsafe { &mut *lane.get() };
    let Some(mut frame) = lane.receive() else { return std::ptr::null_mut() };
    let told = lane.channel.descriptor(&mut frame);
    let arena = started.pools.arena();
    let packet = started.packet(frame.addr());
    let about = NetPkt {
        data: arena.base().wrapping_add(frame.addr() as usize),
        next: told.next.map_or(std::ptr::null(), |next| started.packet(next).cast_const()),
        device,
        len: told.len,
        port: told.port,
        channel: channel as u16,
    };
    // SAFETY: the metadata of a cell is aligned, large enough (see `AT`), and this thread's while it has the frame.
    unsafe { packet.write(about) };
    let held = &started.held[arena.cell_of(frame.addr()) as usize];
    // SAFETY: see `Started::of`.
    unsafe { *held.get() = Some(frame) };
    packet
}

/// Hands a packet back to the device, to send its first `pkt_len` bytes by port `outport`. Returns 0, and the packet is
/// the device's; or -EAGAIN if the device is behind: call again; or -EMSGSIZE if a cell has no room for `pkt_len`
/// bytes; or -EINVAL if the program does not have this packet. The device drops and counts packets for unknown ports.
///
/// # Safety
/// `pkt` is NULL, or from recv_pkt() on this thread, and its device has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send_pkt(pkt: *mut NetPkt, outport: u16, pkt_len: u32) -> c_int {
    // SAFETY: the caller vouches for the packet.
    let Some((lane, held)) = (unsafe { Started::of(pkt) }) else { return -EINVAL };
    if !lane.channel.takes() {
        return -EAGAIN;
    }
    let Some(frame) = held.take() else { return -EINVAL };
    match lane.channel.send(frame, outport, pkt_len as usize) {
        Ok(()) => 0,
        Err(frame) => {
            *held = Some(frame);
            -EMSGSIZE
        }
    }
}

/// Hands a packet back to the device without sending it. Returns 0; or -EAGAIN if the device is behind: call again; or
/// -EINVAL if the program does not have this packet.
///
/// # Safety
/// `pkt` is NULL, or from recv_pkt() on this thread, and its device has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn release_pkt(pkt: *mut NetPkt) -> c_int {
    // SAFETY: the caller vouches for the packet.
    let Some((lane, held)) = (unsafe { Started::of(pkt) }) else { return -EINVAL };
    if !lane.channel.takes() {
        return -EAGAIN;
    }
    let Some(frame) = held.take() else { return -EINVAL };
    let taken = lane.channel.drop_packet(frame);
    debug_assert!(taken.is_ok(), "it had room, and only this thread fills it");
    0
}
