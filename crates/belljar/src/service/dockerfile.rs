//! `belljar image build`: a Dockerfile as the file of a template.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use belljar_files::Glob;
use belljar_image::{Definition, DefinitionError, DockerStep, DockerStepKind, Dockerfile};
use belljar_keeper::MAX_BUILD_FILE_BYTES;
use belljar_model::{ImageReference, NetworkFile};
use serde_json::{Value, json};

use super::values;
use crate::files::{names_in, open_below};
use crate::message::Quit;

/// File with patterns of what `COPY` leaves out.
const IGNORE_FILE: &str = ".dockerignore";

/// Limit of files and directories of the context that are looked at.
const MAX_ENTRIES: usize = 100_000;

/// What is built.
pub(super) struct DockerSource<'a> {
    /// Directory with the files that `COPY` names.
    pub(super) context: &'a Path,
    /// The Dockerfile; `Dockerfile` in the context if not given.
    pub(super) file: Option<&'a Path>,
    /// Name of the template; that of the context if not given.
    pub(super) name: Option<&'a str>,
    /// Values of `ARG`.
    pub(super) build_args: &'a [String],
    /// Network of the steps.
    pub(super) network: Option<NetworkFile>,
}

/// Files of a build, by their names: permission bits and content.
type BuildFiles = BTreeMap<String, (u32, Vec<u8>)>;

/// A build of a Dockerfile, of which everything but the image has been checked.
pub(super) struct DockerBuild<'a> {
    source: DockerSource<'a>,
    file: PathBuf,
    name: String,
    parsed: Dockerfile,
    ignored: Ignored,
}

impl<'a> DockerBuild<'a> {
    /// Reads the Dockerfile and the files that it copies.
    pub(super) fn read(source: DockerSource<'a>) -> Result<Self, Quit> {
        let context = source.context;
        if !context.is_dir() {
            let reason = format!(
                "DIR: {} is not a directory; give the one with the files, such as .",
                context.display()
            );
            return Err(Quit::Usage(reason));
        }
        let file = source.file.map_or_else(|| context.join("Dockerfile"), Path::to_owned);
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {} (-f FILE names another)", file.display()))?;
        let build_args = values::variables("build-arg", source.build_args)?.into_iter().collect();
        let parsed = Dockerfile::parse(&text, &build_args)
            .map_err(|error| Quit::Usage(format!("{}: {error}", file.display())))?;
        let name = match source.name {
            Some(name) if name.contains([':', '/']) => {
                let reason = "a template has neither a tag nor a registry; give a name alone, such as app";
                return Err(Quit::Usage(format!("--name (-t): {name:?} is not allowed: {reason}")));
            }
            Some(name) => name.to_owned(),
            None => directory_name(context)?,
        };
        let build = Self { source, file, name, parsed, ignored: Ignored::read(context)? };
        build.definition(&BTreeMap::new(), None)?;
        Ok(build)
    }

    /// Returns the image that it is based on.
    pub(super) fn base(&self) -> &ImageReference {
        self.parsed.base()
    }

