//! Requests for a screening.

use serde::{Deserialize, Serialize};

use crate::host::ScreenError;
use crate::language::Language;

/// Largest code that is screened, in bytes. Source: docs/screening.md.
pub const MAX_CODE_BYTES: usize = 1 << 20;

/// Largest number of modules of a list, and of bytes of a name. Source: docs/screening.md.
pub const MAX_MODULES: usize = 256;
/// See [`MAX_MODULES`].
pub const MAX_MODULE_BYTES: usize = 128;

/// Code to screen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// Its language.
    pub language: Language,
    /// The code: at most [`MAX_CODE_BYTES`].
    pub code: String,
    /// Modules that the caller has something against.
    #[serde(default)]
    pub modules: Modules,
}

impl Request {
    /// Checks the size of the code, and the lists.
    ///
    /// # Errors
    /// Returns [`ScreenError::TooLarge`] or [`ScreenError::Modules`].
    pub fn check(&self) -> Result<(), ScreenError> {
        if self.code.len() > MAX_CODE_BYTES {
            return Err(ScreenError::TooLarge { bytes: self.code.len() });
        }
        self.modules.check().map_err(|(field, reason)| ScreenError::Modules { field, reason })
    }
}

/// Lists of modules. A name stands for the module and all below it. At most 256 names each, of 1 to 128 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ScreenModules))]
pub struct Modules {
    /// The only modules that the code may import without a finding.
    #[serde(default)]
    pub allow: Option<Vec<String>>,
    /// Modules whose import is a finding.
    #[serde(default)]
    pub deny: Vec<String>,
}

impl Modules {
    /// Checks the lists.
    ///
    /// # Errors
    /// Returns the field, `modules.allow` or `modules.deny`, and the reason.
    fn check(&self) -> Result<(), (&'static str, String)> {
        let lists = [("modules.allow", self.allow.as_ref()), ("modules.deny", Some(&self.deny))];
        for (name, list) in lists {
            let list = list.map(Vec::as_slice).unwrap_or_default();
            if list.len() > MAX_MODULES {
                return Err((name, format!("{} modules, at most {MAX_MODULES} are allowed", list.len())));
            }
            let is_name = |module: &&String| {
                !(1..=MAX_MODULE_BYTES).contains(&module.len()) || module.contains(char::is_control)
            };
            if let Some(module) = list.iter().find(is_name) {
                let shown: String = module.chars().take(40).collect();
                let reason = format!("{shown:?} is no name of a module: 1 to {MAX_MODULE_BYTES} bytes");
                return Err((name, reason));
            }
        }
        Ok(())
    }
}
