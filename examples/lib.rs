//! See the examples beside this file, and docs/guide.md, which walks through them.

#![forbid(unsafe_code)]
