//! `/metrics`, scraped by Prometheus: the rules are valid, and every query of the dashboard returns data.

use crate::harness::{Bywash, PATIENCE};
use bywash_lab::{Namespace, Ping, Topology, has_tool, require, require_lab, run_host, wait_until};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

const METRICS: &str = "127.0.0.1:9469";
const PROMETHEUS: &str = "127.0.0.1:9090";

fn contrib(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(file)
}

/// Returns the whole answer to `GET path`, requested in the namespace.
fn get(namespace: &Namespace, path: &str) -> String {
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&METRICS.parse::<SocketAddr>().unwrap(), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    namespace.enter(exchange).unwrap().unwrap()
}

#[test]
fn rules_are_valid() {
    require!(has_tool("promtool"));
    let rules = contrib("prometheus/bywash.rules.test.yml");
    run_host(&["promtool", "test", "rules", rules.to_str().unwrap()]).unwrap();
    let config = contrib("prometheus/prometheus.yml");
    run_host(&["promtool", "check", "config", config.to_str().unwrap()]).unwrap();
}

#[test]
fn prometheus_scrapes_it_and_the_dashboard_has_data() {
    require!(require_lab());
    require!(has_tool("prometheus"));
    require!(has_tool("promtool"));
    let lab = Topology::router().unwrap();
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = place.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let ports: String =
        lab.router_interfaces().iter().map(|name| format!("[[port]]\ninterface = \"{name}\"\n")).collect();
    let config = file("bywash.toml", &format!("[api]\nmetrics = \"{METRICS}\"\n{ports}"));
    let bywash = Bywash::run_as_is(lab.r(), &["--config", &config, "--level", "user"]);

    let answer = get(lab.r(), "/metrics");
    let (header, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(header.starts_with("HTTP/1.1 200 ") && header.contains("version=0.0.4"), "{header}");
    let scraped = file("metrics.txt", body);
    // promtool reads metrics from standard input only.
    lab.r().run(&["sh", "-c", &format!("promtool check metrics < {scraped}")]).unwrap();
    assert!(
        body.contains("\nbywash_port_up{port=\"r0\",network_interface_name=\"r0\",kind=\"af_xdp\",level=\"user\"} 1\n")
    );
    // The address for metrics serves nothing else.
    assert!(get(lab.r(), "/v1/config").starts_with("HTTP/1.1 404 "));

    let scrape = format!(
        "global: {{scrape_interval: 250ms}}\nscrape_configs:\n  \
         - {{job_name: bywash, static_configs: [{{targets: ['{METRICS}']}}]}}\n"
    );
    let (scrape, data) = (file("prometheus.yml", &scrape), place.path().join("data"));
    let (scrape, data) = (format!("--config.file={scrape}"), format!("--storage.tsdb.path={}", data.display()));
    let listen = format!("--web.listen-address={PROMETHEUS}");
    let mut prometheus = lab.r().spawn(&["prometheus", &scrape, &data, &listen]).unwrap();
    // The traffic includes forwarded packets and one that is dropped with an ICMP error.
    let to = lab.b().v4;
    assert_eq!(Ping::to(to).count(1).ttl(1).run(&lab.a().ns).unwrap().received, 0);
    let mut ping = lab.a().ns.spawn(&["ping", "-q", "-i", "0.01", "-c", "6000", &to.to_string()]).unwrap();

    let ask = |query: &str| {
        let server = format!("http://{PROMETHEUS}");
        let answer = lab.r().try_run(&["promtool", "query", "instant", &server, query], PATIENCE).unwrap();
        answer.stdout
    };
    let dashboard: Value =
        serde_json::from_str(&std::fs::read_to_string(contrib("grafana/bywash.json")).unwrap()).unwrap();
    let queries: Vec<&str> = dashboard["panels"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|p| p["targets"].as_array())
        .flatten()
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(queries.len() > 15);
    for query in queries {
        let query = query.replace("$instance", ".*").replace("$__rate_interval", "1m");
        let mut last = String::new();
        let data = wait_until("data", PATIENCE, || {
            last = ask(&query);
            // `NaN` results from a division by zero and is no data.
            last.contains("=> ") && last.lines().any(|line| !line.contains("=> NaN"))
        });
        data.unwrap_or_else(|why| panic!("{query}: {why}: {last}; {}", prometheus.output()));
    }
    let moved = ask("sum(rate(system_network_packet_count_total{network_io_direction=\"transmit\"}[1m])) > 0");
    assert!(moved.contains("=> "), "{moved}");
    ping.kill().unwrap();
    prometheus.terminate(PATIENCE).unwrap();
    bywash.stop();
}
