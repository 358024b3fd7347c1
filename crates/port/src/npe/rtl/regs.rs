//! The engine's registers. Made by rtl/tools/regs.py from rtl/regs.toml.

#![allow(dead_code, reason = "the whole map, of which a driver uses a part")]

/// The version of this map.
pub const VERSION: u32 = 2;

/// Bits 63:32 0x4259574e (`BYWN`), 31:0 the version of this map.
pub const ID: u32 = 0x000;

/// Parameters that the engine was built with.
pub const PARAMS: u32 = 0x008;
/// T.
pub const PARAMS_THREADS: Field = Field { low: 0, bits: 5 };
/// 1: one pool for all threads (SDB); 0: one each (TABM).
pub const PARAMS_SHARED: Field = Field { low: 5, bits: 1 };
/// Ports.
pub const PARAMS_PORTS: Field = Field { low: 8, bits: 8 };
/// Log2 of blocks a pool.
pub const PARAMS_BLOCKS_LOG: Field = Field { low: 16, bits: 5 };
/// Log2 of units a block (M).
pub const PARAMS_UNITS_LOG: Field = Field { low: 21, bits: 5 };
/// Log2 of bytes a unit.
pub const PARAMS_UNIT_LOG: Field = Field { low: 26, bits: 5 };
/// Log2 of commands that wait for each thread.
pub const PARAMS_COMMANDS_LOG: Field = Field { low: 32, bits: 4 };
/// Bytes from a unit's start to its packet.
pub const PARAMS_DATA_OFFSET: Field = Field { low: 40, bits: 12 };

/// Control.
pub const CTRL: u32 = 0x010;
/// Packets are accepted from the ports.
pub const CTRL_ENABLE: Field = Field { low: 0, bits: 1 };
/// 0: threads in turn; 1: PORT_MAP selects the thread.
pub const CTRL_BY_PORT: Field = Field { low: 1, bits: 1 };
/// A packet whose thread's queue is full is dropped (0), or waits with all packets behind it (1).
pub const CTRL_HOLD: Field = Field { low: 2, bits: 1 };
/// Writing 1 while neither enabled nor busy resets queues, blocks, counters and errors; reads 0.
pub const CTRL_CLEAR: Field = Field { low: 3, bits: 1 };
/// Threads in use, 0 to T.
pub const CTRL_CHANNELS: Field = Field { low: 8, bits: 5 };

/// Status; error bits stay set until 1 is written to them.
pub const STATUS: u32 = 0x018;
/// Packets, commands or transfers are under way.
pub const STATUS_BUSY: Field = Field { low: 0, bits: 1 };
/// A write to memory was answered with an error.
pub const STATUS_WRITE_ERROR: Field = Field { low: 8, bits: 1 };
/// A read from memory was answered with an error: that packet is not sent, or that part of a ring read again.
pub const STATUS_READ_ERROR: Field = Field { low: 9, bits: 1 };
/// A command beyond the thread's blocks or its unit, or of no length; a doorbell without a ring, or beyond its size.
pub const STATUS_BAD_COMMAND: Field = Field { low: 10, bits: 1 };
/// A command was written to a full queue.
pub const STATUS_COMMAND_LOST: Field = Field { low: 11, bits: 1 };
/// A block was posted that does not exist or had been already.
pub const STATUS_BAD_POST: Field = Field { low: 12, bits: 1 };
/// A release to a block that is not in use.
pub const STATUS_BAD_RELEASE: Field = Field { low: 13, bits: 1 };
/// CLEAR was written while enabled or busy, and not done.
pub const STATUS_CLEAR_BUSY: Field = Field { low: 14, bits: 1 };

/// Gives the engine a block that is all free, once.
pub const POST: u32 = 0x020;
/// Number in its pool.
pub const POST_BLOCK: Field = Field { low: 0, bits: 16 };
/// Its thread; with one pool for all, 0.
pub const POST_POOL: Field = Field { low: 16, bits: 5 };

/// Packets lost because they exceed a unit.
pub const RX_TOO_LONG: u32 = 0x028;

/// Packets lost because their port marked them as damaged.
pub const RX_ERROR: u32 = 0x030;

/// Packets sent.
pub const TX_SENT: u32 = 0x038;

/// Packets not sent, and released: no such port.
pub const TX_NO_PORT: u32 = 0x040;

/// Packets not sent, and released: bad command, or reading them failed.
pub const TX_ERROR: u32 = 0x048;

/// Units released.
pub const RELEASED: u32 = 0x050;

/// Blocks that counted their last unit and were queued again.
pub const RETURNED: u32 = 0x058;

/// Address of the thread's first block, a multiple of 4096; with one pool for all, the same for each. The first; one
/// each 8 bytes.
pub const BASE: u32 = 0x100;

/// The thread that a port's packets go to, below CHANNELS. The first; one each 8 bytes.
pub const PORT_MAP: u32 = 0x180;

/// Takes a packet back from the thread, to send or drop it. The number that may wait is in PARAMS; `TAKEN` counts those
/// taken. The first; one each 8 bytes.
pub const COMMAND: u32 = 0x200;
/// Of the packet's first byte, from BASE.
pub const COMMAND_OFFSET: Field = Field { low: 0, bits: 32 };
/// Bytes.
pub const COMMAND_LENGTH: Field = Field { low: 32, bits: 16 };
/// To send it by.
pub const COMMAND_PORT: Field = Field { low: 48, bits: 8 };
/// 1: it is not sent.
pub const COMMAND_DROP: Field = Field { low: 56, bits: 1 };

/// Unit of the thread's next packet. The first; one each 8 bytes.
pub const NEXT: u32 = 0x280;
/// Units from BASE.
pub const NEXT_UNIT: Field = Field { low: 0, bits: 32 };
/// 0: no unit is free yet.
pub const NEXT_VALID: Field = Field { low: 63, bits: 1 };

/// Packets given to the thread, modulo 2^32: the sequence number of the last one. The first; one each 8 bytes.
pub const DISPATCHED: u32 = 0x300;

/// Packets lost because the thread's queue was full, modulo 2^32. The first; one each 8 bytes.
pub const DROPPED: u32 = 0x380;

/// Commands taken from the thread's queue, modulo 2^32. The first; one each 8 bytes.
pub const TAKEN: u32 = 0x400;

/// Begins an empty ring of commands in host memory, or ends it. Must be written again after a reset or CLEAR, and only
/// while no command is in the ring. The first; one each 8 bytes.
pub const RING: u32 = 0x480;
/// Log2 of its entries, 5 to 15; less: no ring.
pub const RING_LOG: Field = Field { low: 0, bits: 4 };
/// Address / 256; entry n is 8 bytes at 8 (n modulo the entries), as `COMMAND`.
pub const RING_ADDRESS: Field = Field { low: 8, bits: 56 };

/// Commands written to the ring so far, modulo 2^16. An entry may be written again once `TAKEN` counts its command. The
/// first; one each 8 bytes.
pub const DOORBELL: u32 = 0x500;
/// Commands.
pub const DOORBELL_COUNT: Field = Field { low: 0, bits: 16 };

/// A field of a register.
#[derive(Clone, Copy)]
pub struct Field {
    low: u32,
    bits: u32,
}

impl Field {
    /// Returns its value in a register's.
    pub const fn of(self, value: u64) -> u64 {
        value >> self.low & (u64::MAX >> (64 - self.bits))
    }

    /// Returns `value` in its place.
    pub const fn put(self, value: u64) -> u64 {
        (value & (u64::MAX >> (64 - self.bits))) << self.low
    }
}
