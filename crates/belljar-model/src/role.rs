//! Roles of API keys.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_text;

/// Role of a key. Which one includes which is [`Role::includes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(rename_all = "snake_case"))]
pub enum Role {
    /// Read access to the sandboxes of its tenant and their output.
    Read,
    /// Read access, and decisions about calls that wait for approval. It can run nothing.
    Approver,
    /// Creation and use of sandboxes of its tenant.
    User,
    /// Full access, for all tenants: keys, audit log, mounts of host directories.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Read, Self::Approver, Self::User, Self::Admin];

    /// Reports whether it has the permissions of `needed`: all roles have those of `read`, and `admin` those of all.
    #[must_use]
    pub fn includes(self, needed: Self) -> bool {
        self == needed || self == Self::Admin || needed == Self::Read
    }

    /// Returns the name: `read`, `approver`, `user` or `admin`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Approver => "approver",
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
            "approver" => Ok(Self::Approver),
            "user" => Ok(Self::User),
            "admin" => Ok(Self::Admin),
            _ => Err(ModelError::not_allowed("role", text, "admin, user, approver or read")),
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
    fn names_round_trip_and_roles_include_others() {
        for role in Role::ALL {
            assert_eq!(role.to_string().parse::<Role>().unwrap(), role);
            assert!(role.includes(role) && role.includes(Role::Read) && Role::Admin.includes(role));
        }
        for (role, needed) in [
            (Role::Read, Role::User),
            (Role::Approver, Role::User),
            (Role::User, Role::Approver),
            (Role::Approver, Role::Admin),
        ] {
            assert!(!role.includes(needed), "{role} {needed}");
        }
        assert_eq!(
            "root".parse::<Role>().unwrap_err().to_string(),
            "role: \"root\" is not allowed; give admin, user, approver or read"
        );
    }
}
