//! What a router shows beside ports, pools and workers: routes and neighbours.

use super::instance::mac;
use super::mode::View;
use crate::api::Topic;
use bywash_engine::PortId;
use bywash_route::model::Prefix;
use bywash_router::control::{Control, PortView, RouteStatus, RouteView};
use bywash_sync::Counter;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// Ports' names, by number.
pub type Names = Arc<Mutex<Vec<String>>>;

/// The router, for the API.
pub struct Routes {
    pub control: Arc<Mutex<Control>>,
    pub names: Names,
    /// Packets taken from workers that the kernel did not take back, by port.
    pub punt_failed: Arc<[Counter]>,
}

impl View for Routes {
    fn ports(&self) -> Vec<PortView> {
        self.control.lock().expect("control").ports().collect()
    }

    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Value, String> {
        let filter = filter.map(parse_prefix).transpose()?;
        match topic {
            Topic::Drift => super::drift::drift(&self.control),
            Topic::Routes => Ok(self.routes(filter)),
            Topic::Neighbours => Ok(self.neighbours(filter)),
            _ => Err(format!("a router has no {}", topic.name())),
        }
    }

    fn punt_failed(&self, port: PortId) -> u64 {
        self.punt_failed.get(usize::from(port.0)).map_or(0, Counter::get)
    }
}

impl Routes {
    fn routes(&self, filter: Option<Prefix>) -> Value {
        let control = self.control.lock().expect("control");
        let shown = control.routes().filter(|r| filter.is_none_or(|f| related(r.prefix, f)));
        shown.map(|r| self.route(&r)).collect()
    }

    fn route(&self, r: &RouteView) -> Value {
        let hops: Vec<Value> = r
            .next_hops
            .iter()
            .map(|h| {
                json!({
                    "via": h.via,
                    "port": h.port.map(|p| self.port(p)),
                    "interface": h.dev,
                    "state": h.state,
                    "weight": h.weight,
                })
            })
            .collect();
        json!({
            "prefix": r.prefix.to_string(),
            "table": r.table,
            "kind": r.kind,
            "metric": r.metric,
            "protocol": r.protocol,
            "next_hops": hops,
            "mtu": r.mtu,
            "source": r.source,
            "installed": r.status == RouteStatus::Installed,
            "reason": (r.status != RouteStatus::Installed).then_some(r.status),
        })
    }

    fn neighbours(&self, filter: Option<Prefix>) -> Value {
        let control = self.control.lock().expect("control");
        let shown = control.neighbours().filter(|n| filter.is_none_or(|f| covers(f, host(n.addr))));
        shown
            .map(|n| {
                json!({
                    "addr": n.addr,
                    "interface": n.dev,
                    "port": n.port.map(|p| self.port(p)),
                    "mac": n.mac.map(mac),
                    "state": n.state,
                    "installed": n.installed,
                })
            })
            .collect()
    }

    fn port(&self, id: PortId) -> String {
        self.names.lock().expect("names").get(usize::from(id.0)).map_or("?".into(), String::clone)
    }
}

fn host(addr: IpAddr) -> Prefix {
    Prefix { addr, len: if addr.is_ipv4() { 32 } else { 128 } }
}

fn parse_prefix(text: &str) -> Result<Prefix, String> {
    let wrong = || format!("`{text}` is neither an address nor a prefix such as 10.0.0.0/8");
    let (addr, len) = match text.split_once('/') {
        Some((addr, len)) => (addr, Some(len.parse::<u8>().map_err(|_| wrong())?)),
        None => (text, None),
    };
    let whole = host(addr.parse().map_err(|_| wrong())?);
    let len = len.unwrap_or(whole.len);
    if len > whole.len { Err(wrong()) } else { Ok(Prefix { len, ..whole }) }
}

/// Whether `outer` contains `inner`.
fn covers(outer: Prefix, inner: Prefix) -> bool {
    let bits = |a: IpAddr| match a {
        IpAddr::V4(a) => u128::from(a.to_bits()) << 96,
        IpAddr::V6(a) => a.to_bits(),
    };
    let shift = 128 - u32::from(outer.len);
    let head = |a| bits(a).checked_shr(shift).unwrap_or(0);
    outer.addr.is_ipv4() == inner.addr.is_ipv4() && outer.len <= inner.len && head(outer.addr) == head(inner.addr)
}

/// Routes within a prefix, or covering it.
fn related(route: Prefix, filter: Prefix) -> bool {
    covers(route, filter) || covers(filter, route)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        let p = |t| parse_prefix(t).unwrap();
        assert!(covers(p("0.0.0.0/0"), p("10.1.2.3")) && !covers(p("::/0"), p("10.1.2.3")));
        assert!(covers(p("10.0.0.0/8"), p("10.1.0.0/16")) && !covers(p("10.1.0.0/16"), p("10.0.0.0/8")));
        assert!(!covers(p("10.0.0.0/8"), p("11.0.0.1")) && covers(p("fd00::/8"), p("fd12::1")));
        assert!(related(p("0.0.0.0/0"), p("10.0.0.0/8")) && related(p("10.1.2.0/24"), p("10.0.0.0/8")));
        for bad in ["", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "x", "10.0.0.0/"] {
            assert!(parse_prefix(bad).is_err(), "{bad}");
        }
    }
}
