//! Rulesets of the programs that people use: established connections are forwarded past the kernel, and a change by the
//! program holds at once. ufw, firewalld, Docker and Shorewall load their rules themselves, in
//! the router's namespace, with directories of their own. Those of programs that cannot run here are in `rulesets/`.

use crate::flows::{BRIEF, Ends, router, run, wait_for_flow, wait_until_followed};
use crate::harness::{Bywash, PATIENCE};
use bywash_lab::{Process, Topology, has_tool, require, require_lab, run_host_with_timeout, wait_until};
use std::net::SocketAddr;
use std::time::Duration;

const LEVEL: &str = "level = \"auto\"\n";

/// Gives a program its own /etc, /var and /run, with what is there in the former two to begin with.
const PRIVATE: &str = "
set -e
mount -t tmpfs tmpfs /mnt
for name in etc var; do
    mkdir /mnt/$name /mnt/$name.work
    mount -t overlay overlay -o lowerdir=/$name,upperdir=/mnt/$name,workdir=/mnt/$name.work /$name
done
mount -t tmpfs tmpfs /run
mkdir -p /run/dbus /run/lock
";

/// Line that a script prints at its end. Programs log "ready", and "already".
const LOADED: &str = "== the rules are loaded ==";

/// A program in the router's network namespace with its own directories, and its processes.
struct Program<'a> {
    lab: &'a Topology,
    process: Process,
}

impl<'a> Program<'a> {
    /// Runs a script, and waits until it has come to its end, where it stays.
    fn start(lab: &'a Topology, script: &str) -> Self {
        let net = format!("--net={}", lab.r().path().display());
        let script = format!("{PRIVATE}{script}\necho {LOADED}\nexec sleep infinity\n");
        // `ip netns exec` would hide /sys/fs/cgroup, without which Docker does not start.
        // Without its own /proc, Docker does not find back to its network namespace, and has rules loaded in another.
        let own = ["unshare", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child", "sh", "-c", &script];
        let own = [&["nsenter", &net][..], &own].concat();
        let mut process = Process::start(&own).unwrap();
        process.wait_for_output(LOADED, PATIENCE).unwrap();
        Self { lab, process }
    }

    /// Runs a command of the program.
    fn run(&self, command: &str) -> String {
        let pid = self.process.pid().to_string();
        let net = format!("--net={}", self.lab.r().path().display());
        let processes = format!("--pid=/proc/{pid}/ns/pid_for_children");
        let argv = ["nsenter", "--target", &pid, "--mount", &processes, &net, "sh", "-ec", command];
        run_host_with_timeout(&argv, PATIENCE).unwrap().stdout
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the program printed: {}", self.process.output());
        }
    }
}

/// Opens connections of both families and protocols and waits until they are forwarded past the kernel. Returns that of
/// UDP.
fn check(bywash: &Bywash, lab: &Topology) -> Ends {
    let mut udp = Ends::udp(lab, lab.b().v4.into());
    let mut tcp = Ends::tcp(lab, lab.b().v4.into());
    let mut tcp6 = Ends::tcp(lab, lab.b().v6.into());
    for (ends, what) in [(&mut tcp, "TCP"), (&mut tcp6, "TCP over IPv6"), (&mut udp, "UDP")] {
        wait_for_flow(bywash, ends, what);
    }
    udp
}

fn lab() -> Topology {
    Topology::builder().static_neighbours(true).build().unwrap()
}

/// Returns whether a TCP connection from a to b can be opened within this number of seconds.
fn opens(lab: &Topology, seconds: f32) -> bool {
    let script = format!("timeout {seconds} bash -c ': </dev/tcp/{}/22'; [ $? = 1 ]", lab.b().v4);
    // The port is closed: a refusal by b passes the router, too.
    lab.a().ns.try_run(&["sh", "-c", &script], PATIENCE).unwrap().status.success()
}

fn shows(bywash: &Bywash, what: &str) {
    println!("{what}\n{}\n{}", bywash.text(&["firewall"]), bywash.text(&["kernel-connections"]));
}

