//! Decisions of the kernel about packets of an established connection without an announcement: that they are invalid,
//! no longer translated, marked, or to an address of a type that the rules drop.

use crate::flows::{
    BRIEF, Ends, FIREWALL, LEVELS, behind_firewall, router, run, run_with_flow, wait_for_flow, wait_until_followed,
};
use crate::harness::PATIENCE;
use crate::raw;
use bywash_lab::{Topology, has_tool, require, require_lab, wait_until};
use bywash_wire::build::Packet;
use bywash_wire::checksum::checksum;
use bywash_wire::ethernet::MacAddr;
use bywash_wire::ipv4;

/// Returns an IPv4 packet with a UDP datagram, and octets behind it that are part of neither its length nor its
/// checksum.
fn with_octets_behind(mut frame: Vec<u8>, behind: &[u8]) -> Vec<u8> {
    frame.extend_from_slice(behind);
    let ip = &mut frame[14..];
    let len = ip.len() as u16;
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    ipv4::fill_checksum(&mut ip[..20]);
    let udp = len - 20 - behind.len() as u16;
    let pseudo = [&ip[12..20], &[0, 17], &udp.to_be_bytes(), &ip[20..][..udp.into()]].concat();
    assert_eq!(checksum(&pseudo), 0, "the receiver finds the checksum right");
    frame
}

/// The kernel checks the checksum of a datagram over the whole IP packet (nf_ip_checksum); a datagram that ends before
/// it is therefore invalid, although its receiver would take it.
#[test]
fn datagrams_that_end_before_their_packet_are_left_to_the_kernel() {
    require!(require_lab(), has_tool("nft"));
    for level in LEVELS {
        let lab = behind_firewall();
        let (bywash, udp) = run_with_flow(&lab, level);
        let (near, far) = (lab.a().v4, lab.b().v4);
        let [own, router]: [MacAddr; 2] = [&lab.a().mac, &lab.a().router_mac].map(|mac| mac.parse().unwrap());
        let datagram = |text: &'static [u8]| {
            let packet = Packet::udp((near, 4000).into(), (far, 80).into()).payload(text);
            packet.macs(own, router).build().unwrap()
        };
        let short = with_octets_behind(datagram(b"short"), &[0x12, 0x34, 0x56, 0x78]);
        raw::send(&lab.a().ns, &lab.a().interface, &[(3, short), (1, datagram(b"whole"))]);
        let Ends::Udp(_, socket) = &udp else { unreachable!() };
        let mut buffer = [0; 16];
        let len = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"whole", "{level:?}: forwarded past connection tracking");
        bywash.stop();
    }
}

/// A chain of type nat translates only while connection tracking is on, and does not turn it on.
#[test]
fn nothing_is_translated_without_connection_tracking() {
    require!(require_lab(), has_tool("nft"));
    for level in LEVELS {
        let lab = behind_firewall();
        let (bywash, udp) = run_with_flow(&lab, level);
        lab.r()
            .nft(
                "flush ruleset
                 table ip nat { chain from { type nat hook postrouting priority 100; }; }
                 table inet filter { chain forward { type filter hook forward priority 0; counter; }; }",
            )
            .unwrap();
        // Untranslated, it comes from an address that b's socket is not connected to.
        wait_until("the end of the translation to hold", PATIENCE, || udp.is_lost()).unwrap();
        let past = (0..20).any(|_| udp.arrives(BRIEF / 10));
        assert!(!past, "{level:?}: translated without connection tracking");
        bywash.stop();
    }
}

/// A program with a table of its own that translates, which the kernel removes together with the program: nft ends with
/// its input.
const OWNER: &str = "
import signal, subprocess
nft = subprocess.Popen(['nft', '-i'], stdin=subprocess.PIPE)
nft.stdin.write(b'add table ip nat { flags owner; }\\n')
nft.stdin.write(b'add chain ip nat from { type nat hook postrouting priority 100; }\\n')
nft.stdin.write(b'add rule ip nat from oifname r1 masquerade\\n')
nft.stdin.flush()
signal.pause()
";

