//! The API with a real keeper and real sandboxes of the local engine, over loopback.

#![expect(clippy::unwrap_used, reason = "a case that fails says so")]

#[path = "api/approvals.rs"]
mod approvals;
#[path = "api/code.rs"]
mod code;
#[path = "api/commands.rs"]
mod commands;
#[path = "common/fixture.rs"]
mod common;
#[path = "api/console.rs"]
mod console;
#[path = "api/document.rs"]
mod document;
#[path = "api/echo.rs"]
mod echo;
#[path = "api/events.rs"]
mod events;
#[path = "api/fields.rs"]
mod fields;
#[path = "api/files.rs"]
mod files;
#[path = "api/fixture.rs"]
mod fixture;
#[path = "api/generated.rs"]
mod generated;
#[path = "api/guards.rs"]
mod guards;
#[path = "api/mcp.rs"]
mod mcp;
#[path = "api/mcp_tasks.rs"]
mod mcp_tasks;
#[path = "api/network.rs"]
mod network;
#[path = "api/ports.rs"]
mod ports;
#[path = "api/profiles.rs"]
mod profiles;
#[path = "api/property.rs"]
mod property;
#[path = "api/sandboxes.rs"]
mod sandboxes;
#[path = "api/screen.rs"]
mod screen;
#[path = "api/secrets.rs"]
mod secrets;
#[path = "api/serving.rs"]
mod serving;
#[path = "api/session.rs"]
mod session;
#[path = "api/terminals.rs"]
mod terminals;
#[path = "api/tools.rs"]
mod tools;

use std::process::ExitCode;

use belljar_testing::http as client;
use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    // This program is also the sandboxes' guest.
    belljar_guest::enter();
    belljar_screen::enter_screener();
    let arguments = Arguments::from_args();
    // Pausing and live limits need control groups, which an ordinary user may not have.
    let ignored = !rustix::process::geteuid().is_root();
    let lists = [
        approvals::all(),
        code::all(),
        commands::all(),
        console::all(),
        document::all(),
        echo::all(),
        events::all(),
        fields::all(),
        files::all(),
        generated::all(),
        guards::all(),
        mcp::all(),
        mcp_tasks::all(),
        network::all(),
        ports::all(),
        profiles::all(),
        property::all(),
        sandboxes::all(),
        screen::all(),
        secrets::all(),
        serving::all(),
        session::all(),
        terminals::all(),
        tools::all(),
    ];
    let trials = lists.into_iter().flatten().map(|(name, case)| {
        Trial::test(name, move || {
            fixture::run(case);
            Ok(())
        })
        .with_ignored_flag(ignored)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
