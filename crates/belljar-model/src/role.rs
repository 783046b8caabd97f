//! What the holder of a key may do.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_text;

/// What the holder of a key may do. Each role may do what the ones before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(rename_all = "snake_case"))]
pub enum Role {
    /// Look at the sandboxes of its tenant, and at what they say.
    Read,
    /// Make and use sandboxes of its tenant.
    User,
    /// Everything, for all tenants: keys, audit, mounts of host directories.
    Admin,
}

impl Role {
    /// The role's name: `read`, `user` or `admin`.
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
    fn roles_are_read_back_and_ordered() {
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
