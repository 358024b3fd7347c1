//! Applications on the kit, between hosts in network namespaces.

mod checksums;
mod lab;
mod twin;
mod workers;
