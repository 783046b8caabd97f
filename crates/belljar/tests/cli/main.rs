//! Black-box tests of the command line tool: output, streams and exit status.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod bad_input;
mod files;
mod front;
mod guest_program;
mod host;
mod info;
mod net;
mod run;
mod screen;
mod shell;
mod streams;
mod terminal;