    /// Returns the text of a template's file that is based on the template of the image, and the files of its steps.
    pub(super) fn definition_on(&self, template: &Value) -> Result<(String, BuildFiles), Quit> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let env = template.get("env").and_then(Value::as_object).into_iter().flatten();
        let env = env.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect();
        let workdir = template.pointer("/image/workdir").and_then(text);
        self.definition(&env, workdir.as_deref())
    }

    fn definition(
        &self,
        env: &BTreeMap<String, String>,
        workdir: Option<&str>,
    ) -> Result<(String, BuildFiles), Quit> {
        let in_file = |what: String| Quit::Usage(format!("{}: {what}", self.file.display()));
        let steps = self.parsed.steps(env, workdir).map_err(|error| in_file(error.to_string()))?;
        let (mut written, mut lines, mut files) = (Vec::new(), Vec::new(), Files::default());
        for DockerStep { line, kind } in steps {
            let made = match kind {
                DockerStepKind::Run { line, args } if args.is_empty() => vec![json!({ "run": line })],
                DockerStepKind::Run { line, args } => vec![json!({ "run": line, "env": args })],
                DockerStepKind::Env(env) => vec![json!({ "env": env })],
                DockerStepKind::User(name) => vec![json!({ "user": name })],
                DockerStepKind::Workdir(dir) => {
                    vec![
                        json!({ "run": format!("mkdir -p '{}'", dir.replace('\'', r"'\''")) }),
                        json!({ "workdir": dir }),
                    ]
                }
                DockerStepKind::Copy { sources, to, is_dir } => {
                    let mut made = Vec::new();
                    for source in sources {
                        let found = self.find(&source, &mut files);
                        let found =
                            found.map_err(|reason| in_file(format!("line {line}: COPY: {reason}")))?;
                        made.extend(found.into_iter().map(|(from, is_file)| {
                            let base = from.rsplit('/').next().unwrap_or_default();
                            let to = match is_dir && is_file {
                                true => format!("{}/{base}", to.trim_end_matches('/')),
                                false => to.clone(),
                            };
                            json!({ "copy": { "from": from, "to": to } })
                        }));
                    }
                    made
                }
            };
            lines.extend(made.iter().map(|_| line));
            written.extend(made);
        }
        let base = self.base();
        let mut definition = json!({
            "name": self.name, "description": format!("a Dockerfile on {base}"),
            "base": format!("template:{}", belljar_keeper::image_template(base)), "step": written,
        });
        if let (Some(network), Some(definition)) = (&self.source.network, definition.as_object_mut()) {
            definition.insert("build".to_owned(), json!({ "network": network }));
        }
        let table = toml::Table::try_from(&definition).context("cannot write the template's file")?;
        let text = table.to_string();
        // What the steps may hold is checked as in a template's file.
        Definition::parse(&text).map_err(|error| match error.field.as_str() {
            "name" => {
                let lower = self.name.to_ascii_lowercase();
                let advice = if lower == self.name { String::new() } else { format!(", such as {lower}") };
                Quit::Usage(format!("--name (-t): {:?} is not allowed: {}{advice}", self.name, error.reason))
            }
            _ => in_file(at_line(&error, &lines)),
        })?;
        Ok((text, files.content))
    }

    /// Finds what a source of `COPY` names, each with whether it is a file, and reads all files of it.
    fn find(&self, source: &str, files: &mut Files) -> Result<Vec<(String, bool)>, String> {
        let root = self.source.context;
        let missing = || format!("{source:?} is not in {}, or {IGNORE_FILE} leaves it out", root.display());
        let named = if source.contains(['*', '?', '[']) {
            let glob = Glob::new(format!("/{source}").as_bytes())
                .map_err(|reason| format!("{source:?}: {reason}"))?;
            let depth = source.split('/').count();
            let mut named = Vec::new();
            self.walk(".", depth, &mut |name, _| {
                if glob.matches(name.as_bytes()) {
                    named.push(name.to_owned());
                }
                Ok(())
            })?;
            named.sort();
            named
        } else {
            vec![source.to_owned()]
        };
        let mut found = Vec::new();
        for name in named {
            let file = match self.open(&name) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(missing()),
                opened => opened.map_err(|error| format!("cannot read {name:?}: {error}"))?,
            };
            let metadata = file.metadata().map_err(|error| format!("cannot look at {name:?}: {error}"))?;
            let before = files.count;
            if metadata.is_file() && !self.ignored.contains(&name) {
                files.add(&name, file)?;
            } else if metadata.is_dir() {
                self.walk(&name, usize::MAX, &mut |name, file| files.add(name, file))?;
            } else if !metadata.is_file() {
                return Err(format!("{} is neither a file nor a directory", root.join(&name).display()));
            }
            if files.count > before {
                found.push((name, metadata.is_file()));
            }
        }
        if found.is_empty() { Err(missing()) } else { Ok(found) }
    }

    fn open(&self, name: &str) -> std::io::Result<File> {
        open_below(self.source.context, name)
    }

    /// Calls `see` for each file below a directory, and each directory at the depth, with its name in the context.
    fn walk(
        &self,
        dir: &str,
        depth: usize,
        see: &mut dyn FnMut(&str, File) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut left = vec![(dir.to_owned(), depth)];
        let mut count = 0;
        while let Some((dir, depth)) = left.pop() {
            let names = self.open(&dir).and_then(|dir| names_in(&dir));
            for below in names.map_err(|error| format!("cannot list {dir}: {error}"))? {
                let name = if dir == "." { below } else { format!("{dir}/{below}") };
                count += 1;
                if count > MAX_ENTRIES {
                    return Err(format!("more than {MAX_ENTRIES} files; leave some out with {IGNORE_FILE}"));
                }
                let failed = |error| format!("cannot read {name}: {error}");
                let file = match self.open(&name) {
                    Err(_) if self.ignored.contains(&name) => continue,
                    opened => opened.map_err(failed)?,
                };
                let kind = file.metadata().map_err(failed)?.file_type();
                if kind.is_dir() {
                    if depth == 1 && !self.ignored.contains(&name) {
                        see(&name, file)?;
                    } else if depth > 1 && !self.ignored.has_all_of(&name) {
                        left.push((name, depth - 1));
                    }
                } else if self.ignored.contains(&name) {
                    continue;
                } else if kind.is_file() {
                    see(&name, file)?;
                } else {
                    return Err(format!(
                        "{name} is neither a file nor a directory; leave it out with {IGNORE_FILE}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Names the line of the Dockerfile in an error about a step that follows from it.
fn at_line(error: &DefinitionError, lines: &[usize]) -> String {
    let step =
        error.field.strip_prefix("step.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    match step.and_then(|step| lines.get(step.checked_sub(1)?)) {
        Some(line) => format!("line {line}: {}", error.reason),
        None => format!("{}: {}", error.field, error.reason),
    }
}

/// Returns the name of a directory as that of a template.
fn directory_name(dir: &Path) -> Result<String, Quit> {
    let whole = std::fs::canonicalize(dir).with_context(|| format!("cannot use {}", dir.display()))?;
    let name = whole.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let name: String = name.chars().map(plain).take(63).collect();
    match name.trim_matches('-') {
        "" => Err(Quit::Usage(format!("--name: {} has no name; give one", whole.display()))),
        name => Ok(name.to_owned()),
    }
}

/// Files of the context, by their names.
#[derive(Default)]
struct Files {
    content: BuildFiles,
    bytes: usize,
    /// Number of files that were added, also those that were there.
    count: usize,
}

impl Files {
    fn add(&mut self, name: &str, mut file: File) -> Result<(), String> {
        self.count += 1;
        if self.content.contains_key(name) {
            return Ok(());
        }
        let failed = |error: std::io::Error| format!("cannot read {name}: {error}");
        let metadata = file.metadata().map_err(failed)?;
        self.bytes = self.bytes.saturating_add(usize::try_from(metadata.len()).unwrap_or(usize::MAX));
        if self.bytes > MAX_BUILD_FILE_BYTES {
            let mib = MAX_BUILD_FILE_BYTES >> 20;
            return Err(format!(
                "more than {mib} MiB of files would be sent; leave some out with {IGNORE_FILE}"
            ));
        }
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(failed)?;
        self.content.insert(name.to_owned(), (metadata.permissions().mode() & 0o777, content));
        Ok(())
    }
}

/// What a file `.dockerignore` leaves out.
struct Ignored {
    /// Patterns with whether what matches is left out; the last that matches counts.
    rules: Vec<(Glob, bool)>,
}

impl Ignored {
    fn read(context: &Path) -> Result<Self, Quit> {
        let path = context.join(IGNORE_FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(anyhow::Error::from(error)
                    .context(format!("cannot read {}", path.display()))
                    .into());
            }
        };
        Self::parse(&text).map_err(|reason| Quit::Usage(format!("{}: {reason}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (pattern, is_left_out) = match line.strip_prefix('!') {
                Some(pattern) => (pattern.trim(), false),
                None => (line, true),
            };
            let pattern = pattern.trim_start_matches("./").trim_matches('/');
            if pattern.is_empty() || pattern == "." {
                continue;
            }
            let glob = Glob::new(format!("/{pattern}").as_bytes());
            let glob = glob.map_err(|reason| format!("line {}: {pattern:?}: {reason}", index + 1))?;
            rules.push((glob, is_left_out));
        }
        Ok(Self { rules })
    }

    /// Reports whether a file or directory is left out: by a rule for it, or for a directory above it.
    fn contains(&self, name: &str) -> bool {
        let above = |glob: &Glob| {
            let ends = name.match_indices('/').map(|(end, _)| end).chain([name.len()]);
            ends.into_iter().any(|end| name.get(..end).is_some_and(|name| glob.matches(name.as_bytes())))
        };
        self.rules.iter().rev().find(|(glob, _)| above(glob)).is_some_and(|(_, is_left_out)| *is_left_out)
    }

    /// Reports whether everything in a directory is left out, so that it need not be read.
    fn has_all_of(&self, name: &str) -> bool {
        self.contains(name) && self.rules.iter().all(|(_, is_left_out)| *is_left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_files_are_those_of_the_last_rule_that_matches() {
        let ignored = Ignored::parse("# comment\n\nnode_modules\n/build/\n**/*.log\n!keep.log\n.\n").unwrap();
        for (name, expected) in [
            ("node_modules", true),
            ("node_modules/a/b.js", true),
            ("src/node_modules", false),
            ("build/out", true),
            ("a.log", true),
            ("src/deep/a.log", true),
            ("keep.log", false),
            ("src/main.rs", false),
        ] {
            assert_eq!(ignored.contains(name), expected, "{name}");
        }
        assert!(!ignored.has_all_of("node_modules"), "a rule may take something back");
        assert!(Ignored::parse("a\n").unwrap().has_all_of("a"));
        assert!(Ignored::parse("[a\n").err().unwrap().starts_with("line 1: \"[a\": "));
    }

    #[test]
    fn errors_of_steps_name_lines_of_the_dockerfile() {
        let error = |field: &str| DefinitionError {
            line: 1,
            column: 1,
            field: field.to_owned(),
            reason: "no".to_owned(),
        };
        assert_eq!(at_line(&error("step.2.env"), &[3, 7]), "line 7: no");
        assert_eq!(at_line(&error("name"), &[3, 7]), "name: no");
    }
}