#[test]
fn ufw() {
    require!(require_lab(), has_tool("ufw"), has_tool("nsenter"));
    let lab = lab();
    let ufw = Program::start(&lab, "ufw route allow in on r0 out on r1\nufw --force enable");
    let bywash = run(&lab, LEVEL);
    let mut udp = check(&bywash, &lab);
    shows(&bywash, "ufw");
    assert!(opens(&lab, 30.0));
    // The rule concerns new connections: those that are established are accepted before it, by the kernel, too.
    ufw.run("ufw route insert 1 deny in on r0");
    assert!(!opens(&lab, 0.5), "the new rule does not hold");
    wait_for_flow(&bywash, &mut udp, "UDP under the new rules");
    bywash.stop();
}

const FIREWALLD: &str = r#"
cd /etc/firewalld
for zone in internal:r0 external:r1; do
    sed "s/<\/short>/&<interface name=\"${zone#*:}\"\/>/" /usr/lib/firewalld/zones/${zone%:*}.xml >zones/${zone%:*}.xml
done
echo '<policy target="ACCEPT"><ingress-zone name="internal"/><egress-zone name="external"/></policy>' >policies/out.xml
dbus-daemon --system --nopidfile --fork
firewalld --nofork --nopid &
until firewall-cmd --state >&2; do sleep 0.1; done
"#;

#[test]
fn firewalld() {
    require!(require_lab(), has_tool("firewalld"), has_tool("dbus-daemon"), has_tool("nsenter"));
    let lab = lab();
    let firewalld = Program::start(&lab, FIREWALLD);
    let bywash = run(&lab, LEVEL);
    let mut udp6 = Ends::udp(&lab, lab.b().v6.into());
    let mut udp = check(&bywash, &lab);
    shows(&bywash, "firewalld");
    // Its rules drop packets of IPv6 whose source is not routed through the interface that receives them.
    wait_for_flow(&bywash, &mut udp6, "UDP over IPv6");
    let route = |change: &str| lab.r().ip(&["-6", "route", change, "fd00:1::/64", "dev", "r0"]).unwrap();
    route("del");
    let (begun, waited) = (std::time::Instant::now(), bywash.waited());
    wait_until("the route's removal to hold", PATIENCE, || udp6.is_lost()).unwrap();
    // Without the change of routes, connections are judged again after 15 s.
    let starved = bywash.waited().saturating_sub(waited) > Duration::from_millis(200);
    assert!(begun.elapsed() < bywash_lab::patience(Duration::from_secs(5)) || starved, "judged late");
    assert!(!udp6.arrives(BRIEF), "forwarded past the rule about sources");
    route("add");
    wait_for_flow(&bywash, &mut udp6, "UDP over IPv6 again");
    firewalld.run("firewall-cmd --reload");
    wait_for_flow(&bywash, &mut udp, "UDP after the reload");
    firewalld.run("firewall-cmd --panic-on");
    wait_until("panic mode to hold", PATIENCE, || udp.is_unanswered()).unwrap();
    assert!(!udp.answered(BRIEF), "forwarded past panic mode");
    firewalld.run("firewall-cmd --panic-off");
    wait_for_flow(&bywash, &mut udp, "UDP after panic mode");
    bywash.stop();
}

const DOCKERD: &str = "
start() {
    dockerd --data-root /run/data --exec-root /run/exec --pidfile /run/pid -H unix:///run/docker.sock \
        --storage-driver vfs & daemon=$!
}
start
until docker version >&2; do
    kill -0 $daemon 2>/dev/null || start
    sleep 0.1
done
docker network create other >&2
# As for a container with a published port, whose address is the server's.
iptables -t nat -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.0.2.2:80
iptables -A DOCKER -d 10.0.2.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
";

#[test]
fn docker() {
    require!(require_lab(), has_tool("dockerd"), has_tool("docker"), has_tool("iptables"), has_tool("nsenter"));
    let lab = lab();
    let docker = Program::start(&lab, DOCKERD);
    let bywash = run(&lab, LEVEL);
    let udp = check(&bywash, &lab);
    shows(&bywash, "Docker");
    let mut published = Ends::tcp_to(&lab, (lab.a().router_v4, 8080).into(), (lab.b().v4, 80).into());
    wait_for_flow(&bywash, &mut published, "a published port");
    docker.run("iptables -I DOCKER-USER -i r1 -p udp -j DROP");
    wait_until("the new rule to hold", PATIENCE, || udp.is_unanswered()).unwrap();
    assert!(!udp.answered(BRIEF), "forwarded past the new rule");
    wait_for_flow(&bywash, &mut published, "a published port under the new rules");
    bywash.stop();
}

