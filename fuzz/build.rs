//! Compiles the sources of the router's XDP program for the host, with libFuzzer's counters and checks of the compiler.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "targets")]
    targets();
}

#[cfg(feature = "targets")]
fn targets() {
    /// The compiler of the programs in the kernel (xdp/Makefile), which takes the same C.
    const CLANG: &str = "clang-14";
    println!("cargo::rerun-if-changed=xdp");
    println!("cargo::rerun-if-changed=../xdp");
    if let Err(e) = std::process::Command::new(CLANG).arg("--version").output() {
        panic!("the fuzz target of the XDP program needs {CLANG} (tools/setup.sh fuzz installs it): {e}");
    }
    // Linked by the target that declares its functions, not by the library that all targets use.
    println!("cargo::rustc-link-search=native={}", std::env::var("OUT_DIR").expect("set by cargo"));
    cc::Build::new()
        .cargo_metadata(false)
        .compiler(CLANG)
        .file("xdp/harness.c")
        .include("xdp/include")
        .include("../xdp")
        .opt_level(1)
        .debug(true)
        .warnings_into_errors(true)
        .flag("-fno-strict-aliasing")
        .flag("-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp")
        // Headers lie at odd addresses, as in the kernel.
        .flags(["-fsanitize=undefined", "-fno-sanitize=alignment", "-fsanitize-trap=undefined"])
        .flags(["-Wno-unused-function", "-Wno-unused-parameter"])
        .compile("xdp");
}
