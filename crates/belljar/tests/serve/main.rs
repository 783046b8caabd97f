//! Black-box tests of `belljar serve`: real processes on free ports, each with a home of its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod backup;
mod config;
mod deploy;
mod fixture;
mod http;
mod keepers;
mod live;
mod log;
mod metrics;
mod otlp;
mod pages;
#[path = "../../../belljar-store/tests/store/postgres.rs"]
#[allow(dead_code, reason = "shared with the tests of the store, which need more of it")]
mod postgres;
mod reload;
mod restart;
mod sockets;
mod start;
