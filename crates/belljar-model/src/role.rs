//! Roles of API keys.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_text;

/// Role of a key. Each role includes the permissions of the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(rename_all = "snake_case"))]
pub enum Role {
    /// Read access to the sandboxes of its tenant and their output.
    Read,
    /// Creation and use of sandboxes of its tenant.
    User,
    /// Full access, for all tenants: keys, audit log, mounts of host directories.
    Admin,
}

impl Role {
    /// Returns the name: `read`, `user` or `admin`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::User => "user",
            Self::Admin => "admin",
        }
    }
}

impl FromStr for Role {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        match text {
            "read" => Ok(Self::Read),
            "user" => Ok(Self::User),
            "admin" => Ok(Self::Admin),
            _ => Err(ModelError::not_allowed("role", text, "admin, user or read")),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

serde_as_text!(Role);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_roles_are_ordered() {
        for role in [Role::Read, Role::User, Role::Admin] {
            assert_eq!(role.to_string().parse::<Role>().unwrap(), role);
        }
        assert!(Role::Read < Role::User && Role::User < Role::Admin);
        assert_eq!(
            "root".parse::<Role>().unwrap_err().to_string(),
            "role: \"root\" is not allowed; give admin, user or read"
        );
    }
}
