//! Whether a terminal wants colour.

/// Reports whether the environment allows colour on a terminal: `NO_COLOR` (<https://no-color.org>) is not set, and `TERM` names a
/// terminal that has escape sequences.
pub(crate) fn is_allowed() -> bool {
    allows(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

fn allows(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("NO_COLOR").is_none_or(|value| value.is_empty())
        && variable("TERM").is_some_and(|term| is_capable(&term))
}

/// Reports whether the terminal has escape sequences.
pub(crate) fn has_escapes() -> bool {
    std::env::var_os("TERM").is_some_and(|term| is_capable(&term.to_string_lossy()))
}

fn is_capable(term: &str) -> bool {
    !term.is_empty() && term != "dumb"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_left_out_where_it_is_not_wanted() {
        for (term, no_color, allowed) in [
            (Some("xterm"), None, true),
            (Some("xterm"), Some(""), true),
            (Some("xterm"), Some("1"), false),
            (Some("dumb"), None, false),
            (Some(""), None, false),
            (None, None, false),
        ] {
            let variable = |name: &str| if name == "TERM" { term } else { no_color }.map(str::to_owned);
            assert_eq!(allows(variable), allowed, "{term:?} {no_color:?}");
        }
    }
}
