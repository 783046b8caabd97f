//! Every language that is known, and how one is recognised.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::error::ModelError;
use crate::language::Language;
use crate::nearest::nearest;

/// Name and text of every file in `languages/`; the build script lists them.
const BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/languages.rs"));

/// Every language that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Languages(Vec<Language>);

impl Languages {
    /// Reads language files, each given as its name and its text.
    ///
    /// # Errors
    ///
    /// When a file cannot be used, or when two languages claim the same name, extension or interpreter.
    pub fn parse(files: &[(&str, &str)]) -> Result<Self, ModelError> {
        let mut languages = Vec::with_capacity(files.len());
        for (file, text) in files {
            let language = Language::from_toml(text).map_err(|source| ModelError::LanguageFile {
                file: (*file).to_owned(),
                source: Box::new(source),
            })?;
            languages.push(language);
        }
        languages.sort_by(|a, b| a.name.cmp(&b.name));
        refuse_clashes(&languages, "name", |language| language.names().collect())?;
        refuse_clashes(&languages, "extension", |language| {
            language.extensions.iter().map(String::as_str).collect()
        })?;
        refuse_clashes(&languages, "interpreter", |language| {
            language.shebangs.iter().map(String::as_str).collect()
        })?;
        Ok(Self(languages))
    }

