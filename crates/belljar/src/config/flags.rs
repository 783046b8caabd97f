//! Flags of settings, from the table of settings.

use belljar_config::{SETTINGS, ValueKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// Settings given by flags of their own, with their key and their values.
#[derive(Debug, Clone, Default)]
pub(crate) struct SettingArgs {
    given: Vec<(&'static str, &'static str, Vec<String>)>,
}

impl SettingArgs {
    /// Returns the flags that are given: as written, with their key and their values.
    pub(crate) fn given(&self) -> Vec<(String, String, Vec<String>)> {
        let flag = |(flag, key, values): &(&str, &str, _)| {
            (format!("--{flag}"), (*key).to_owned(), Vec::clone(values))
        };
        self.given.iter().map(flag).collect()
    }
}

impl Args for SettingArgs {
    fn augment_args(command: Command) -> Command {
        SETTINGS.iter().fold(command, |command, setting| {
            let Some((flag, value)) = setting.flag else { return command };
            let text = setting.text.trim_end_matches('.');
            let arg = Arg::new(flag).long(flag);
            command.arg(match setting.kind {
                ValueKind::Flag => arg.action(ArgAction::SetTrue).help(text),
                kind => {
                    let action = if kind == ValueKind::List { ArgAction::Append } else { ArgAction::Set };
                    let default = setting.default.trim_matches(['[', ']', '"']);
                    let help = if default.is_empty() {
                        text.to_owned()
                    } else {
                        format!("{text} [default: {default}]")
                    };
                    arg.action(action).value_name(value).help(help)
                }
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = SETTINGS.iter().filter_map(|setting| {
            let (flag, _) = setting.flag?;
            let values = match setting.kind {
                ValueKind::Flag => matches.get_flag(flag).then(|| vec!["true".to_owned()]),
                _ => matches.get_many::<String>(flag).map(|values| values.cloned().collect()),
            };
            Some((flag, setting.key, values?))
        });
        Ok(Self { given: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
