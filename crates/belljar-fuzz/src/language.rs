//! Languages: their files, their commands, and how a script's language is recognised.

use belljar_model::{CommandTemplate, CommandValues, Language, Languages};

use crate::data::{Input, check_text, text};

pub(crate) fn language(data: &[u8]) {
    let text = text(data);
    let language = match Language::from_toml(&text) {
        Ok(language) => language,
        Err(error) => {
            check_text(&error.to_string());
            return;
        }
    };
    for word in language.names().chain(language.programs()) {
        assert!(
            !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || c.is_control()),
            "{word:?}"
        );
    }
    assert!(!language.file.is_empty() && !language.file.contains(['/', '\0']));
    for template in language.compile.iter().chain([&language.run]) {
        check_rendered(template, "/home/user/{dir}", &["{file}", "a"]);
    }
    // A single language is a valid set, unless it claims a name twice.
    match Languages::parse(&[("x.toml", &text)]) {
        Ok(set) => assert_eq!(set.by_name(&language.name).expect("it is there"), &language),
        Err(error) => check_text(&error.to_string()),
    }
}

/// Checks a template: one piece for each argument of the command, then the values of placeholders.
pub(crate) fn command_template(data: &[u8]) {
    let mut input = Input(data);
    let count = usize::from(input.byte() % 8);
    let argv: Vec<String> = (0..count).map(|_| text(input.piece())).collect();
    match CommandTemplate::new(argv.clone()) {
        Ok(template) => {
            assert_eq!(template.as_slice(), argv);
            let file = text(input.piece());
            let arg = text(input.piece());
            check_rendered(&template, &file, &[&arg]);
        }
        Err(error) => check_text(&error.to_string()),
    }
}

/// Checks that placeholders are replaced verbatim, that values are not expanded again, and add no arguments.
fn check_rendered(template: &CommandTemplate, file: &str, args: &[&str]) {
    let values = CommandValues { file, dir: "/d", stem: "s", memory: "512m".parse().unwrap() };
    let rendered = template.render(&values, args);
    let expanding = template.as_slice().iter().filter(|argument| *argument == "{args}").count();
    assert_eq!(rendered.len(), template.as_slice().len() - expanding + expanding * args.len());
    let mut at = 0;
    for argument in template.as_slice() {
        if argument == "{args}" {
            assert_eq!(&rendered[at..at + args.len()], args);
            at += args.len();
            continue;
        }
        let found = &rendered[at];
        at += 1;
        // Placeholders may remain only inside of inserted values.
        let expected = argument
            .split_inclusive('}')
            .map(|part| {
                let filled = [("{file}", file), ("{dir}", "/d"), ("{stem}", "s"), ("{heap}", "384")];
                match filled
                    .iter()
                    .find_map(|(name, value)| part.strip_suffix(name).map(|before| (before, value)))
                {
                    Some((before, value)) => format!("{before}{value}"),
                    None => part.to_owned(),
                }
            })
            .collect::<String>();
        assert_eq!(*found, expected, "{argument:?}");
    }
}

pub(crate) fn script(data: &[u8]) {
    let text = text(data);
    let languages = Languages::builtin();
    let known = |name: &str| languages.by_name(name).expect("a recognised language is known");
    if let Some(language) = languages.by_shebang(&text) {
        assert!(text.starts_with("#!"));
        known(&language.name);
    }
    if let Some(language) = languages.by_extension(&text) {
        let extension = text.strip_prefix('.').unwrap_or(&text);
        assert!(language.extensions.iter().any(|known| known.eq_ignore_ascii_case(extension)));
    }
    match languages.by_name(&text) {
        Ok(language) => assert!(language.names().any(|name| name.eq_ignore_ascii_case(&text))),
        Err(error) => check_text(&error.to_string()),
    }
    // The few languages that a look-up parses give the same answer as all.
    let few = Languages::builtin_mentioning(&text);
    assert_eq!(few.by_name(&text).ok(), languages.by_name(&text).ok());
    assert_eq!(few.by_extension(&text), languages.by_extension(&text));
}