    /// The languages that Belljar brings along.
    ///
    /// # Panics
    ///
    /// Never in a build whose tests pass: they read every file that is built in.
    #[expect(clippy::expect_used, reason = "the files are part of the program; a test reads every one")]
    pub fn builtin() -> &'static Self {
        static LANGUAGES: LazyLock<Languages> =
            LazyLock::new(|| Languages::parse(BUILT_IN).expect("the built-in language files are valid"));
        &LANGUAGES
    }

    /// Those of the built-in languages whose files mention `word` as a quoted text: the few among which a look-up of that
    /// name, extension or interpreter can succeed. Reading those alone takes a tenth of the time of reading all, and a
    /// start has no time to lose.
    ///
    /// # Panics
    ///
    /// As [`Self::builtin`].
    #[expect(clippy::expect_used, reason = "the files are part of the program; a test reads every one")]
    pub fn builtin_mentioning(word: &str) -> Self {
        // An extension may come with its dot.
        let bare = word.strip_prefix('.').unwrap_or(word);
        let quoted = format!("\"{}\"", bare.to_ascii_lowercase());
        let files: Vec<(&str, &str)> = BUILT_IN
            .iter()
            .filter(|(_, text)| text.to_ascii_lowercase().contains(&quoted))
            .copied()
            .collect();
        Self::parse(&files).expect("the built-in language files are valid")
    }

    /// Finds a language by its name or one of its aliases. Capital letters make no difference.
    ///
    /// # Errors
    ///
    /// When there is none; the error lists the known names and the nearest one.
    pub fn by_name(&self, name: &str) -> Result<&Language, ModelError> {
        let is_it = |language: &&Language| language.names().any(|known| known.eq_ignore_ascii_case(name));
        self.0.iter().find(is_it).ok_or_else(|| ModelError::UnknownLanguage {
            name: name.to_owned(),
            nearest: nearest(name, self.0.iter().flat_map(Language::names)).map(str::to_owned),
            known: self.0.iter().map(|language| language.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    /// Finds a language by the end of a file's name, with or without the dot.
    ///
    /// Capital letters make no difference where none is claimed with that very spelling.
    pub fn by_extension(&self, extension: &str) -> Option<&Language> {
        let extension = extension.strip_prefix('.').unwrap_or(extension);
        let find = |same: fn(&str, &str) -> bool| {
            self.0.iter().find(|language| language.extensions.iter().any(|known| same(known, extension)))
        };
        find(|a, b| a == b).or_else(|| find(|a, b| a.eq_ignore_ascii_case(b)))
    }

    /// Finds a language by the first line of a script, such as `#!/usr/bin/env python3.11`.
    pub fn by_shebang(&self, first_line: &str) -> Option<&Language> {
        let interpreter = interpreter(first_line)?;
        // From the exact name to the bare one: python3.11, python3, python.
        let without_minor = interpreter.split('.').next().unwrap_or(interpreter);
        let bare = interpreter.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
        [interpreter, without_minor, bare].into_iter().find_map(|candidate| {
            self.0.iter().find(|language| language.shebangs.iter().any(|known| known == candidate))
        })
    }

    /// Every language, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Language> {
        self.0.iter()
    }
}

/// The interpreter's name in a `#!` line, without its directory; what `env` would start, where it is `env`.
fn interpreter(first_line: &str) -> Option<&str> {
    let line = first_line.lines().next()?.strip_prefix("#!")?;
    let mut words = line.split_ascii_whitespace();
    let program = base_name(words.next()?);
    if program != "env" {
        return Some(program);
    }
    let is_interpreter = |word: &&str| !word.starts_with('-') && !word.contains('=');
    // `env -S` may be written together with the first word: -Spython3.
    words
        .map(|word| word.strip_prefix("-S").filter(|rest| !rest.is_empty()).unwrap_or(word))
        .find(is_interpreter)
        .map(base_name)
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn refuse_clashes(
    languages: &[Language],
    what: &'static str,
    claims: fn(&Language) -> Vec<&str>,
) -> Result<(), ModelError> {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for language in languages {
        for claim in claims(language) {
            if let Some(first) = owners.insert(claim, &language.name) {
                return Err(ModelError::LanguageClash {
                    what,
                    value: claim.to_owned(),
                    first: first.to_owned(),
                    second: language.name.clone(),
                });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, aliases: &str, extensions: &str, shebangs: &str) -> String {
        format!(
            "name = '{name}'\naliases = [{aliases}]\nextensions = [{extensions}]\nshebangs = [{shebangs}]\n\
             file = 'main'\nrun = ['{name}', '{{file}}']\nversion = ['{name}']\nprogram = '{name}'\npackage = '{name}'"
        )
    }

    fn languages() -> Languages {
        let files = [
            file("python", "'py', 'python3'", "'py'", "'python', 'python3'"),
            file("r", "", "'r'", "'Rscript'"),
            file("c", "", "'c'", ""),
            file("cpp", "'c++'", "'cpp', 'C'", ""),
            file("lua", "", "'lua'", "'lua'"),
            file("bash", "", "", "'bash'"),
        ];
        Languages::parse(&files.each_ref().map(|text| ("x.toml", text.as_str()))).unwrap()
    }

    #[test]
    fn languages_are_found_by_name() {
        let languages = languages();
        for (name, expected) in [("python", "python"), ("PY", "python"), ("c++", "cpp"), ("R", "r")] {
            assert_eq!(languages.by_name(name).unwrap().name, expected);
        }
        let cases = [
            (
                "pyton",
                "language: \"pyton\" is not known, did you mean python?; known are bash, c, cpp, lua, python, r",
            ),
            ("fortran", "language: \"fortran\" is not known; known are bash, c, cpp, lua, python, r"),
            ("", "language: \"\" is not known; known are bash, c, cpp, lua, python, r"),
        ];
        for (name, expected) in cases {
            assert_eq!(languages.by_name(name).unwrap_err().to_string(), expected);
        }
        assert_eq!(languages.iter().count(), 6);
    }

    #[test]
    fn languages_are_found_by_extension() {
        let cases = [
            ("py", Some("python")),
            (".py", Some("python")),
            ("PY", Some("python")),
            ("c", Some("c")),
            ("C", Some("cpp")),
            ("R", Some("r")),
            ("txt", None),
            ("", None),
        ];
        for (extension, expected) in cases {
            let found = languages().by_extension(extension).map(|language| language.name.clone());
            assert_eq!(found.as_deref(), expected, "{extension:?}");
        }
    }

    #[test]
    fn languages_are_found_by_shebang() {
        let cases = [
            ("#!/usr/bin/python3", Some("python")),
            ("#! /usr/bin/python3 -u", Some("python")),
            ("#!/usr/bin/env python3", Some("python")),
            ("#!/usr/bin/env -S python3 -u", Some("python")),
            ("#!/usr/bin/env -Spython3 -u", Some("python")),
            ("#!/usr/bin/env -i LANG=C python3\r\n", Some("python")),
            ("#!/opt/python3.11", Some("python")),
            ("#!/usr/bin/env python2.7", Some("python")),
            ("#!/usr/bin/lua5.4", Some("lua")),
            ("#!/bin/bash\nexit", Some("bash")),
            ("#!/usr/bin/Rscript --vanilla", Some("r")),
            ("#!/usr/bin/pythonic", None),
            ("#!/usr/bin/3", None),
            ("#!/usr/bin/env", None),
            ("#!", None),
            ("", None),
            ("/usr/bin/python3", None),
            (" #!/usr/bin/python3", None),
        ];
        for (line, expected) in cases {
            let found = languages().by_shebang(line).map(|language| language.name.clone());
            assert_eq!(found.as_deref(), expected, "{line:?}");
        }
    }

    #[test]
    fn bad_sets_are_refused() {
        let check =
            |a: &str, b: &str| Languages::parse(&[("a.toml", a), ("b.toml", b)]).unwrap_err().to_string();
        let a = file("aa", "'x'", "'e'", "'s'");
        let cases = [
            (file("x", "", "", ""), "\"x\" is the name of two languages, aa and x; give it to one of them"),
            (
                file("b", "", "'e'", ""),
                "\"e\" is the extension of two languages, aa and b; give it to one of them",
            ),
            (
                file("b", "", "", "'s'"),
                "\"s\" is the interpreter of two languages, aa and b; give it to one of them",
            ),
            ("name = 1".to_owned(), "language file \"b.toml\" cannot be used"),
        ];
        for (b, expected) in cases {
            assert_eq!(check(&a, &b), expected);
        }
    }

    #[test]
    fn a_few_files_are_enough_for_a_look_up() {
        for language in Languages::builtin().iter() {
            for name in language.names() {
                let few = Languages::builtin_mentioning(&name.to_ascii_uppercase());
                assert_eq!(few.by_name(name).unwrap(), language, "{name}");
            }
            for extension in &language.extensions {
                let few = Languages::builtin_mentioning(extension);
                assert_eq!(few.by_extension(extension), Some(language), "{extension}");
                let dotted = format!(".{extension}");
                assert_eq!(Languages::builtin_mentioning(&dotted).by_extension(&dotted), Some(language));
            }
        }
        assert!(Languages::builtin_mentioning("no such word").iter().next().is_none());
    }

    #[test]
    fn every_built_in_language_is_valid() {
        assert_eq!(Languages::builtin().iter().count(), BUILT_IN.len());
        for language in Languages::builtin().iter() {
            assert_eq!(Languages::builtin().by_name(&language.name).unwrap(), language);
        }
    }
}
