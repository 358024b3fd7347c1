//! Reduces a finding to few changes, and writes a shell script that reproduces it.

use crate::change::Change;
use crate::config::firewall;
use crate::packets::Sent;
use crate::run::{Finding, alone, exchange};
use crate::topology::{PORTS, Pair, base, router, router_mac, text};
use bywash_wire::hex;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A reduced finding.
pub struct Shrunk {
    pub summary: String,
    /// The frames that only one side sent.
    pub frames: String,
    pub changes: Vec<Change>,
    pub packet: Sent,
    /// Set if the difference appears with new routers, too.
    pub again: bool,
}

/// The pace at which changes are repeated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    AtOnce,
    /// Bywash has time to follow after each.
    OneByOne,
}

/// Returns the difference for a packet between new routers with these changes, if there is one.
fn differs(finding: &Finding, changes: &[Change], pace: Pace, packet: &Sent) -> Option<(String, String)> {
    let mut pair = Pair::new();
    pair.start(finding.level, finding.ports, finding.flows.is_some());
    if let Some(opening) = &finding.flows {
        pair.apply(&opening.setup);
        for (at, packet) in opening.packets.iter().enumerate() {
            std::thread::sleep(Duration::from_millis(if at == 3 { 2200 } else { 30 }));
            exchange(&pair, std::slice::from_ref(packet), Duration::from_millis(30));
        }
        std::thread::sleep(Duration::from_millis(60));
    }
    match pace {
        Pace::AtOnce => drop(pair.apply(changes)),
        Pace::OneByOne => changes.chunks(1).for_each(|change| {
            pair.apply(change);
            pair.agree(change);
            std::thread::sleep(Duration::from_millis(10));
        }),
    }
    pair.agree(changes);
    std::thread::sleep(Duration::from_millis(50));
    let how = alone(&pair, packet, Duration::from_millis(150));
    how.filter(|_| pair.unlike().is_empty())
}

/// Removes changes that are not needed for the difference, for at most `time`.
pub fn shrink(finding: &Finding, time: Duration) -> Shrunk {
    let deadline = Instant::now() + time;
    let (standing, all) = (&finding.standing, &finding.changes);
    let ways = [(standing, Pace::AtOnce), (all, Pace::AtOnce), (all, Pace::OneByOne)];
    let tries = ways.iter().flat_map(|way| finding.packets.iter().take(2).map(move |packet| (*way, packet)));
    let mut start = None;
    for ((changes, pace), packet) in tries {
        if let Some(how) = differs(finding, changes, pace, packet) {
            start = Some((changes.clone(), pace, packet.clone(), how));
            break;
        }
    }
    let Some((mut changes, pace, packet, mut how)) = start else {
        let (changes, packet) =
            (finding.changes.clone(), finding.packets.last().expect("a packet that differs").clone());
        return Shrunk {
            summary: finding.summary.clone(),
            frames: finding.frames.clone(),
            changes,
            packet,
            again: false,
        };
    };
    // Remove halves, then quarters and so on, down to single changes (delta debugging by complements).
    let mut pieces = 2.min(changes.len());
    while pieces > 0 && Instant::now() < deadline {
        let size = changes.len().div_ceil(pieces);
        let fewer = (0..pieces).find_map(|piece| {
            let range = (piece * size).min(changes.len())..((piece + 1) * size).min(changes.len());
            if range.is_empty() || Instant::now() >= deadline {
                return None;
            }
            let fewer = [&changes[..range.start], &changes[range.end..]].concat();
            differs(finding, &fewer, pace, &packet).map(|how| (fewer, how))
        });
        match fewer {
            Some((fewer, shown)) => {
                (changes, how) = (fewer, shown);
                pieces = (pieces - 1).max(2).min(changes.len());
            }
            None if size <= 1 => break,
            None => pieces = (pieces * 2).min(changes.len()),
        }
    }
    Shrunk { summary: how.0, frames: how.1, changes, packet, again: true }
}

/// A program that sends a frame on one h interface of a namespace and prints the frames that arrive on all of them.
const PYTHON: &str = r#"
import select, socket, struct, sys, time
def own(frame):  # ARP, neighbour discovery, listener reports
    kind = frame[54:55] if frame[20:21] != b"\0" else frame[62:63]
    return frame[12:14] == b"\x08\x06" or frame[12:14] == b"\x86\xdd" and b"bWdT" not in frame and kind and kind[0] in (130, 131, 132, 133, 134, 135, 136, 143)
def raw(name):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
    s.setsockopt(263, 8, 1)
    s.bind((name, 0))
    return s
