//! Code in a language that has no contexts: a program each time, which the shell's own context builds and runs.

use std::path::Path;

use belljar_model::{CommandTemplate, CommandValues, Language, Languages, Memory};

/// The context that runs such programs.
pub(crate) const SHELL: &str = "bash";

/// The languages that have contexts, as the guest calls them, and the shell, which it takes for bash.
const WITH_CONTEXTS: [&str; 5] = ["python", "javascript", "typescript", SHELL, "sh"];

/// Whether the language keeps its state in sandboxes that have a kernel of it.
pub(crate) fn may_have_kernel(language: &str) -> bool {
    Languages::builtin().by_name(language).is_ok_and(|language| language.name == "r")
}

/// The directory below the home directory that holds a program while it runs. One runs at a time, and what one leaves that was
/// interrupted is removed by the next.
const DIRECTORY: &str = ".belljar-code";

/// Writes what the shell is to do to run `code` in `language`; `None` if that has contexts, or is not known.
pub(crate) fn to_program(language: &str, code: &str, home: &Path, memory: Memory) -> Option<String> {
    let language = Languages::builtin().by_name(language).ok()?;
    (!WITH_CONTEXTS.contains(&language.name.as_str())).then(|| script(language, code, home, memory))
}

fn script(language: &Language, code: &str, home: &Path, memory: Memory) -> String {
    let dir = home.join(DIRECTORY).to_string_lossy().into_owned();
    let file = format!("{dir}/{}", language.file);
    let stem = language.file.split('.').next().unwrap_or_default();
    let values = CommandValues { file: &file, dir: &dir, stem, memory };
    let command = |template: &CommandTemplate| {
        let words = template.render::<&str>(&values, &[]);
        words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    };
    let (dir, file) = (quoted(&dir), quoted(&file));
    let mut lines = vec![
        format!("rm -rf {dir} && mkdir {dir} && printf %s {} > {file} || exit", quoted(code)),
        format!("trap 'rm -rf \"$BELLJAR_CODE\"' EXIT; BELLJAR_CODE={dir}"),
    ];
    lines.extend(language.env.iter().map(|(name, value)| format!("export {name}={}", quoted(value))));
    lines.extend(language.compile.as_ref().map(|compile| format!("{} || exit", command(compile))));
    lines.push(command(&language.run));
    // A shell of its own, so that nothing of it is left in the context.
    format!("(\n{}\n)", lines.join("\n"))
}

/// A word as the shell reads it back.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(language: &str, code: &str) -> Option<String> {
        to_program(language, code, Path::new("/home/user"), "256m".parse().unwrap())
    }

    #[test]
    fn languages_with_contexts_are_left_to_the_guest() {
        for name in ["python", "py", "js", "TypeScript", "bash", "sh", "cobol", ""] {
            assert_eq!(program(name, "x"), None, "{name}");
        }
        let others = Languages::builtin().iter().filter(|one| !WITH_CONTEXTS.contains(&one.name.as_str()));
        assert!(others.filter(|one| program(&one.name, "x").is_some()).count() >= 20);
    }

    #[test]
    fn code_stays_what_it_is_on_its_way_through_the_shell() {
        let code = "print 'it''s $HOME `id` \"\\\\' ;\n";
        let script = program("pl", code).unwrap();
        // The shell itself reads it back: what it would run is shown instead.
        let shown = script.replacen("'perl'", "'cat'", 1);
        let dir = tempfile::tempdir().unwrap();
        let shown = shown.replace("/home/user", dir.path().to_str().unwrap());
        let output = std::process::Command::new("bash").args(["-c", &shown]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            code,
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something is left");
    }
}
