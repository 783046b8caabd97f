//! Flags of limits, from the model's table.

use belljar_model::{LimitInfo, LimitScope, LimitsFile};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use crate::message::Quit;
use crate::service::values::usage_error;

/// Limits of a run without a server.
pub(crate) type RunLimits = LimitArgs<{ LimitScope::Run as u8 }>;

/// Limits of a new sandbox of a server.
pub(crate) type CreateLimits = LimitArgs<{ LimitScope::Create as u8 }>;

/// New limits of a running sandbox.
pub(crate) type UpdateLimits = LimitArgs<{ LimitScope::Update as u8 }>;

/// Limits given by flags, of those that can be set in a [`LimitScope`].
#[derive(Debug, Default)]
pub(crate) struct LimitArgs<const SCOPE: u8> {
    given: Vec<(&'static LimitInfo, String)>,
}

impl<const SCOPE: u8> LimitArgs<SCOPE> {
    /// With a server the defaults are the server's.
    const IS_SERVED: bool = SCOPE > LimitScope::Run as u8;

    /// Creates the limits that have a text.
    pub(crate) fn new(text: impl Fn(&'static LimitInfo) -> Option<String>) -> Self {
        Self { given: Self::offered().filter_map(|limit| Some((limit, text(limit)?))).collect() }
    }

    /// Returns the text of a limit's flag.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(limit, _)| limit.name == name).map(|(_, text)| text.as_str())
    }

    /// Reports whether no limit is given.
    pub(crate) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Parses the limits.
    pub(crate) fn file(&self) -> Result<LimitsFile, Quit> {
        let mut limits = LimitsFile::default();
        for (limit, text) in &self.given {
            limits.set(limit.name, text).map_err(|error| match Self::IS_SERVED {
                true => usage_error(&Self::flag(limit), &error),
                false => Quit::from(error),
            })?;
        }
        Ok(limits)
    }

    fn offered() -> impl Iterator<Item = &'static LimitInfo> {
        LimitsFile::TABLE.iter().filter(|limit| limit.scope as u8 >= SCOPE)
    }

    fn flag(limit: &LimitInfo) -> String {
        match limit.name {
            // The sandbox has a timeout of its own.
            "timeout" if Self::IS_SERVED => "exec-timeout".to_owned(),
            name => name.replace('_', "-"),
        }
    }
}

impl<const SCOPE: u8> Args for LimitArgs<SCOPE> {
    fn augment_args(command: Command) -> Command {
        Self::offered().fold(command, |command, limit| {
            let help = limit.help.trim_end_matches('.');
            let help = if Self::IS_SERVED {
                help.to_owned()
            } else {
                format!("{help} [default: {}]", limit.default.trim_matches('"'))
            };
            let flag = Self::flag(limit);
            command.arg(
                Arg::new(flag.clone()).long(flag).value_name(limit.value).help(help).help_heading("Limits"),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const SCOPE: u8> FromArgMatches for LimitArgs<SCOPE> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self::new(|limit| matches.get_one::<String>(&Self::flag(limit)).cloned()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
