//! `belljar approval`: decisions about calls that wait.

use std::time::Duration;

use belljar_client::{Method, v1};
use belljar_keeper::{
    ApprovalContent, ApprovalFinding, ApprovalInfo, ApprovalRequest, ApprovalScreening, CallingCode,
};
use belljar_model::ApprovalState;
use belljar_screen::Finding;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::build::in_path;
use super::link::Link;
use super::show::{Table, away, print, rough};
use super::tool_args::{ApprovalCommand, ApproveArgs};
use super::values;
use crate::message::{Quit, clean, one_line};

/// Maximum number of characters of code in a list.
const MAX_SUMMARY: usize = 60;

/// Time within which the calls of a budget must begin, if the command does not say.
const BUDGET_TIME: Duration = Duration::from_secs(600);

#[derive(Deserialize)]
struct Page {
    approvals: Vec<ApprovalInfo>,
    next_cursor: Option<String>,
}

/// Runs a command of `belljar approval`.
pub(crate) async fn approvals(link: &Link, command: &ApprovalCommand) -> Result<u8, Quit> {
    match command {
        ApprovalCommand::Ls { all } => list(link, *all).await?,
        ApprovalCommand::Show { id } => show(link, &link.client.fetch(&path(id)).await?)?,
        ApprovalCommand::Approve(args) => approve(link, args).await?,
        ApprovalCommand::Deny { id, note } => {
            let decided = decide(link, id, "deny", &json!({ "note": note })).await?;
            if decided.state != ApprovalState::Denied {
                let by = decided.decision.map(|decision| decision.person).unwrap_or_default();
                link.remark(&format!(
                    "it was too late to deny the call, which {by} has approved and which has begun; only its budget for further calls is ended"
                ));
            }
        }
        ApprovalCommand::Watch => watch(link).await?,
    }
    Ok(0)
}

fn path(id: &str) -> String {
    format!("/v1/approvals/{}", in_path(id))
}

async fn list(link: &Link, all: bool) -> Result<(), Quit> {
    let mut table = Table::new(&["ID", "STATE", "WHO", "CALL", "CODE", "EXPIRES"]);
    let state = if all { "" } else { "&state=pending" };
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/approvals?limit=100{state}{cursor}");
        let Page { approvals, next_cursor } = link.client.fetch(&path).await?;
        for approval in approvals {
            if link.json(&approval)? {
                continue;
            }
            let until = match approval.ended_at {
                Some(_) => "-".to_owned(),
                None => away(approval.expires_at),
            };
            let call = name(&approval.request);
            let code = summary(&approval.request);
            table.row(vec![approval.id, approval.state.to_string(), approval.requester, call, code, until]);
        }
        match next_cursor {
            Some(next) => cursor = format!("&cursor={}", in_path(&next)),
            None => return link.list(&table, 0),
        }
    }
}

/// Returns the tool, and the sandbox whose code calls it; or the action in a sandbox.
fn name(request: &ApprovalRequest) -> String {
    match (&request.tool, &request.calling_code, &request.sandbox) {
        (Some(tool), Some(code), _) => format!("{tool} by code in {}", code.sandbox),
        (Some(tool), None, _) => tool.clone(),
        (None, _, Some(sandbox)) => format!("{} in {sandbox}", request.action),
        (None, _, None) => request.action.clone(),
    }
}

fn summary(request: &ApprovalRequest) -> String {
    let argv = request.argv.iter().flatten().map(|word| word.data.as_str()).collect::<Vec<_>>().join(" ");
    let content = request.code.as_ref().or(request.command.as_ref());
    one_line(content.map_or(argv.as_str(), |content| content.data.as_str()), MAX_SUMMARY)
}

fn show(link: &Link, approval: &ApprovalInfo) -> Result<(), Quit> {
    if link.json(approval)? {
        return Ok(());
    }
    let request = &approval.request;
    let mut table = Table::new(&["id", &approval.id]);
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // What the caller has chosen must not look like another row.
            table.row(vec![name.to_owned(), value.replace('\n', "\\n")]);
        }
    };
    row("state", Some(approval.state.to_string()));
    row("who", Some(format!("{} (key {}, tenant {})", approval.requester, approval.key, approval.tenant)));
    row("call", Some(name(request)));
    row("called by", request.calling_code.as_ref().map(|code| caller(code, approval.state)));
    row("digest of calling code", request.calling_code.as_ref().map(|code| code.code_sha256.clone()));
    row("expires", Some(away(approval.expires_at)).filter(|_| approval.state == ApprovalState::Pending));
    row("template", Some(request.template.clone()));
    row("network", Some(request.network.clone()));
    row("language", request.language.clone());
    row("context", request.context.clone());
    row("session", request.session.map(|session| session.to_string()));
    row("directory", request.cwd.as_ref().map(|cwd| cwd.data.clone()));
    row("user", request.user.clone());
    row("timeout", request.timeout_ms.map(|timeout| format!("{timeout} ms")));
    for (name, value) in &request.env {
        row("env", Some(format!("{name}={value}")));
    }
    for argument in request.argv.iter().flatten() {
        row("argument", Some(argument.data.clone()));
    }
    row("risk", request.screening.as_ref().map(|found| found.risk.as_str().to_owned()));
    row("digest", Some(approval.digest.clone()));
    if let Some(decision) = &approval.decision {
        row("decided", Some(format!("by {} {}", decision.person, away(decision.at))));
        row("note", Some(decision.note.clone()).filter(|note| !note.is_empty()));
        row(
            "budget",
            decision.budget.as_ref().map(|budget| {
                let ends = if budget.until > Timestamp::now() { "ends" } else { "ended" };
                format!(
                    "{} of {} for {}, {ends} {}",
                    budget.used,
                    budget.uses,
                    budget.scope,
                    away(budget.until)
                )
            }),
        );
    }
    row("granted by", approval.granted_by.clone());
    row("outcome", approval.outcome.clone());
    table.print()?;
    if let Some(screening) = &request.screening {
        findings(screening)?;
    }
    for (name, content) in [("code", &request.code), ("command", &request.command), ("input", &request.stdin)]
    {
        if let Some(content) = content {
            part(name, content)?;
        }
    }
    request.files.iter().try_for_each(|(name, content)| part(&format!("file {name}"), content))?;
    let Some(CallingCode { code, code_bytes, .. }) = &request.calling_code else { return Ok(()) };
    let shown = code.data.len();
    let is_whole = u64::try_from(shown).is_ok_and(|shown| shown >= *code_bytes);
    let cut = if is_whole { String::new() } else { format!(" (the first {shown} of {code_bytes} bytes)") };
    part(&format!("calling code, which runs already{cut}"), code)
}

