//! Approvals of calls.

use axum::extract::State;
use belljar_keeper::{ApprovalInfo, Approve, ListApprovals, NewBudget, Waiting};
use belljar_model::{ApprovalState, BudgetScope};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::sandboxes::PartQuery;
use super::types::{Span, time};
use crate::api::Shared;
use crate::extract::{Auth, Id, Json, Query};
use crate::problem::Problem;

/// Entries on a page, if the request does not say.
const DEFAULT_PAGE: u32 = 20;

/// The event of a run that waits for approval.
#[derive(Serialize)]
pub(super) struct WaitingBody {
    approval: String,
    expires_at: String,
}

impl From<Waiting> for WaitingBody {
    fn from(Waiting { approval, expires_at }: Waiting) -> Self {
        Self { approval, expires_at: time(expires_at) }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ApprovalsQuery {
    /// Approvals in this state. All, if not given.
    #[param(inline)]
    state: Option<ApprovalState>,
    /// Entries of the page. 20, if not given.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// Cursor from the previous page.
    cursor: Option<String>,
}

/// A page of approvals.
#[derive(Serialize, ToSchema)]
#[schema(as = Approvals)]
pub(super) struct ApprovalsBody {
    /// The approvals, newest first.
    approvals: Vec<ApprovalInfo>,
    /// Cursor of the next page; absent after the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// Lists approvals, newest first: all of the tenant for the roles approver and admin, else those of one's own calls.
#[utoipa::path(get, path = "/v1/approvals", tag = "approvals", params(ApprovalsQuery),
    responses((status = 200, description = "A page.", body = ApprovalsBody)))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Query(ApprovalsQuery { state, limit, cursor }): Query<ApprovalsQuery>,
) -> Result<axum::Json<ApprovalsBody>, Problem> {
    let part = PartQuery { limit: Some(limit.unwrap_or(DEFAULT_PAGE)), cursor }.part()?;
    let page = shared.keeper.approvals(&caller, &ListApprovals { state, part }).await?;
    Ok(axum::Json(ApprovalsBody { approvals: page.items, next_cursor: page.next_cursor }))
}

/// Shows an approval, with the call as it would run.
#[utoipa::path(get, path = "/v1/approvals/{id}", tag = "approvals",
    params(("id" = String, Path, description = "The approval's id.")),
    responses((status = 200, description = "The approval.", body = ApprovalInfo)))]
pub(super) async fn get(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
) -> Result<axum::Json<ApprovalInfo>, Problem> {
    Ok(axum::Json(shared.keeper.approval(&caller, &id).await?))
}

/// An approval that a person gives: for the call that waits alone, or with `uses` and `within` for further calls, too.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Approve, example = json!({"note": "as discussed", "uses": 20, "within": "10m", "scope": "tool"}))]
pub(super) struct ApproveBody {
    /// Why, for the audit log: at most 1024 bytes.
    #[serde(default)]
    note: Option<String>,
    /// Number of calls with the one that waits, 2 to 1000. Together with `within`.
    #[serde(default)]
    #[schema(minimum = 2, maximum = 1000)]
    uses: Option<u32>,
    /// Time within which they must begin, at most 24 h. Together with `uses`.
    #[serde(default)]
    within: Option<Span>,
    /// `call`: the same call again, which it is if not given; `tool`: any call of the same version of the tool under the same policy.
    /// All of the same person.
    #[serde(default)]
    #[schema(inline)]
    scope: Option<BudgetScope>,
}

impl ApproveBody {
    fn into_approve(self) -> Result<Approve, Problem> {
        let budget = match (self.uses, self.within) {
            (Some(uses), Some(within)) => {
                Some(NewBudget { scope: self.scope.unwrap_or_default(), uses, within: within.0 })
            }
            (None, None) if self.scope.is_none() => None,
            (None, _) => {
                return Err(Problem::field("uses", "it is missing; a budget needs uses and within"));
            }
            (_, None) => {
                return Err(Problem::field("within", "it is missing; a budget needs uses and within"));
            }
        };
        Ok(Approve { note: self.note.unwrap_or_default(), budget })
    }
}

/// Approves a call that waits, which then runs once. Needs the role approver, and another person than the one who made the call.
#[utoipa::path(post, path = "/v1/approvals/{id}/approve", tag = "approvals", request_body = ApproveBody,
    params(("id" = String, Path, description = "The approval's id.")),
    responses((status = 200, description = "The approval as it is now.", body = ApprovalInfo)))]
pub(super) async fn approve(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<ApproveBody>,
) -> Result<axum::Json<ApprovalInfo>, Problem> {
    Ok(axum::Json(shared.keeper.approve(&caller, &id, body.into_approve()?).await?))
}

/// A refusal.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Deny, example = json!({"note": "it would remove the data"}))]
pub(super) struct DenyBody {
    /// Why, for the caller and the audit log: at most 1024 bytes.
    #[serde(default)]
    note: Option<String>,
}

/// Denies a call that waits, or ends the budget of an approval. Needs the role approver, and another person than the one who made the
/// call.
#[utoipa::path(post, path = "/v1/approvals/{id}/deny", tag = "approvals", request_body = DenyBody,
    params(("id" = String, Path, description = "The approval's id.")),
    responses((status = 200, description = "The approval as it is now.", body = ApprovalInfo)))]
pub(super) async fn deny(
    State(shared): State<Shared>,
    Auth(caller): Auth,
    Id(id): Id,
    Json(body): Json<DenyBody>,
) -> Result<axum::Json<ApprovalInfo>, Problem> {
    Ok(axum::Json(shared.keeper.deny(&caller, &id, body.note.unwrap_or_default()).await?))
}
