//! What a call may be within its tool, and what would be decided about it.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_model::{Approval, Languages, ToolFile};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::stored::ToolInfo;
use crate::action::TOOL_TEST;
use crate::approval::{ApprovalContent, ApprovalRequest, ApprovalScreening};
use crate::approvals::{Attempt, is_by_risk, waits};
use crate::caller::Caller;
use crate::code_request::{CodeRequest, check_code};
use crate::error::KeeperError;
use crate::keeper::{Keeper, Result};

/// Maximum number of files in the arguments of a call, and maximum bytes of all.
/// Source: docs/spec.md; held by `tests::arguments_are_within_the_tool`.
pub const MAX_TOOL_FILES: (usize, usize) = (64, 1 << 20);

/// Arguments of a call.
#[derive(Debug, Clone, Default)]
pub struct ToolCall {
    /// The code.
    pub code: Bytes,
    /// One of the tool's languages; the first if absent.
    pub language: Option<String>,
    /// At most the tool's, which it is if absent.
    pub timeout: Option<Duration>,
    /// Files to write before, by their paths below the home directory.
    pub files: BTreeMap<String, Bytes>,
}

/// What would be decided about a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolVerdict {
    /// Whether it would run.
    pub allowed: bool,
    /// The rule that decides: the refused argument, `policy`, `role`, `approval` if it would wait, or `tool` if all are satisfied.
    pub rule: String,
    /// Why.
    pub reason: String,
    /// The tool's name.
    pub tool: String,
    /// Its version.
    pub version: i64,
    /// Digest of its definition.
    pub digest: String,
    /// SHA-256 of the code, in hexadecimal.
    pub code_sha256: String,
    /// What screening has found, if the rule for approvals asks for it.
    #[serde(default)]
    pub screening: Option<ApprovalScreening>,
}

/// A call within its tool.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CheckedCall {
    pub(super) language: String,
    pub(super) timeout: Duration,
    /// Whether the tool was named without a version.
    pub(super) is_by_name: bool,
}

impl Keeper {
    /// Decides about a call without running anything.
    ///
    /// # Errors
    /// Needs the role user; fails if there is no such tool.
    pub async fn test_tool(&self, caller: &Caller, named: &str, call: &ToolCall) -> Result<ToolVerdict> {
        self.require(caller, TOOL_TEST)?;
        let info = self.find_tool(caller, named).await?;
        let (rule, whose) = approval_rule(caller, &info.tool);
        let mut screening = None;
        let decided = async {
            let checked = check_call(&info.tool, call)?;
            let request = self.tool_sandbox(caller, &info.tool, info.version)?;
            self.plan_launch(caller, request).await?;
            if let Some(attempt) = attempt(caller, rule, &info, call, &checked) {
                screening = self.screen_call(&attempt).await;
            }
            let waits = waits(rule, screening.as_ref());
            if waits {
                self.check_approver(caller).await?;
            }
            Ok(waits)
        };
        let decided: Result<bool> = decided.await;
        let found = screening.as_ref().map(|found| format!("; {}", found.summary())).unwrap_or_default();
        let (allowed, rule, reason) = match &decided {
            Ok(true) => {
                let reason =
                    format!("it waits until another person approves it, by {whose} rule {rule}{found}");
                (true, "approval".to_owned(), reason)
            }
            Err(KeeperError::NoApprover) => (false, "approval".to_owned(), decided_reason(&decided)),
            Ok(false) => (true, "tool".to_owned(), format!("the arguments are within the tool{found}")),
            Err(KeeperError::Field { field, .. }) => (false, (*field).to_owned(), decided_reason(&decided)),
            Err(KeeperError::Forbidden { .. }) => (false, "role".to_owned(), decided_reason(&decided)),
            Err(KeeperError::Policy { .. }) => (false, "policy".to_owned(), decided_reason(&decided)),
            Err(error) => (false, error.code().to_owned(), decided_reason(&decided)),
        };
        let code_sha256 = hex::encode(Sha256::digest(&call.code));
        let ToolInfo { tool, version, digest, .. } = info;
        Ok(ToolVerdict { allowed, rule, reason, tool: tool.name, version, digest, code_sha256, screening })
    }
}

/// Checks that the arguments of a call are within its tool.
pub(super) fn check_call(tool: &ToolFile, call: &ToolCall) -> Result<CheckedCall> {
    check_code(&CodeRequest { code: call.code.clone(), ..CodeRequest::default() })?;
    let first = tool.languages.first().map(String::as_str).unwrap_or_default();
    let given = call.language.as_deref().unwrap_or(first);
    let name = Languages::builtin().by_name(given).map_or(given, |language| language.name.as_str());
    if !tool.languages.iter().any(|allowed| allowed == name) {
        let reason = format!("{given:?} is not one of the tool's; give {}", tool.languages.join(" or "));
        return Err(KeeperError::field("language", reason));
    }
    let max = tool.timeout.duration();
    let timeout = call.timeout.unwrap_or(max);
    if timeout.is_zero() || timeout > max {
        let reason = format!("{timeout:?} is not allowed; the tool allows at most {max:?}");
        return Err(KeeperError::field("timeout", reason));
    }
    let (max_files, max_bytes) = MAX_TOOL_FILES;
    let bytes: usize = call.files.iter().map(|(path, content)| path.len() + content.len()).sum();
    if call.files.len() > max_files || bytes > max_bytes {
        let reason = format!(
            "{} files of {bytes} bytes; at most {max_files} of {max_bytes} are allowed",
            call.files.len()
        );
        return Err(KeeperError::field("files", reason));
    }
    let is_below = |path: &str| {
        !path.contains('\0') && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
    };
    if let Some(path) = call.files.keys().find(|path| !is_below(path)) {
        let reason =
            format!("{path:?} is not allowed; give a path below the home directory, such as data/in.csv");
        return Err(KeeperError::field("files", reason));
    }
    Ok(CheckedCall { language: name.to_owned(), timeout, is_by_name: false })
}

