//! Checks of code before it runs: screening and approval.

use std::fmt;
use std::str::FromStr;

use crate::error::ModelError;
use crate::text::serde_as_text;

/// Screening of code: reading it for risky constructs before it runs. Stricter values are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Screening {
    /// None.
    #[default]
    Off,
    /// Findings are part of the result.
    Report,
    /// Code with findings does not run.
    Refuse,
}

impl Screening {
    /// Returns the name: `off`, `report` or `refuse`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Report => "report",
            Self::Refuse => "refuse",
        }
    }

    /// Fails if this version cannot enforce it.
    pub(crate) fn check_available(self) -> Result<(), ModelError> {
        check_default("screening", self, self.as_str(), "off")
    }
}

impl FromStr for Screening {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        [Self::Off, Self::Report, Self::Refuse]
            .into_iter()
            .find(|one| one.as_str() == text)
            .ok_or_else(|| ModelError::not_allowed("screening", text, "off, report or refuse"))
    }
}

impl fmt::Display for Screening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

serde_as_text!(Screening);

/// Approval of executions by a person. Stricter values are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Approval {
    /// Nothing waits.
    #[default]
    Never,
    /// Executions wait in which screening finds a high risk.
    OnRisk,
    /// Executions wait in which screening finds a medium or high risk.
    OnMediumRisk,
    /// Every execution waits.
    Always,
}

const APPROVALS: &str = "never, on-risk, on-medium-risk or always";

impl Approval {
    /// Returns the name: `never`, `on-risk`, `on-medium-risk` or `always`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::OnRisk => "on-risk",
            Self::OnMediumRisk => "on-medium-risk",
            Self::Always => "always",
        }
    }

    /// Fails if this version cannot enforce it for a sandbox.
    pub(crate) fn check_available(self) -> Result<(), ModelError> {
        check_default("approval", self, self.as_str(), "never")
    }

    /// Reports whether it is the default.
    #[must_use]
    pub fn is_never(&self) -> bool {
        *self == Self::Never
    }
}

impl FromStr for Approval {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        [Self::Never, Self::OnRisk, Self::OnMediumRisk, Self::Always]
            .into_iter()
            .find(|one| one.as_str() == text)
            .ok_or_else(|| ModelError::not_allowed("approval", text, APPROVALS))
    }
}

impl fmt::Display for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

serde_as_text!(Approval);

fn check_default<T: Default + PartialEq>(
    field: &'static str,
    value: T,
    name: &str,
    allowed: &'static str,
) -> Result<(), ModelError> {
    if value == T::default() {
        return Ok(());
    }
    Err(ModelError::NotInThisVersion { field, value: name.to_owned(), allowed: allowed.to_owned() })
}
