//! Raw frames sent from and received at a host's interface, by AF_PACKET sockets.

use crate::harness::PATIENCE;
use bywash_lab::{Namespace, Process, wait_until};
use bywash_wire::hex;

/// Sends frames unchanged from the interface given as argument. Standard input has a line for each frame: the number of
/// times to send it, and the frame in hexadecimal.
const SEND: &str = "
import socket, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
sent = 0
for line in sys.stdin:
    times, frame = line.split()
    for _ in range(int(times)):
        # The queue of a veth holds 256 frames, and a thread of the kernel may have to empty it.
        sent += 1
        if sent % 64 == 0: time.sleep(0.001)
        try: s.send(bytes.fromhex(frame))
        except OSError as e:
            if e.errno not in (6, 100, 105): raise  # the other end is down just now, or its queue is full
";

/// Prints the frames that arrive at an interface, one a line, in hexadecimal, without those that it sends itself. The
/// kernel removes a VLAN tag before it passes a frame to a socket; the script inserts it again (packet(7),
/// PACKET_AUXDATA).
const LISTEN: &str = "
import socket, struct, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
s.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
s.setsockopt(263, 8, 1)
s.bind((sys.argv[1], 0))
print('listening', flush=True)
while True:
    frame, aside, _, address = s.recvmsg(65536, 256)
    for level, kind, data in aside:
        if (level, kind) == (263, 8):
            status, tci, tpid = struct.unpack_from('=I12xHH', data)
            if status & 0x10: frame = frame[:12] + struct.pack('!HH', tpid if status & 0x40 else 0x8100, tci) + frame[12:]
    if address[2] != 4: print(frame.hex(), flush=True)
";

/// Sends each frame the given number of times.
pub fn send(namespace: &Namespace, interface: &str, frames: &[(u32, Vec<u8>)]) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("frames");
    let lines: String = frames.iter().map(|(times, frame)| format!("{times} {}\n", hex::encode(frame))).collect();
    std::fs::write(&file, lines).unwrap();
    let shell = "exec python3 -c \"$1\" \"$2\" < \"$3\"";
    namespace.run(&["sh", "-c", shell, "sh", SEND, interface, file.to_str().unwrap()]).unwrap();
}

/// Listener that records the frames arriving at an interface.
pub struct Ear(Process);

impl Ear {
    /// Starts to listen at an interface.
    pub fn at(namespace: &Namespace, interface: &str) -> Self {
        let mut process = namespace.spawn(&["python3", "-c", LISTEN, interface]).unwrap();
        process.wait_for_output("listening", PATIENCE).unwrap();
        Self(process)
    }

    /// Returns the frames so far.
    pub fn heard(&self) -> Vec<Vec<u8>> {
        let output = self.0.output();
        // The last line may be incomplete.
        let whole = output.rfind('\n').map_or("", |end| &output[..end]);
        whole.lines().skip(1).map(unhex).collect()
    }

    /// Waits until `count` frames that match `wanted` have arrived, and returns all that match.
    pub fn wait(&self, count: usize, wanted: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let what = format!("{count} frames to arrive");
        let come = wait_until(&what, PATIENCE, || {
            found = self.heard().into_iter().filter(|frame| wanted(frame)).collect();
            found.len() >= count
        });
        come.unwrap_or_else(|error| panic!("{error}: {} came", found.len()));
        found
    }
}

fn unhex(line: &str) -> Vec<u8> {
    let digits = line.as_bytes().chunks_exact(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}
