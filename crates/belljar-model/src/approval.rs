//! Approvals of calls by a person: their states, and what a budget covers.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_text;

/// State of an approval.
///
/// ```text
///  pending ─► approved ─► (its call has ended)
///     │           ├─────► outcome_unknown   the server died while the call ran
///     │           └─────► cancelled         its caller had disconnected before it began
///     ├─────────► denied
///     ├─────────► expired                   nobody decided in time
///     └─────────► cancelled                 its caller disconnected, or what it was about has changed or ended
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(rename_all = "snake_case"))]
pub enum ApprovalState {
    /// Its call waits.
    Pending,
    /// Its call may run, once.
    Approved,
    /// Its call was refused.
    Denied,
    /// Nobody decided before its deadline, which refuses the call.
    Expired,
    /// Its call cannot run any more.
    Cancelled,
    /// The server died, or lost the sandbox, while its call ran.
    OutcomeUnknown,
}

impl ApprovalState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Approved, Self::Denied, Self::Expired, Self::Cancelled, Self::OutcomeUnknown];

    /// Returns the name, such as `outcome_unknown`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::OutcomeUnknown => "outcome_unknown",
        }
    }
}

impl FromStr for ApprovalState {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let allowed = "pending, approved, denied, expired, cancelled or outcome_unknown";
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| ModelError::not_allowed("state", text, allowed))
    }
}

impl fmt::Display for ApprovalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

serde_as_text!(ApprovalState);

/// Calls that a budget covers, all of the same person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(rename_all = "snake_case"))]
pub enum BudgetScope {
    /// The same call again: same digest.
    #[default]
    Call,
    /// Any call of the same version of a tool under the same policy.
    Tool,
}

impl BudgetScope {
    /// Returns the name: `call` or `tool`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Tool => "tool",
        }
    }
}

impl FromStr for BudgetScope {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text {
            "call" => Ok(Self::Call),
            "tool" => Ok(Self::Tool),
            _ => Err(ModelError::not_allowed("scope", text, "call or tool")),
        }
    }
}

impl fmt::Display for BudgetScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

serde_as_text!(BudgetScope);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for state in ApprovalState::ALL {
            assert_eq!(state.to_string().parse::<ApprovalState>().unwrap(), state);
        }
        for scope in [BudgetScope::Call, BudgetScope::Tool] {
            assert_eq!(scope.to_string().parse::<BudgetScope>().unwrap(), scope);
        }
        assert_eq!(
            "done".parse::<ApprovalState>().unwrap_err().to_string(),
            "state: \"done\" is not allowed; give pending, approved, denied, expired, cancelled or outcome_unknown"
        );
        assert!("all".parse::<BudgetScope>().is_err());
    }
}
