//! IPsec: packets that the kernel decrypts are received once more, by traffic control, too.

use crate::harness::{Bywash, PATIENCE};
use bywash_lab::{Namespace, Ping, Probe, Reason, Topology, require, require_lab};
use std::time::Duration;

const KEY: &str = "0x000102030405060708090a0b0c0d0e0f10111213";

/// Requires ESP with AES-GCM.
fn has_esp() -> Probe {
    let namespace = Namespace::new("esp").map_err(|error| Reason::new(error.to_string()))?;
    let tried = namespace.run(&["sh", "-c", &state("192.0.2.1", "192.0.2.2")]);
    tried.map(drop).map_err(|_| Reason::new("kernel without ESP"))
}

fn state(from: &str, to: &str) -> String {
    format!("ip xfrm state add src {from} dst {to} proto esp spi 7 mode tunnel aead 'rfc4106(gcm(aes))' {KEY} 128")
}

/// The kernel forwards a decrypted packet only if a policy allows it, whatever its destination is.
#[test]
fn decrypted_packets_need_a_policy() {
    require!(require_lab(), has_esp());
    for arguments in [&[][..], &["--level", "driver", "--xdp", "generic"], &["--level", "user"]] {
        let lab = Topology::builder().static_neighbours(true).build().unwrap();
        let (a, b, r) = (lab.a(), lab.b(), lab.r());
        let (from, to) = (a.v4.to_string(), a.router_v4.to_string());
        let policy = format!(
            "ip xfrm policy add src {from}/32 dst {}/32 dir out tmpl src {from} dst {to} proto esp mode tunnel",
            b.v4
        );
        a.ns.run(&["sh", "-c", &format!("{} && {policy}", state(&from, &to))]).unwrap();
        r.run(&["sh", "-c", &state(&from, &to)]).unwrap();
        let ping = || Ping::to(b.v4).count(3).wait(Duration::from_millis(500)).run(&a.ns).unwrap().received;
        assert_eq!(ping(), 0, "by the kernel alone");
        let bywash = Bywash::run_as_is(r, &[arguments, &["r0", "r1"]].concat());
        // Bywash reads the states before it forwards anything.
        bywash
            .wait("the states to be shown", |bywash| bywash.placement("r0")["kept"].to_string().contains("xfrm state"));
        assert_eq!(ping(), 0, "{arguments:?}");
        let allowed = format!(
            "ip xfrm policy add src {from}/32 dst {}/32 dir fwd tmpl src {from} dst {to} proto esp mode \
             tunnel",
            b.v4
        );
        r.run(&["sh", "-c", &allowed]).unwrap();
        bywash_lab::wait_until("decrypted packets to be forwarded", PATIENCE, || ping() == 3).unwrap();
        bywash.stop();
    }
}