/// Returns the rule for approvals of a call, the stricter one of the tool and the caller's key, and whose it is.
pub(super) fn approval_rule(caller: &Caller, tool: &ToolFile) -> (Approval, &'static str) {
    if caller.approval > tool.approval {
        (caller.approval, "the key's")
    } else {
        (tool.approval, "the tool's")
    }
}

/// Returns a call of a tool as checks see it, if its rule asks for any.
pub(super) fn attempt<'a>(
    caller: &'a Caller,
    rule: Approval,
    info: &ToolInfo,
    call: &ToolCall,
    checked: &'a CheckedCall,
) -> Option<Attempt<'a>> {
    is_by_risk(rule).then(|| {
        let shown = of_call(ApprovalRequest::default(), info, call, checked);
        Attempt { caller, rule, shown, language: &checked.language, has_env: false }
    })
}

/// Adds what is particular to a call of a tool to what the person who decides sees.
pub(super) fn of_call(
    shown: ApprovalRequest,
    info: &ToolInfo,
    call: &ToolCall,
    checked: &CheckedCall,
) -> ApprovalRequest {
    let files = call.files.iter().map(|(path, content)| (path.clone(), ApprovalContent::new(content)));
    ApprovalRequest {
        tool: Some(format!("{}@{}", info.tool.name, info.version)),
        is_by_name: checked.is_by_name,
        tool_sha256: Some(info.digest.clone()),
        language: Some(checked.language.clone()),
        code: Some(ApprovalContent::new(&call.code)),
        timeout_ms: Some(u64::try_from(checked.timeout.as_millis()).unwrap_or(u64::MAX)),
        files: files.collect(),
        ..shown
    }
}

fn decided_reason<T>(decided: &Result<T>) -> String {
    decided.as_ref().err().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool() -> ToolFile {
        let text = "[[tool]]\nname = 't'\ndescription = 'd'\nlanguages = ['python', 'r']\ntimeout = '30s'\n";
        ToolFile::list_from_toml(text).unwrap().remove(0)
    }

    #[test]
    fn arguments_are_within_the_tool() {
        let check = |call: ToolCall| match check_call(&tool(), &call) {
            Ok(checked) => format!("{} {:?}", checked.language, checked.timeout),
            Err(error) => error.to_string(),
        };
        let call = ToolCall::default;
        let file =
            |path: &str, bytes: usize| BTreeMap::from([(path.to_owned(), Bytes::from(vec![b'a'; bytes]))]);
        let language = |name: &str| ToolCall { language: Some(name.to_owned()), ..call() };
        let timeout = |ms: u64| ToolCall { timeout: Some(Duration::from_millis(ms)), ..call() };
        let files = |files| ToolCall { files, ..call() };
        let many = (0..=MAX_TOOL_FILES.0).map(|index| (index.to_string(), Bytes::new())).collect();
        for (call, expected) in [
            (call(), "python 30s"),
            (language("py"), "python 30s"),
            (language("r"), "r 30s"),
            (timeout(1500), "python 1.5s"),
            (timeout(30_000), "python 30s"),
            (files(file("a/b.txt", 10)), "python 30s"),
            (files(file("a", MAX_TOOL_FILES.1 - 1)), "python 30s"),
            (language("ruby"), "language: \"ruby\" is not one of the tool's; give python or r"),
            (language("cobol"), "language: \"cobol\" is not one of the tool's; give python or r"),
            (timeout(30_001), "timeout: 30.001s is not allowed; the tool allows at most 30s"),
            (timeout(0), "timeout: 0ns is not allowed; the tool allows at most 30s"),
            (
                files(file("a", MAX_TOOL_FILES.1)),
                "files: 1 files of 1048577 bytes; at most 64 of 1048576 are allowed",
            ),
            (files(many), "files: 65 files of 120 bytes; at most 64 of 1048576 are allowed"),
            (files(file("/etc/passwd", 1)), "files: \"/etc/passwd\" is not allowed; give a path below"),
            (files(file("a/../../b", 1)), "files: \"a/../../b\" is not allowed"),
            (files(file("", 1)), "files: \"\" is not allowed"),
            (ToolCall { code: "a\0".into(), ..call() }, "code: "),
        ] {
            let found = check(call);
            assert!(found.starts_with(expected), "{found} is not {expected}");
        }
    }
}
