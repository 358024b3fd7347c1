// Made by rtl/tools/regs.py from rtl/regs.toml.
#pragma once
#include <cstdint>
namespace map {
constexpr uint32_t ID = 0x000;
constexpr uint32_t PARAMS = 0x008;
constexpr unsigned PARAMS_THREADS = 0;
constexpr unsigned PARAMS_SHARED = 5;
constexpr unsigned PARAMS_PORTS = 8;
constexpr unsigned PARAMS_BLOCKS_LOG = 16;
constexpr unsigned PARAMS_UNITS_LOG = 21;
constexpr unsigned PARAMS_UNIT_LOG = 26;
constexpr unsigned PARAMS_COMMANDS_LOG = 32;
constexpr unsigned PARAMS_DATA_OFFSET = 40;
constexpr uint32_t CTRL = 0x010;
constexpr unsigned CTRL_ENABLE = 0;
constexpr unsigned CTRL_BY_PORT = 1;
constexpr unsigned CTRL_HOLD = 2;
constexpr unsigned CTRL_CLEAR = 3;
constexpr unsigned CTRL_CHANNELS = 8;
constexpr uint32_t STATUS = 0x018;
constexpr unsigned STATUS_BUSY = 0;
constexpr unsigned STATUS_WRITE_ERROR = 8;
constexpr unsigned STATUS_READ_ERROR = 9;
constexpr unsigned STATUS_BAD_COMMAND = 10;
constexpr unsigned STATUS_COMMAND_LOST = 11;
constexpr unsigned STATUS_BAD_POST = 12;
constexpr unsigned STATUS_BAD_RELEASE = 13;
constexpr unsigned STATUS_CLEAR_BUSY = 14;
constexpr uint32_t POST = 0x020;
constexpr unsigned POST_BLOCK = 0;
constexpr unsigned POST_POOL = 16;
constexpr uint32_t RX_TOO_LONG = 0x028;
constexpr uint32_t RX_ERROR = 0x030;
constexpr uint32_t TX_SENT = 0x038;
constexpr uint32_t TX_NO_PORT = 0x040;
constexpr uint32_t TX_ERROR = 0x048;
constexpr uint32_t RELEASED = 0x050;
constexpr uint32_t RETURNED = 0x058;
constexpr uint32_t BASE = 0x100;
constexpr uint32_t PORT_MAP = 0x180;
constexpr uint32_t COMMAND = 0x200;
constexpr unsigned COMMAND_OFFSET = 0;
constexpr unsigned COMMAND_LENGTH = 32;
constexpr unsigned COMMAND_PORT = 48;
constexpr unsigned COMMAND_DROP = 56;
constexpr uint32_t NEXT = 0x280;
constexpr unsigned NEXT_UNIT = 0;
constexpr unsigned NEXT_VALID = 63;
constexpr uint32_t DISPATCHED = 0x300;
constexpr uint32_t DROPPED = 0x380;
constexpr uint32_t TAKEN = 0x400;
}
