//! AF_XDP ports on veth, in network namespaces of their own.

mod beside;
mod inject;
mod lifecycle;
mod long;
mod rig;
mod traffic;
mod transmit;
mod verdicts;
