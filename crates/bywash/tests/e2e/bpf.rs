//! BPF programs that others attach by a link, which ends with the process that made it: bpf(2), BPF_PROG_LOAD and
//! BPF_LINK_CREATE.

use crate::harness::PATIENCE;
use bywash_lab::{Namespace, Process};

/// Attaches a program until it ends. Arguments: type of the program, of the attachment, its instructions as hexadecimal
/// digits, interface, `netns` or `forward` (netfilter's hook of IPv4), flags.
const ATTACH: &str = "
import ctypes, os, struct, sys, socket, time
def bpf(command, attr):
    fd = ctypes.CDLL(None, use_errno=True).syscall(321, command, ctypes.create_string_buffer(attr, 128), 128)
    if fd < 0: raise OSError(ctypes.get_errno(), 'bpf')
    return fd
kind, attachment, flags = (int(sys.argv[i]) for i in (1, 2, 5))
program, where, more = bytes.fromhex(sys.argv[3]), sys.argv[4], b''
if where == 'netns': target = os.open('/proc/self/ns/net', os.O_RDONLY)
elif where == 'forward': target, more = 0, struct.pack('<IIiI', socket.AF_INET, 2, 0, 0)
else: target = socket.if_nametoindex(where)
code = ctypes.create_string_buffer(program, len(program))
gpl = ctypes.create_string_buffer(b'GPL')
attr = struct.pack('<IIQQIIQII16sII', kind, len(program) // 8, ctypes.addressof(code), ctypes.addressof(gpl), 0, 0, 0, 0, 0, b'other', 0,
    attachment)
link = bpf(28, struct.pack('<IIII', bpf(5, attr), target, attachment, flags) + more)
print('attached', flush=True)
time.sleep(600)
";

// linux/bpf.h
pub const XDP_DROP: u32 = 1;
pub const XDP_PASS: u32 = 2;

/// Attaches a program that returns `answer` for each frame to an interface, by generic XDP.
pub fn xdp(ns: &Namespace, interface: &str, answer: u32) -> Process {
    attach(ns, ["6", "37", &returning(answer), interface, "2"])
}

/// Attaches a program that chooses no socket for packets to this host, and drops them.
pub fn sk_lookup_that_drops(ns: &Namespace) -> Process {
    attach(ns, ["30", "36", &returning(0), "netns", "0"])
}

/// Attaches a program to netfilter's hook `forward` of IPv4 that drops all packets.
pub fn netfilter_that_drops(ns: &Namespace) -> Process {
    attach(ns, ["32", "45", &returning(0), "forward", "0"])
}

/// Attaches a program of traffic control that sets the mark 1 of each packet that an interface receives, and redirects
/// it to the ingress of the interface with this index, as if that one had received it.
pub fn tcx_that_redirects_with_a_mark(ns: &Namespace, interface: &str, to: u32) -> Process {
    // skb->mark = 1, then bpf_redirect(to, BPF_F_INGRESS).
    let to = instruction(0xb7, 1, 0, to);
    let calls = instruction(0xb7, 2, 0, 1) + &instruction(0x85, 0, 0, 23);
    let code = instruction(0x62, 1, 8, 1) + &to + &calls + &instruction(0x95, 0, 0, 0);
    attach(ns, ["3", "46", &code, interface, "0"])
}

/// Returns the instructions of a program that returns `answer`.
fn returning(answer: u32) -> String {
    instruction(0xb7, 0, 0, answer) + &instruction(0x95, 0, 0, 0)
}

/// Returns an instruction (struct bpf_insn) as hexadecimal digits.
fn instruction(code: u8, to: u8, offset: u16, value: u32) -> String {
    format!("{code:02x}{to:02x}{:04x}{:08x}", offset.swap_bytes(), value.swap_bytes())
}

fn attach(ns: &Namespace, arguments: [&str; 5]) -> Process {
    let mut other = ns.spawn(&[&["python3", "-c", ATTACH], &arguments[..]].concat()).unwrap();
    other.wait_for_output("attached", PATIENCE).unwrap();
    other
}
