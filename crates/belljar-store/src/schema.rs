//! Database schema and its migrations.

use std::borrow::Cow;

use sqlx::AnyConnection;
use sqlx::SqlSafeStr as _;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};

use crate::database::Backend;
use crate::error::StoreError;

/// Migration step with its version, description, and statements for both databases.
struct Step {
    version: i64,
    description: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

/// All migration steps, in order. A released step is never edited.
const STEPS: &[Step] = &[
    Step {
        version: 1,
        description: "first tables",
        sqlite: include_str!("../migrations/sqlite/0001_first.sql"),
        postgres: include_str!("../migrations/postgres/0001_first.sql"),
    },
    Step {
        version: 2,
        description: "a record of the audit in one statement",
        sqlite: include_str!("../migrations/sqlite/0002_audit_append.sql"),
        postgres: include_str!("../migrations/postgres/0002_audit_append.sql"),
    },
    Step {
        version: 3,
        description: "built templates",
        sqlite: include_str!("../migrations/sqlite/0003_built_templates.sql"),
        postgres: include_str!("../migrations/postgres/0003_built_templates.sql"),
    },
    Step {
        version: 4,
        description: "what happened to a sandbox that has ended",
        sqlite: include_str!("../migrations/sqlite/0004_sandbox_log.sql"),
        postgres: include_str!("../migrations/postgres/0004_sandbox_log.sql"),
    },
    Step {
        version: 5,
        description: "secrets of tenants",
        sqlite: include_str!("../migrations/sqlite/0005_secrets.sql"),
        postgres: include_str!("../migrations/postgres/0005_secrets.sql"),
    },
    Step {
        version: 6,
        description: "volumes",
        sqlite: include_str!("../migrations/sqlite/0006_volumes.sql"),
        postgres: include_str!("../migrations/postgres/0006_volumes.sql"),
    },
    Step {
        version: 8,
        description: "where secrets may be sent",
        sqlite: include_str!("../migrations/sqlite/0008_secret_hosts.sql"),
        postgres: include_str!("../migrations/postgres/0008_secret_hosts.sql"),
    },
    Step {
        version: 9,
        description: "the base of the audit",
        sqlite: include_str!("../migrations/sqlite/0009_audit_base.sql"),
        postgres: include_str!("../migrations/postgres/0009_audit_base.sql"),
    },
    Step {
        version: 10,
        description: "pages of lists",
        sqlite: include_str!("../migrations/sqlite/0010_pages.sql"),
        postgres: include_str!("../migrations/postgres/0010_pages.sql"),
    },
    Step {
        version: 11,
        description: "tools of tenants",
        sqlite: include_str!("../migrations/sqlite/0011_tools.sql"),
        postgres: include_str!("../migrations/postgres/0011_tools.sql"),
    },
    Step {
        version: 12,
        description: "approvals of calls",
        sqlite: include_str!("../migrations/sqlite/0012_approvals.sql"),
        postgres: include_str!("../migrations/postgres/0012_approvals.sql"),
    },
    Step {
        version: 14,
        description: "sessions of browsers",
        sqlite: include_str!("../migrations/sqlite/0014_sessions.sql"),
        postgres: include_str!("../migrations/postgres/0014_sessions.sql"),
    },
    Step {
        version: 15,
        description: "keys that made templates",
        sqlite: include_str!("../migrations/sqlite/0015_template_keys.sql"),
        postgres: include_str!("../migrations/postgres/0015_template_keys.sql"),
    },
    Step {
        version: 17,
        description: "accounts at registries of images",
        sqlite: include_str!("../migrations/sqlite/0017_registry_logins.sql"),
        postgres: include_str!("../migrations/postgres/0017_registry_logins.sql"),
    },
];

/// Migrates the tables to the newest version. With PostgreSQL other keepers wait meanwhile.
pub(crate) async fn migrate(
    connection: &mut AnyConnection,
    backend: Backend,
    url: &str,
) -> Result<(), StoreError> {
    let migration = |step: &Step| {
        let sql = match backend {
            Backend::Sqlite => step.sqlite,
            Backend::Postgres => step.postgres,
        };
        let description = Cow::Borrowed(step.description);
        Migration::new(step.version, description, MigrationType::Simple, sql.into_sql_str(), false)
    };
    let migrator = Migrator::with_migrations(STEPS.iter().map(migration).collect());
    let known = STEPS.last().map_or(0, |step| step.version);
    migrator.run_direct(None, connection, false).await.map_err(|source| match source {
        MigrateError::VersionMissing(found) if found > known => {
            StoreError::SchemaTooNew { url: url.to_owned(), found, known }
        }
        source => StoreError::Migrate { url: url.to_owned(), source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_in_order() {
        assert!(STEPS.windows(2).all(|pair| pair[0].version < pair[1].version));
    }
}