/// Returns which code makes a call, and what becomes of it until somebody decides.
fn caller(code: &CallingCode, state: ApprovalState) -> String {
    let CallingCode { sandbox, context, execution, .. } = code;
    let frozen = if state == ApprovalState::Pending { ", frozen until the decision" } else { "" };
    format!("execution {execution} in context {context} of {sandbox}{frozen}")
}

/// Prints what screening has found in a call.
fn findings(screening: &ApprovalScreening) -> Result<(), Quit> {
    let line = |one: &ApprovalFinding| {
        let ApprovalFinding { part, finding: Finding { rule, severity, line, name, meaning, .. } } = one;
        let text = format!("{} {part}:{line} {rule} {name}: {meaning}", severity.as_str());
        format!("  {}\n", clean(&text))
    };
    let mut lines: Vec<_> = screening.findings.iter().map(line).collect();
    lines.extend((screening.left_out > 0).then(|| format!("  and {} more\n", screening.left_out)));
    lines.extend(screening.unread.iter().map(|reason| format!("  not read: {}\n", clean(reason))));
    print(&format!("\nfindings (advice, not a wall):\n{}", lines.concat()))
}

/// Prints a part of a call, without control characters.
fn part(name: &str, content: &ApprovalContent) -> Result<(), Quit> {
    let lines: Vec<_> = content.data.lines().map(|line| format!("  {}\n", clean(line))).collect();
    let encoding = if content.encoding == belljar_model::Encoding::Base64 { " (base64)" } else { "" };
    print(&format!("\n{}{encoding}:\n{}", clean(name), lines.concat()))
}

async fn approve(link: &Link, args: &ApproveArgs) -> Result<(), Quit> {
    let mut body = json!({ "note": args.note });
    let within = match &args.within {
        Some(within) => values::lifetime("within", within)?,
        None => BUDGET_TIME,
    };
    if let Some(uses) = args.uses {
        body["uses"] = json!(uses);
        body["within"] = json!(within.as_secs_f64());
        body["scope"] = json!(args.scope);
    }
    let decided = decide(link, &args.id, "approve", &body).await?;
    if let Some(budget) = decided.decision.and_then(|decision| decision.budget) {
        let (calls, time) = (budget.uses, rough(within));
        link.remark(&format!(
            "{calls} calls with this one may begin within {time}; belljar approval deny {} ends that",
            decided.id
        ));
    }
    Ok(())
}

async fn decide(link: &Link, id: &str, decision: &str, body: &Value) -> Result<ApprovalInfo, Quit> {
    let decided: ApprovalInfo =
        link.client.send(Method::POST, &format!("{}/{decision}", path(id)), body).await?;
    if !link.json(&decided)? {
        print(&format!("{}\n", decided.id))?;
    }
    Ok(decided)
}

/// Prints each call that begins to wait, and what becomes of it.
async fn watch(link: &Link) -> Result<(), Quit> {
    // From now on; what waits already is printed first.
    let request =
        v1::EventsRequest { kinds: vec!["approval".to_owned()], follow: true, ..Default::default() };
    let mut events = link.client.events(request).await?;
    let Page { approvals, .. } = link.client.fetch("/v1/approvals?limit=100&state=pending").await?;
    for approval in approvals.into_iter().rev() {
        line(link, "approval.requested", &approval)?;
    }
    while let Some(event) = events.next().await? {
        if event.kind == "missed" {
            continue;
        }
        match link.client.fetch(&path(&event.detail)).await {
            Ok(approval) => line(link, &event.kind, &approval)?,
            // One of somebody else, which this key may not see.
            Err(error) if error.is("approval_not_found") => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn line(link: &Link, kind: &str, approval: &ApprovalInfo) -> Result<(), Quit> {
    if link.json(approval)? {
        return Ok(());
    }
    let what = kind.trim_start_matches("approval.");
    let (id, who, call) = (&approval.id, &approval.requester, name(&approval.request));
    let text = format!("{id}  {what:<9}  {who}  {call}  {}", summary(&approval.request));
    print(&format!("{}\n", clean(&text)))
}
