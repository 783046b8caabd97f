-- Keys of one owner are one person's. Keys without one are a person each.
ALTER TABLE keys ADD COLUMN owner TEXT;
-- Whether calls with the key wait for approval.
ALTER TABLE keys ADD COLUMN approval TEXT NOT NULL DEFAULT 'never';

CREATE INDEX keys_deciding ON keys (role, tenant) WHERE role IN ('admin', 'approver');

-- Calls that wait, or have waited, until a person approves them, and those that ran within a budget (grant_id).
CREATE TABLE approvals (
    id TEXT NOT NULL PRIMARY KEY,
    tenant TEXT NOT NULL,
    keeper TEXT NOT NULL,
    state TEXT NOT NULL,
    request TEXT NOT NULL,
    digest TEXT NOT NULL,
    tool TEXT,
    tool_digest TEXT,
    key_id TEXT NOT NULL,
    requester TEXT NOT NULL,
    sandbox TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    decided_at INTEGER,
    decided_by TEXT,
    decider TEXT,
    note TEXT NOT NULL,
    scope TEXT NOT NULL,
    max_uses INTEGER NOT NULL,
    uses INTEGER NOT NULL,
    usable_until INTEGER NOT NULL,
    grant_id TEXT,
    started_at INTEGER,
    ended_at INTEGER,
    outcome TEXT
) STRICT;

CREATE INDEX approvals_page ON approvals (tenant, created_at, id);
CREATE INDEX approvals_open ON approvals (keeper) WHERE ended_at IS NULL;
CREATE INDEX approvals_budgets ON approvals (tenant, requester, usable_until) WHERE max_uses > 1;
CREATE INDEX approvals_ended ON approvals (ended_at) WHERE ended_at IS NOT NULL;
