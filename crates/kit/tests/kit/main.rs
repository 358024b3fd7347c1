//! Applications on the kit, between hosts in network namespaces.

mod lab;
mod workers;
