//! Synchronisation primitives: `std::sync` in normal builds, the loom equivalents under `--cfg loom`, so that the
//! lock-free code is model-checked unchanged.

#[cfg(not(loom))]
pub use std::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread,
};

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
    thread,
};
