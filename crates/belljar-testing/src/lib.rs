//! Fixtures shared by the tests of several crates. Only tests depend on this crate.

#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod archives;
pub mod http;
pub mod wait;
