//! End-to-end tests of `bywash run` through its users' interfaces: the command line, the network, `bywash show`.
//!
//! Every test builds hosts around a router in network namespaces of its own, runs the program in the router's, and
//! leaves nothing behind. `BYWASH_UNDER_TEST=/usr/local/bin/bywash` tests an installed program instead of this build.

mod afxdp;
mod around;
mod bpf;
mod bridges;
mod broken_devices;
mod capture;
mod carrier;
mod churn;
mod cmts;
mod daemons;
mod doctor;
#[cfg(feature = "dpdk")]
mod dpdk;
#[cfg(feature = "dpdk")]
mod dpdk_lab;
mod drift;
mod evpn;
mod fail_open;
mod faults;
mod flow_table;
mod flows;
mod follow;
mod footprint;
mod forward;
mod frr;
mod full_tables;
mod garbage;
mod hang;
mod harness;
mod held_flows;
mod hostile;
mod input;
mod interfaces;
mod jumbo;
mod kit;
mod lifetimes;
mod limits;
mod load;
mod macvlans;
mod memif;
mod metrics;
mod moves;
mod nics;
mod npe;
mod panics;
mod peers;
mod policies;
mod pools;
mod profile;
mod raw;
mod redirected;
mod relations;
mod reload;
mod rules;
mod rulesets;
mod sandbox;
mod scale_out;
mod scan;
mod schema;
mod soak;
mod spread;
mod switch;
mod switch_driver;
mod takeover;
mod tcp;
mod timeouts;
mod top;
mod trace;
mod tunnel;
mod unannounced;
mod user_program;
mod vrrp;
mod web;
