//! Example programs. See the files beside this one, and docs/guide.md, which walks through them.

#![forbid(unsafe_code)]
