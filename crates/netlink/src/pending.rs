//! Objects that have changed since the last report, with their values at that time: several changes to one object are
//! reported as one.

use crate::parse::RouteKey;
use crate::state::RouteBody;
use bywash_fib::model::{Address, Behind, Link, Mac, Neighbour, Prefix};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Old values; `None` for objects that did not exist.
#[derive(Debug, Default)]
pub struct Pending {
    pub links: BTreeMap<u32, Option<Link>>,
    pub addresses: BTreeMap<(u32, IpAddr, u8), Option<Address>>,
    pub routes: HashMap<RouteKey, Option<Arc<RouteBody>>>,
    /// Set if the prefix had selective routes.
    pub selective: BTreeMap<(u32, Prefix), bool>,
    pub neighbours: HashMap<(u32, IpAddr), Option<Neighbour>>,
    /// Members that led to the station of a bridge with this VLAN and MAC address.
    pub stations: HashMap<(u32, u32, Mac), Option<Behind>>,
}

impl Pending {
    pub fn len(&self) -> usize {
        let links = self.links.len() + self.addresses.len() + self.stations.len();
        links + self.routes.len() + self.selective.len() + self.neighbours.len()
    }
}
