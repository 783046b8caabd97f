//! The command line tool, from outside: what it prints, where, and with which status it ends.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed, wherever it stands")]

mod bad_input;
mod files;
mod guest_program;
mod host;
mod info;
mod net;
mod run;
mod shell;
mod streams;
mod terminal;
