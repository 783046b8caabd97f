//! The commands that speak with a server: `belljar sandbox`, `volume`, `key`, `secret`, `template`, `approval`, `image`, `audit`, `events`, `gc`.

mod approval;
pub(crate) mod args;
mod audit;
mod build;
mod build_display;
mod collect;
mod console;
pub(crate) mod copy;
mod create;
mod dockerfile;
mod events;
mod exec;
pub(crate) mod image;
pub(crate) mod key_args;
mod keys;
pub(crate) mod link;
pub(crate) mod long;
mod mcp;
mod network;
mod ports;
mod probe;
mod process;
mod sandbox;
mod secrets;
pub(crate) mod server_args;
pub(crate) mod show;
mod start;
mod status;
pub(crate) mod template_args;
mod terminal;
mod tool;
pub(crate) mod tool_args;
mod tool_files;
pub(crate) mod tree;
pub(crate) mod values;
mod volume;

use belljar_client::ClientError;
use belljar_engine::{ErrorCode, GuestError, THIS_COMMAND};

use crate::cli::{NetCheckArgs, NetProbeArgs};
use crate::message::{Quit, chain};
use crate::net::Verdict;
use crate::run::{name_this_command, runtime};
use args::SandboxCommandArgs;
use key_args::{KeyCommandArgs, SecretCommandArgs};
use link::Link;
use server_args::{AuditCommandArgs, CollectArgs, ConsoleArgs, EventsArgs, StatusArgs, TopArgs};
use template_args::{ImageCommandArgs, TemplateCommandArgs, VolumeCommandArgs};
use tool_args::{ApprovalCommandArgs, McpArgs, ToolCommandArgs};

/// Advice for what does not exist, by the code of the error.
const MISSING: [(&str, &str); 2] = [
    (
        "template_not_found",
        "belljar template ls lists templates, belljar template build FILE builds one, and --image names an image",
    ),
    ("volume_not_found", "belljar volume ls lists volumes, belljar volume create NAME creates one"),
];

/// Adds a hint to an error if the server requires a key. A value that the server refuses is wrong usage, as if it were refused here.
pub(crate) fn with_hint(quit: Quit) -> Quit {
    match hint(quit) {
        Quit::Error(error) if error.to_string().contains(THIS_COMMAND) => {
            anyhow::anyhow!(name_this_command(&error.to_string())).into()
        }
        other => other,
    }
}

fn hint(quit: Quit) -> Quit {
    let Quit::Error(error) = quit else { return quit };
    if error.downcast_ref::<ClientError>().is_some_and(|error| error.is("invalid_field")) {
        return Quit::Usage(chain(error.as_ref()));
    }
    if let Some(ClientError::Unreachable { target, .. }) = error.downcast_ref() {
        let cause = error.root_cause().to_string();
        // The number of the error says nothing more.
        let cause = cause.split(" (os error").next().unwrap_or_default();
        let advice = match cause {
            _ if cause.contains("certificate") => {
                "give its authority with --cacert FILE, and a name that is in the certificate"
            }
            _ if cause.contains("frame with invalid size") => {
                "if it uses TLS, its address begins with https://"
            }
            _ if cause.contains("received corrupt message") => {
                "if it does not use TLS, its address begins with http://"
            }
            _ => {
                "start one there with belljar serve, or leave out --server and BELLJAR_API_URL to use the one of this user's home"
            }
        };
        return anyhow::anyhow!("cannot reach the server at {target}: {cause}; {advice}").into();
    }
    if error.downcast_ref::<ClientError>().is_some_and(|error| error.is("machine_full"))
        && error.to_string().contains("another template is being built")
    {
        return anyhow::anyhow!("{error}; belljar template builds lists builds").into();
    }
    let is_missing = |cause: &(dyn std::error::Error + 'static)| {
        let guest = cause.downcast_ref::<GuestError>();
        cause.downcast_ref::<ClientError>().is_some_and(|error| error.is("sandbox_not_found"))
            || matches!(guest, Some(GuestError::Refused { problem: Some(code), .. }) if code == "sandbox_not_found")
    };
    if error.chain().any(is_missing) {
        let error = chain(error.as_ref());
        return anyhow::anyhow!(
            "{error}; belljar sandbox ls lists sandboxes, with --all also those that have ended"
        )
        .into();
    }
    for (code, advice) in MISSING {
        if error.downcast_ref::<ClientError>().is_some_and(|error| error.is(code)) {
            let text = chain(error.as_ref());
            let advice = build::advise_included(&text).unwrap_or_else(|| advice.to_owned());
            return anyhow::anyhow!("{text}; {advice}").into();
        }
    }
    if let Some(text) = error.downcast_ref().and_then(with_request_id) {
        return anyhow::anyhow!(text).into();
    }
    let needs_key = error.chain().any(|cause| {
        cause.downcast_ref::<ClientError>().is_some_and(|error| error.is("unauthenticated"))
            || cause.downcast_ref::<GuestError>().is_some_and(|error| error.is(ErrorCode::Unauthenticated))
    });
    if !needs_key {
        return Quit::Error(error);
    }
    let text = chain(error.as_ref());
    anyhow::anyhow!("{text}; give a key of this server with --api-key or BELLJAR_API_KEY").into()
}

