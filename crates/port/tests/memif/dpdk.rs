//! memif tests with dpdk-testpmd as the peer, which returns every packet it receives.

use super::common::batch_of;
use super::{End, LONG, config, packet, socket};
use bywash_frame::Batch;
use bywash_lab::{Process, has_tool, require};
use bywash_port::Port;
use bywash_port::memif::{Config, Role};
use std::path::Path;
use std::time::Instant;

/// Running testpmd. Dropping it ends the process and removes its files under /run.
struct Testpmd {
    process: Process,
    prefix: String,
}

impl Testpmd {
    fn start(socket: &Path, device: &str) -> Self {
        let vdev = format!("net_memif0,id=0,socket={},socket-abstract=no,{device}", socket.display());
        // The file prefix is the name of the socket's folder, which is unique to this test.
        let folder = socket.parent().and_then(Path::file_name).unwrap().to_str().unwrap();
        let prefix = format!("bywash-{}", folder.trim_start_matches('.'));
        let mut argv = vec!["dpdk-testpmd", "-l", "0,1", "--no-huge", "-m", "128", "--no-pci", "--no-telemetry"];
        argv.extend(["--single-file-segments", "--file-prefix", &prefix, "--vdev", &vdev, "--", "--forward-mode=io"]);
        // `--no-flush-rx` keeps packets that arrive before forwarding starts; `--stats-period` (below) keeps testpmd
        // from reading commands.
        argv.extend(["--port-topology=loop", "--auto-start", "--disable-link-check", "--no-flush-rx"]);
        argv.extend(["--total-num-mbufs=4096", "--stats-period=86400"]);
        let process = Process::start(&argv).unwrap();
        Self { process, prefix }
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.process.terminate(LONG);
        let _ = std::fs::remove_dir_all(Path::new("/run/dpdk").join(&self.prefix));
    }
}

/// Sends packets, expects each back in order, then ends the peer and checks that no frame is missing.
fn echoes(role: Role, device: &str, sealed: bool) {
    require!(has_tool("dpdk-testpmd"));
    const N: u32 = 5_000;
    let (path, _folder) = socket();
    let open = || End::open(&Config { sealed, ..config(&path, role) });
    // The server must listen first: testpmd's client tries once.
    let server = (role == Role::Server).then(open);
    let testpmd = Testpmd::start(&path, device);
    let mut end = server.unwrap_or_else(open);
    end.until("up");
    assert!(end.detail("peer").starts_with("DPDK "), "{}", end.detail("peer"));
    let (mut out, mut sent, mut received, start) = (Batch::new(), 0u32, 0u32, Instant::now());
    while received < N {
        assert!(start.elapsed() < LONG, "{received} of {N}, {sent} sent: {}", testpmd.process.output());
        // At most 128 packets are in flight, fewer than the rings hold: testpmd drops packets that it cannot send.
        if out.is_empty() && sent < N && sent - received < 128 {
            let want = (sent % 32 + 1).min(N - sent);
            out = batch_of(&mut end.bufs, (sent..sent + want).map(packet));
            sent += want;
        }
        let got = end.turn(&mut out);
        if got.is_empty() {
            std::thread::yield_now();
        }
        for bytes in got {
            assert!(bytes == packet(received), "packet {received}: {} bytes, {:x?}", bytes.len(), &bytes[..14]);
            received += 1;
        }
    }
    assert_eq!(end.port.counters().invalid.get(), 0);
    drop(testpmd);
    // A client reconnects at once, so that its reason is the failed attempt.
    end.until(if role == Role::Client { "no server answers" } else { "peer" });
    end.close();
}

#[test]
fn a_dpdk_client_gets_what_it_sends() {
    echoes(Role::Server, "role=client", true);
}

#[test]
fn a_dpdk_client_that_does_not_copy_gets_what_it_sends() {
    echoes(Role::Server, "role=client,zero-copy=yes", false);
}

#[test]
fn a_dpdk_server_gets_what_it_sends() {
    echoes(Role::Client, "role=server", true);
}