#[test]
fn nothing_is_translated_by_a_table_that_goes_with_its_owner() {
    require!(require_lab(), has_tool("nft"));
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let filter = FIREWALL.split("table ip nat").next().unwrap();
    lab.r().nft(filter).unwrap();
    let mut owner = lab.r().spawn(&["python3", "-c", OWNER]).unwrap();
    let translates = || lab.r().run(&["nft", "list", "ruleset"]).unwrap().stdout.contains("masquerade");
    wait_until("the rule that translates", PATIENCE, translates).unwrap();
    let bywash = router("").run(&lab);
    wait_until_followed(&bywash);
    let mut udp = Ends::udp(&lab, lab.b().v4.into());
    assert_ne!(udp.seen().ip(), lab.a().v4, "the source is translated");
    let shown = |udp: &mut Ends| {
        (0..20).for_each(|_| udp.talk(b"translated"));
        bywash.show(&["kernel-connections"]).to_string()
    };
    bywash.wait("the connection to be left to the kernel", |_| {
        shown(&mut udp).contains("the kernel may not translate it")
    });
    owner.kill().unwrap();
    wait_until("the table to be gone", PATIENCE, || !translates()).unwrap();
    assert!(!udp.arrives(BRIEF), "translated by a table that is gone");
    bywash.stop();
}

/// The kernel announces the mark that a packet gives its connection when it has accepted the packet. Here it drops it:
/// the router's own ICMP error.
#[test]
fn a_mark_that_a_dropped_packet_sets_is_noticed() {
    require!(require_lab(), has_tool("nft"));
    for level in LEVELS {
        let lab = Topology::builder().static_neighbours(true).build().unwrap();
        lab.r()
            .nft(
                "table inet filter {
                     chain output { type filter hook output priority 0; icmp type time-exceeded ct mark set 1 drop; }
                     chain forward { type filter hook forward priority 0; ct mark 1 drop; ct state established accept; }
                 }",
            )
            .unwrap();
        let bywash = run(&lab, level);
        let mut udp = Ends::udp(&lab, lab.b().v4.into());
        bywash.wait("the connection to be left to the kernel", |bywash| {
            (0..20).for_each(|_| udp.talk(b"not marked"));
            bywash.show(&["kernel-connections"]).to_string().contains("mark of the connection")
        });
        assert!(udp.arrives(PATIENCE), "{level:?}");
        let Ends::Udp(near, _) = &udp else { unreachable!() };
        near.set_ttl(1).unwrap();
        near.send(b"expires").unwrap();
        near.set_ttl(64).unwrap();
        assert!(!udp.arrives(BRIEF), "{level:?}: forwarded past a mark");
        bywash.stop();
    }
}

/// The address of a subnet's routers is anycast to `fib daddr type`, although packets to it are forwarded.
#[test]
fn addresses_of_a_subnets_routers_are_anycast() {
    require!(require_lab(), has_tool("nft"));
    for level in LEVELS {
        let lab = Topology::builder().static_neighbours(true).build().unwrap();
        let (b, far) = (lab.b(), "fd77::".parse().unwrap());
        b.ns.ip(&["address", "add", "fd77::/128", "dev", &b.interface, "nodad"]).unwrap();
        lab.r()
            .ip_batch(&format!(
                "route add fd77::/64 dev {dev}\nneigh replace fd77:: lladdr {} dev {dev} nud permanent\n",
                b.mac,
                dev = b.router_interface
            ))
            .unwrap();
        let accepting = "table inet filter { chain forward { type filter hook forward priority 0; ct state established accept; }; }";
        lab.r().nft(accepting).unwrap();
        let bywash = run(&lab, level);
        let mut udp = Ends::udp_between((&lab.a().ns, lab.a().v6.into()), (&b.ns, far), far);
        wait_for_flow(&bywash, &mut udp, "UDP");
        lab.r().run(&["nft", "insert rule inet filter forward fib daddr type != unicast drop"]).unwrap();
        wait_until("the rule to hold", PATIENCE, || udp.is_lost()).unwrap();
        // Not only until the rules have been evaluated again.
        let past = (0..20).any(|_| udp.arrives(BRIEF / 10));
        assert!(!past, "{level:?}: forwarded past a rule for anycast addresses");
        bywash.stop();
    }
}
