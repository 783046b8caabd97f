//! Kinds of a service's events.

/// Kinds of events, of which followers and webhooks select some.
pub const EVENT_KINDS: [&str; 31] = [
    "sandbox.created",
    "sandbox.adopted",
    "sandbox.paused",
    "sandbox.resumed",
    "sandbox.stopping",
    "sandbox.gone",
    "sandbox.snapshot",
    "sandbox.update",
    "sandbox.timeout",
    "process.started",
    "process.exited",
    "context.ended",
    "approval.requested",
    "approval.approved",
    "approval.denied",
    "approval.budget_ended",
    "approval.expired",
    "approval.cancelled",
    "network.deny",
    "port.publish",
    "port.unpublish",
    "template.build",
    "template.upload",
    "template.tag",
    "template.untag",
    "template.export",
    "template.import",
    "template.remove",
    "key.create",
    "key.update",
    "key.revoke",
];

/// Reports whether a text is the kind of an event, or the beginning of one up to a dot, such as `sandbox`.
#[must_use]
pub fn selects_events(text: &str) -> bool {
    let is_selected =
        |kind: &&str| kind.strip_prefix(text).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    !text.is_empty() && EVENT_KINDS.iter().any(is_selected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_their_beginnings_select_events() {
        for text in ["approval", "approval.requested", "sandbox", "network", "network.deny"] {
            assert!(selects_events(text), "{text}");
        }
        for text in ["", ".", "approvals", "approval.", "sand", "sandbox.gone.x", "tool", "Approval"] {
            assert!(!selects_events(text), "{text}");
        }
    }
}
