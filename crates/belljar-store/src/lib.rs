//! What must outlive the server: sandboxes, templates, keys and the audit trail, in SQLite or PostgreSQL.
