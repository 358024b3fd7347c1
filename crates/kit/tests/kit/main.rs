//! Applications on the kit, between hosts in network namespaces.

mod checksums;
mod lab;
mod routes;
mod twin;
mod workers;