/// Returns the message of a fault of the server with the id of the request, under which its log has the reason.
fn with_request_id(error: &ClientError) -> Option<String> {
    let ClientError::Refused { rpc, message, request_id, .. } = error else { return None };
    let is_fault = matches!(rpc, ErrorCode::Internal | ErrorCode::Unavailable | ErrorCode::DataLoss);
    // Advice is complete, and ends with a command.
    let has_advice = message.contains(THIS_COMMAND);
    (is_fault && !has_advice && !request_id.is_empty()).then(|| {
        match message.strip_suffix("this request_id") {
            Some(before) => format!("{before}{request_id}"),
            None => format!("{message} (request {request_id})"),
        }
    })
}

/// Runs `belljar sandbox`.
pub(crate) fn sandbox(args: &SandboxCommandArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async {
        let link = Link::open(&args.server).await?;
        sandbox::run(&link, &args.command).await.map_err(|quit| link.explain(quit))
    })
}

/// Runs `belljar volume`.
pub(crate) fn volume(args: &VolumeCommandArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async {
        let link = Link::open(&args.server).await?;
        volume::run(&link, &args.command).await.map_err(|quit| link.explain(quit))
    })
}

/// Runs `belljar key`.
pub(crate) fn key(args: &KeyCommandArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { keys::keys(&Link::open(&args.server).await?, &args.command).await })
}

/// Runs `belljar secret`.
pub(crate) fn secret(args: &SecretCommandArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { secrets::secrets(&Link::open(&args.server).await?, &args.command).await })
}

/// Runs `belljar template`.
pub(crate) fn template(args: &TemplateCommandArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { keys::templates(&Link::open(&args.server).await?, &args.command).await })
}

/// Runs `belljar image`.
pub(crate) fn image(args: &ImageCommandArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { image::images(&Link::open(&args.server).await?, &args.command).await })
}

/// Runs `belljar approval`.
pub(crate) fn approval(args: &ApprovalCommandArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { approval::approvals(&Link::open(&args.server).await?, &args.command).await })
}

/// Runs `belljar console`.
pub(crate) fn console(args: &ConsoleArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { console::print_link(&Link::open(&args.server).await?).await })
}

/// Runs `belljar tool`.
pub(crate) fn tool(args: &ToolCommandArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { tool::tools(&Link::open(&args.server).await?, &args.command).await })
}

/// Runs `belljar mcp`.
pub(crate) fn mcp(args: &McpArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { mcp::run(&Link::open(&args.server).await?, args).await })
}

/// Runs `belljar net probe`.
pub(crate) fn net_probe(args: &NetProbeArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { probe::probe(&Link::open(&args.server).await?, args).await })
}

/// Returns what the policy of a sandbox says of the hosts of `belljar net check`.
pub(crate) fn net_check(args: &NetCheckArgs, sandbox: &str) -> Result<Vec<Verdict>, Quit> {
    runtime()?
        .block_on(async { network::forecast(&Link::open(&args.server).await?, sandbox, &args.hosts).await })
}

/// Runs `belljar audit`.
pub(crate) fn audit(args: &AuditCommandArgs) -> Result<u8, Quit> {
    runtime()?.block_on(audit::run(&args.server, &args.command))
}

/// Runs `belljar events`.
pub(crate) fn events(args: &EventsArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { events::run(&Link::open(&args.server).await?, args).await })
}

/// Runs `belljar status`.
pub(crate) fn status(args: &StatusArgs) -> Result<u8, Quit> {
    runtime()?.block_on(status::status(args))
}

/// Runs `belljar top`.
pub(crate) fn top(args: &TopArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { status::top(&Link::open(&args.server).await?, args).await })
}

/// Runs `belljar gc`.
pub(crate) fn collect(args: &CollectArgs) -> Result<u8, Quit> {
    runtime()?.block_on(async { collect::run(&Link::open(&args.server).await?, args).await })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_the_server_have_the_id_of_the_request() {
        let message = |rpc, message: &str, id: &str| {
            with_request_id(&ClientError::Refused {
                code: "x".to_owned(),
                rpc,
                message: message.to_owned(),
                field: None,
                request_id: id.to_owned(),
                retry_after: None,
            })
        };
        let logged = "internal server error; the log has more under this request_id";
        assert_eq!(
            message(ErrorCode::Internal, logged, "req_1").as_deref(),
            Some("internal server error; the log has more under req_1")
        );
        assert_eq!(message(ErrorCode::Unavailable, "busy", "req_1").as_deref(), Some("busy (request req_1)"));
        assert_eq!(message(ErrorCode::Internal, logged, ""), None);
        assert_eq!(message(ErrorCode::NotFound, "not found", "req_1"), None);
    }
}
