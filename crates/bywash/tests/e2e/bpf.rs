//! BPF programs that others attach by a link, which ends with the process that made it: bpf(2), BPF_PROG_LOAD and
//! BPF_LINK_CREATE.

use crate::harness::PATIENCE;
use bywash_lab::{Namespace, Process};

/// Attaches a program of two instructions until it ends. Arguments: type of the program, of the attachment, value that
/// the program returns, interface, `netns` or `forward` (netfilter's hook of IPv4), flags.
const ATTACH: &str = "
import ctypes, os, struct, sys, socket, time
def bpf(command, attr):
    fd = ctypes.CDLL(None, use_errno=True).syscall(321, command, ctypes.create_string_buffer(attr, 128), 128)
    if fd < 0: raise OSError(ctypes.get_errno(), 'bpf')
    return fd
kind, attachment, answer, flags = (int(sys.argv[i]) for i in (1, 2, 3, 5))
where, more = sys.argv[4], b''
if where == 'netns': target = os.open('/proc/self/ns/net', os.O_RDONLY)
elif where == 'forward': target, more = 0, struct.pack('<IIiI', socket.AF_INET, 2, 0, 0)
else: target = socket.if_nametoindex(where)
code = ctypes.create_string_buffer(struct.pack('<BBhiBBhi', 0xb7, 0, 0, answer, 0x95, 0, 0, 0))
gpl = ctypes.create_string_buffer(b'GPL')
attr = struct.pack('<IIQQIIQII16sII', kind, 2, ctypes.addressof(code), ctypes.addressof(gpl), 0, 0, 0, 0, 0, b'other', 0,
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
    attach(ns, ["6", "37", &answer.to_string(), interface, "2"])
}

/// Attaches a program that chooses no socket for packets to this host, and drops them.
pub fn sk_lookup_that_drops(ns: &Namespace) -> Process {
    attach(ns, ["30", "36", "0", "netns", "0"])
}

/// Attaches a program to netfilter's hook `forward` of IPv4 that drops all packets.
pub fn netfilter_that_drops(ns: &Namespace) -> Process {
    attach(ns, ["32", "45", "0", "forward", "0"])
}

fn attach(ns: &Namespace, arguments: [&str; 5]) -> Process {
    let mut other = ns.spawn(&[&["python3", "-c", ATTACH], &arguments[..]].concat()).unwrap();
    other.wait_for_output("attached", PATIENCE).unwrap();
    other
}
