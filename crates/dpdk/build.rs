//! Compiles the shim against the installed libdpdk and links with it. Does nothing without the feature `dpdk`.

fn main() {
    println!("cargo:rerun-if-changed=shim/port.c");
    #[cfg(feature = "dpdk")]
    dpdk();
}

#[cfg(feature = "dpdk")]
fn dpdk() {
    // The EAL loads drivers at run time; of the libraries, the linker keeps only those the shim uses.
    println!("cargo:rustc-link-arg=-Wl,--as-needed");
    let found = match pkg_config::Config::new().atleast_version("22.11").probe("libdpdk") {
        Ok(found) => found,
        Err(e) => panic!("the feature `dpdk` needs libdpdk 22.11 or later (Debian: libdpdk-dev, pkg-config): {e}"),
    };
    let mut shim = cc::Build::new();
    shim.file("shim/port.c").includes(&found.include_paths).warnings(true).extra_warnings(true);
    for (name, value) in &found.defines {
        shim.define(name, value.as_deref());
    }
    // Headers need instruction set options (SSSE3 on x86) that the pkg-config crate does not pass on.
    let flags = std::process::Command::new("pkg-config").args(["--cflags-only-other", "libdpdk"]).output();
    let flags = flags.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let mut words = flags.split_whitespace();
    while let Some(word) = words.next() {
        shim.flag(word);
        if word == "-include" {
            shim.flag(words.next().unwrap_or("rte_config.h"));
        }
    }
    shim.flag("-Wno-deprecated-declarations").opt_level(3).compile("bywash_dpdk_port");
}
