//! What tests of several crates need. Nothing depends on it but tests.

#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod archives;
pub mod http;
pub mod wait;
