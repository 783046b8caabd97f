//! Black-box tests of the commands that use the service: without a server, with one, and with invalid arguments. Each test
//! has a home of its own, and so a background server of its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod approvals;
mod background;
mod code;
mod commands;
mod copy;
mod docker;
mod documented;
mod fixture;
mod gvisor;
mod help;
mod refused;
#[path = "../cli/terminal.rs"]
mod terminal;
mod terminals;
mod tools;