/// Zones, with the settings of Shorewall's example for two interfaces.
const SHOREWALL: &str = "
cd /etc/shorewall
printf 'fw firewall\\nlan ipv4\\nwan ipv4\\n' >zones
printf '?FORMAT 2\\nlan r0 tcpflags,nosmurfs\\nwan r1 tcpflags,nosmurfs,rpfilter\\n' >interfaces
printf 'lan wan ACCEPT\\n$FW all ACCEPT\\nwan all DROP info\\nall all REJECT info\\n' >policy
printf 'MASQUERADE 10.0.1.0/24 r1\\n' >snat
sed -i 's/^STARTUP_ENABLED=.*/STARTUP_ENABLED=Yes/; s/^IP_FORWARDING=.*/IP_FORWARDING=Keep/; s/^ADMINISABSENTMINDED=.*/ADMINISABSENTMINDED=No/' shorewall.conf
shorewall -q start >&2
";

#[test]
fn shorewall() {
    require!(require_lab(), has_tool("shorewall"), has_tool("nsenter"));
    let lab = lab();
    let shorewall = Program::start(&lab, SHOREWALL);
    let bywash = run(&lab, LEVEL);
    let udp = check(&bywash, &lab);
    shows(&bywash, "Shorewall");
    // `clear` would take the rules away: `stop` lets nothing pass but what `stoppedrules` names.
    shorewall.run("shorewall -q stop >&2");
    wait_until("the stop to hold", PATIENCE, || udp.is_unanswered()).unwrap();
    assert!(!udp.answered(BRIEF), "forwarded past the stopped firewall");
    bywash.stop();
}

#[test]
fn others() {
    require!(require_lab(), has_tool("nft"), has_tool("iptables-nft-restore"));
    let lab = lab();
    let bywash = router(LEVEL).run(&lab);
    let server = SocketAddr::from((lab.b().v4, 80));
    let service = SocketAddr::from(([10, 96, 0, 10], 80));
    let published = SocketAddr::from((lab.a().router_v4, 8080));
    // UDP takes two seconds until it is established.
    let mut udp = Ends::udp(&lab, lab.b().v4.into());
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/rulesets");
    let debian = "/usr/share/doc/nftables/examples";
    // Each with an address that is translated to the server's. Most of Debian's examples have no chain that a forwarded
    // packet meets, so that their connections need no flow.
    let rulesets = [
        (format!("{own}/kube-proxy.iptables"), service),
        (format!("{own}/kube-proxy.nft"), service),
        (format!("{own}/docker.iptables"), published),
        (format!("{own}/openwrt.nft"), server),
        (format!("{debian}/all-in-one.nft"), server),
        (format!("{debian}/workstation.nft"), server),
        (format!("{debian}/nat.nft"), server),
        (format!("{debian}/overview.nft"), server),
        (format!("{debian}/ct_helpers.nft"), server),
    ];
    let mut followed = false;
    for (n, (path, to)) in rulesets.into_iter().enumerate() {
        if !std::path::Path::new(&path).exists() {
            println!("SKIP: {path}: not there");
            continue;
        }
        let load = match path.ends_with(".nft") {
            // Examples have other interfaces, and are included by relative paths.
            true => {
                format!("cd $(dirname {path}) && sed 's/eth[02]\\|bond0/r0/; s/eth1\\|bond1/r1/' {path} | nft -f -")
            }
            false => format!("iptables-nft-restore {path}"),
        };
        lab.r().nft("flush ruleset").unwrap();
        lab.r().run(&["sh", "-c", &load]).unwrap();
        // A SYN that is forwarded before these rules are known is not translated by them. A chain that is loaded after
        // them, and that forwarded packets do not meet, shows that they are.
        let last = format!("last{n}");
        let chain = "type filter hook output priority 500; ip daddr 192.0.2.1 drop;";
        lab.r().nft(&format!("table ip {last} {{ chain output {{ {chain} }}; }}")).unwrap();
        bywash.wait(&format!("{path} to be read"), |bywash| bywash.show(&["placement"]).to_string().contains(&last));
        if !followed {
            wait_until_followed(&bywash);
            followed = true;
        }
        let mut tcp = Ends::tcp_to(&lab, to, server);
        let mut tcp6 = Ends::tcp(&lab, lab.b().v6.into());
        for ends in [&mut tcp, &mut tcp6, &mut udp] {
            wait_for_flow(&bywash, ends, &path);
        }
        shows(&bywash, &path);
    }
    bywash.stop();
}
