//! `belljar serve`, from outside: real processes on free ports, each with a home of its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed, wherever it stands")]

mod config;
mod deploy;
mod http;
mod live;
mod log;
mod metrics;
mod otlp;
mod reload;
mod restart;
mod start;
mod world;
