//! Code in a language without contexts: each execution is a program that the shell's context builds and runs.

use std::path::Path;

use belljar_model::{CommandTemplate, CommandValues, Language, Languages, Memory};

/// Context that runs such programs.
pub(crate) const SHELL: &str = "bash";

/// Languages with contexts, by the guest's names, and `sh`, which the guest treats as bash.
const WITH_CONTEXTS: [&str; 5] = ["python", "javascript", "typescript", SHELL, "sh"];

/// Reports whether the language keeps its state in sandboxes that have a kernel for it.
pub(crate) fn may_have_kernel(language: &str) -> bool {
    Languages::builtin().by_name(language).is_ok_and(|language| language.name == "r")
}

/// Directory below the home directory that holds a program while it runs. One program runs at a time, and leftovers of an
/// interrupted one are removed by the next.
const DIRECTORY: &str = ".belljar-code";

/// Returns the message for a language that is not installed.
pub(crate) fn not_installed(language: &str) -> Option<String> {
    let Language { name, package, .. } = Languages::builtin().by_name(language).ok()?;
    Some(format!(
        "The language {name} is not installed in this sandbox. Use a template with a step that installs it (apt = {:?}), or run \
         apt-get install {package} on the server's machine.",
        package.split(' ').collect::<Vec<_>>()
    ))
}

/// Returns the shell script that runs `code` in `language`; `None` if the language has contexts or is unknown.
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
        words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
    };
    let (dir, file) = (quote(&dir), quote(&file));
    let missing = not_installed(&language.name).unwrap_or_default();
    let programs = std::iter::once(&language.program).chain(&language.requires);
    let check = |program: &String| {
        format!("command -v {} > /dev/null || {{ echo {} >&2; exit 127; }}", quote(program), quote(&missing))
    };
    let mut lines: Vec<String> = programs.map(check).collect();
    lines.extend([
        format!("rm -rf {dir} && mkdir {dir} && printf %s {} > {file} || exit", quote(code)),
        format!("trap 'rm -rf \"$BELLJAR_CODE\"' EXIT; BELLJAR_CODE={dir}"),
    ]);
    lines.extend(language.env.iter().map(|(name, value)| format!("export {name}={}", quote(value))));
    lines.extend(language.compile.as_ref().map(|compile| format!("{} || exit", command(compile))));
    lines.push(command(&language.run));
    // Runs in a subshell, so that it does not change the context's state.
    format!("(\n{}\n)", lines.join("\n"))
}

/// Quotes a word for the shell.
pub(crate) fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(language: &str, code: &str) -> Option<String> {
        to_program(language, code, Path::new("/home/user"), "256m".parse().unwrap())
    }

    #[test]
    fn languages_with_contexts_have_no_program() {
        for name in ["python", "py", "js", "TypeScript", "bash", "sh", "cobol", ""] {
            assert_eq!(program(name, "x"), None, "{name}");
        }
        let others = Languages::builtin().iter().filter(|one| !WITH_CONTEXTS.contains(&one.name.as_str()));
        assert!(others.filter(|one| program(&one.name, "x").is_some()).count() >= 20);
    }

    #[test]
    fn code_survives_shell_quoting() {
        let code = "print 'it''s $HOME `id` \"\\\\' ;\n";
        let script = program("pl", code).unwrap();
        // Runs `cat` in place of the interpreter, to show the file that it would read.
        let shown = script.replace("'perl'", "'cat'");
        let dir = tempfile::tempdir().unwrap();
        let shown = shown.replace("/home/user", dir.path().to_str().unwrap());
        let output = std::process::Command::new("bash").args(["-c", &shown]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            code,
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files were left over");
    }
}