ears = {raw(f"h{n}"): n for n in range(1, 5)}
out = raw(sys.argv[1])
out.send(bytes.fromhex(sys.argv[2]))
end = time.time() + 0.5
seen = []
while (left := end - time.time()) > 0:
    for s in select.select(list(ears), [], [], left)[0]:
        frame, aside, _, address = s.recvmsg(65536, 256)
        for level, kind, data in aside:
            status, tci, tpid = struct.unpack_from("=I12xHH", data)
            if status & 0x10: frame = frame[:12] + struct.pack("!HH", tpid if status & 0x40 else 0x8100, tci) + frame[12:]
        if address[2] != 4 and not own(frame): seen.append(f"h{ears[s]} {frame.hex()}")
print("\n".join(sorted(seen)) or "nothing")
"#;

/// Writes a script that shows the difference without this test. Returns its path.
pub fn script(finding: &Finding, shrunk: &Shrunk, seed: u64, number: u32) -> PathBuf {
    let mut out = String::from("#!/bin/bash\n");
    writeln!(out, "# {}", shrunk.summary).unwrap();
    if !shrunk.again {
        out += "# Not reproduced with new routers.\n";
    }
    out += "# Two equal routers, k with the kernel alone and b with Bywash (BYWASH=path); prints the frames of each.\n";
    out += "bywash=${BYWASH:-bywash}\nwork=$(mktemp -d)\npid=\n";
    out += "clean() { [ -z \"$pid\" ] || kill $pid; wait; for n in kr kh br bh; do ip netns del bwd-$n 2>/dev/null; done; rm -rf \"$work\"; }\n";
    out += "trap clean EXIT\n";
    out += "r() { ip netns exec bwd-kr \"$@\"; ip netns exec bwd-br \"$@\"; }\nh() { ip netns exec bwd-kh \"$@\"; ip netns exec bwd-bh \"$@\"; }\n";
    out += "for n in kr kh br bh; do ip netns add bwd-$n; ip -n bwd-$n link set lo up; done\n";
    for port in 0..PORTS {
        let (n, mac) = (port + 1, text(router_mac(port)));
        writeln!(out, "for s in k b; do ip -n bwd-${{s}}r link add p{n} address {mac} type veth peer name h{n} netns bwd-${{s}}h; done").unwrap();
    }
    out += "h sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv4.conf.default.arp_ignore=8\n";
    out += "for what in arp ip ip6; do r sysctl -q -w net.bridge.bridge-nf-call-${what}tables=0 2>/dev/null; done\n";
    out += "for n in 1 2 3 4; do h ip link set h$n mtu 2000 up; h ethtool -K h$n gro on; r ip link set p$n up; done\n";
    out += "{\n";
    for change in base() {
        writeln!(out, "{change}").unwrap();
    }
    out += "} 2>/dev/null\n";
    let names: Vec<String> = (1..=finding.ports).map(|n| format!("p{n}")).collect();
    let ports: String = names.iter().map(|name| format!("[[port]]\\ninterface = \"{name}\"\\n")).collect();
    if finding.flows.is_some() {
        firewall::base().iter().for_each(|change| writeln!(out, "{change}").unwrap());
    }
    let router = router(finding.flows.is_some()).replace('\n', "\\n");
    writeln!(out, "printf '{router}{ports}' > \"$work/c.toml\"").unwrap();
    writeln!(out, "ip netns exec bwd-br \"$bywash\" run --socket \"$work/s\" --config \"$work/c.toml\" {} 2> \"$work/log\" & pid=$!", finding.level.arguments().join(" ")).unwrap();
    out += "until grep -q 'forwarding;' \"$work/log\"; do kill -0 $pid || { cat \"$work/log\"; exit 1; }; sleep 0.05; done\n\n";
    writeln!(out, "cat > \"$work/x.py\" <<'END'{PYTHON}END").unwrap();
    let send = |out: &mut String, packet: &Sent| {
        let hex = hex::encode(&packet.frame);
        let run = format!("python3 \"$work/x.py\" h{} {hex} > \"$work/$s\"", packet.port + 1);
        writeln!(out, "for s in k b; do ip netns exec bwd-${{s}}h {run}; done").unwrap();
    };
    if let Some(opening) = &finding.flows {
        opening.setup.iter().for_each(|change| writeln!(out, "{change}").unwrap());
        opening.packets.iter().for_each(|packet| send(&mut out, packet));
    }
    for change in &shrunk.changes {
        writeln!(out, "{change}").unwrap();
    }
    out += "sleep 0.2\n";
    send(&mut out, &shrunk.packet);
    out += "echo kernel; cat \"$work/k\"; echo bywash; cat \"$work/b\"\ncmp -s \"$work/k\" \"$work/b\" && echo same || echo different\n";
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("..").join("differential");
    std::fs::create_dir_all(&target).unwrap();
    let file = target.join(format!("{seed}-{}-{number}.sh", finding.level.name()));
    std::fs::write(&file, out).unwrap();
    file
}
