//! Guests that inherit nothing and listen on a Unix socket, which is reached directly, or through a program that copies between it and its
//! standard streams.

#[path = "listening/greetings.rs"]
mod greetings;
#[path = "listening/guest.rs"]
mod guest;

use std::process::ExitCode;

fn main() -> ExitCode {
    // This program is also the guest, and what connects streams to it.
    belljar_guest::enter();
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), greetings::trials()).exit_code()
}
