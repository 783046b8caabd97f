//! Patches in the form that Codex models write, between `*** Begin Patch` and `*** End Patch`.

use std::collections::BTreeSet;

/// A change of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Makes a file.
    Add { path: String, content: String },
    /// Removes a file.
    Delete { path: String },
    /// Changes a file, and moves it if `to` is given.
    Update { path: String, to: Option<String>, hunks: Vec<Hunk> },
}

impl Change {
    /// Returns the files that it changes.
    fn paths(&self) -> impl Iterator<Item = &str> {
        let (path, to) = match self {
            Self::Add { path, .. } | Self::Delete { path } => (path, None),
            Self::Update { path, to, .. } => (path, to.as_ref().filter(|to| *to != path)),
        };
        std::iter::once(path).chain(to).map(String::as_str)
    }
}

/// Returns a path without what does not change its meaning.
fn plain(path: &str) -> String {
    let begin = if path.starts_with('/') { "/" } else { "" };
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    format!("{begin}{}", parts.join("/"))
}

/// Lines to replace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hunk {
    /// Line after which the old ones are, if given.
    after: Option<String>,
    /// Old lines, with those around them.
    old: Vec<String>,
    /// New lines, with those around them.
    new: Vec<String>,
    /// Whether the old lines are the last ones.
    at_end: bool,
}

/// Maximum number of changed files.
const MAX_CHANGES: usize = 200;

/// Maximum number of lines of a patch, each of which takes some 50 bytes of memory besides its text.
const MAX_PATCH_LINES: usize = 200_000;

/// Maximum number of lines of a file that is changed.
const MAX_LINES: usize = 1 << 20;

/// Parses a patch.
///
/// # Errors
/// Fails with the number of the line, if a line is not of the form.
pub(super) fn parse(text: &str) -> Result<Vec<Change>, String> {
    let lines: Vec<&str> = text.trim().lines().take(MAX_PATCH_LINES + 1).collect();
    if lines.len() > MAX_PATCH_LINES {
        return Err(format!("it has more than {MAX_PATCH_LINES} lines; give it in parts"));
    }
    let (Some((&"*** Begin Patch", rest)), true) = (lines.split_first(), lines.len() > 1) else {
        return Err("line 1: give *** Begin Patch".to_owned());
    };
    let Some((&"*** End Patch", body)) = rest.split_last() else {
        return Err(format!("line {}: give *** End Patch at the end", lines.len()));
    };
    let mut changes = Vec::new();
    for (index, line) in body.iter().enumerate() {
        // The first line is above.
        parse_line(&mut changes, line).map_err(|why| format!("line {}: {why}", index + 2))?;
    }
    let mut named = BTreeSet::new();
    let paths = changes.iter().flat_map(Change::paths);
    if let Some(twice) = paths.map(plain).find(|path| !named.insert(path.clone())) {
        return Err(format!("{twice:?} is in it twice; give all changes of a file at once"));
    }
    match changes.len() {
        0 => Err("it changes no file".to_owned()),
        count if count > MAX_CHANGES => {
            Err(format!("it changes {count} files; at most {MAX_CHANGES} are allowed"))
        }
        _ => Ok(changes),
    }
}

fn parse_line(changes: &mut Vec<Change>, line: &str) -> Result<(), String> {
    if let Some(path) = line.strip_prefix("*** Add File: ") {
        changes.push(Change::Add { path: path.to_owned(), content: String::new() });
        return Ok(());
    }
    if let Some(path) = line.strip_prefix("*** Delete File: ") {
        changes.push(Change::Delete { path: path.to_owned() });
        return Ok(());
    }
    if let Some(path) = line.strip_prefix("*** Update File: ") {
        changes.push(Change::Update { path: path.to_owned(), to: None, hunks: Vec::new() });
        return Ok(());
    }
    match changes.last_mut() {
        Some(Change::Add { content, .. }) => {
            let line = line.strip_prefix('+').ok_or("give + before each line of a new file")?;
            content.push_str(line);
            content.push('\n');
            Ok(())
        }
        Some(Change::Update { to, hunks, .. }) => parse_update(to, hunks, line),
        Some(Change::Delete { .. }) => Err("a removed file has no lines".to_owned()),
        None => Err("give *** Add File: PATH, *** Update File: PATH or *** Delete File: PATH".to_owned()),
    }
}

fn parse_update(to: &mut Option<String>, hunks: &mut Vec<Hunk>, line: &str) -> Result<(), String> {
    if let Some(path) = line.strip_prefix("*** Move to: ") {
        if to.is_some() || !hunks.is_empty() {
            return Err("give *** Move to: once, and before the lines".to_owned());
        }
        *to = Some(path.to_owned());
        return Ok(());
    }
    if line == "*** End of File" {
        hunks.last_mut().ok_or("there are no lines before it")?.at_end = true;
        return Ok(());
    }
    if let Some(after) = line.strip_prefix("@@") {
        let after = Some(after.trim().to_owned()).filter(|after| !after.is_empty());
        hunks.push(Hunk { after, ..Hunk::default() });
        return Ok(());
    }
    if hunks.is_empty() {
        hunks.push(Hunk::default());
    }
    let hunk = hunks.last_mut().ok_or("there are no lines")?;
    match line.split_at_checked(1) {
        Some((" ", text)) => {
            hunk.old.push(text.to_owned());
            hunk.new.push(text.to_owned());
        }
        Some(("-", text)) => hunk.old.push(text.to_owned()),
        Some(("+", text)) => hunk.new.push(text.to_owned()),
        // Models leave the space of an empty line out.
        None => {
            hunk.old.push(String::new());
            hunk.new.push(String::new());
        }
        _ => return Err("give a space, + or - before each line".to_owned()),
    }
    Ok(())
}

/// Steps of the search for the lines of one file's hunks, which take about a second: a step is a line that is compared, or eight bytes of it.
const MAX_STEPS: usize = 100_000_000;

/// Applies hunks, in their order, to a text. The result has at most `most` bytes.
///
/// # Errors
/// Fails with the lines that are not found, or if the result is longer or takes too long.
pub(super) fn apply(text: &str, hunks: &[Hunk], most: usize) -> Result<String, String> {
    // Ends of lines other than a newline stay as they are.
    let lines: Vec<&str> = text.split_terminator('\n').take(MAX_LINES + 1).collect();
    if lines.len() > MAX_LINES {
        return Err(format!("the file has more than {MAX_LINES} lines; use a command for it"));
    }
    let mut steps = MAX_STEPS;
    let mut result: Vec<&str> = Vec::new();
    let mut at = 0;
    let mut taken = 0;
    for hunk in hunks {
        if let Some(after) = &hunk.after {
            let found = find(&lines, at, std::slice::from_ref(after), false, &mut steps)?;
            at = found.ok_or_else(|| format!("the line {after:?} is not in the file"))? + 1;
        }
        let found = match hunk.old.is_empty() {
            // Only new lines: at the end, or after the named line.
            true if hunk.after.is_none() || hunk.at_end => Some(lines.len()),
            true => Some(at),
            false => find(&lines, at, &hunk.old, hunk.at_end, &mut steps)?,
        };
        let begin =
            found.ok_or_else(|| format!("these lines are not in the file:\n{}", hunk.old.join("\n")))?;
        result.extend(lines.get(taken..begin).unwrap_or_default());
        result.extend(hunk.new.iter().map(String::as_str));
        at = begin + hunk.old.len();
        taken = at;
    }
    result.extend(lines.get(taken..).unwrap_or_default());
    let length: usize = result.iter().map(|line| line.len() + 1).sum();
    if length > most {
        return Err(too_long(most));
    }
    let mut text = String::with_capacity(length);
    for line in result {
        text.push_str(line);
        text.push('\n');
    }
    Ok(text)
}

/// Returns the refusal of a patch that writes too much.
pub(super) fn too_long(most: usize) -> String {
    format!("the patch writes more than {most} bytes; give it in parts")
}

/// Returns how many lines hunks write and take away, with those around them.
#[cfg(feature = "fuzzing")]
pub(super) fn counts(hunks: &[Hunk]) -> (usize, usize) {
    hunks.iter().fold((0, 0), |(new, old), hunk| (new + hunk.new.len(), old + hunk.old.len()))
}

/// Finds lines from a position on: exactly, else without the spaces at their ends, else without those at both.
///
/// # Errors
/// Fails if no `steps` are left.
fn find(
    lines: &[&str],
    from: usize,
    wanted: &[String],
    at_end: bool,
    steps: &mut usize,
) -> Result<Option<usize>, String> {
    let Some(last) = lines.len().checked_sub(wanted.len()) else { return Ok(None) };
    // Those that look at the whole line.
    let trimmed: [fn(&str) -> &str; 2] = [str::trim_end, str::trim];
    let exact: fn(&str) -> &str = |line| line;
    for (form, is_whole) in [(exact, false)].into_iter().chain(trimmed.map(|form| (form, true))) {
        let at_last = (at_end && from <= last).then_some(last);
        for begin in at_last.into_iter().chain(from..=last) {
            let mut fits = true;
            for (line, wanted) in lines.iter().skip(begin).zip(wanted) {
                let compared = if is_whole { line.len() } else { line.len().min(wanted.len()) };
                let cost = 1 + compared / 8;
                *steps =
                    steps.checked_sub(cost).ok_or("it takes too long; give fewer, and more telling lines")?;
                if form(line) != form(wanted) {
                    fits = false;
                    break;
                }
            }
            if fits {
                return Ok(Some(begin));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(text: &str, patch: &str) -> Result<String, String> {
        let patch = format!("*** Begin Patch\n*** Update File: f\n{patch}\n*** End Patch");
        match parse(&patch)?.as_slice() {
            [Change::Update { hunks, .. }] => apply(text, hunks, 1 << 20),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn patches_are_parsed() {
        let patch = "*** Begin Patch\n*** Add File: a/b\n+one\n+\n*** Delete File: c\n*** Update File: d\n*** Move to: e\n@@ def f():\n-x\n+y\n*** End Patch\n";
        let hunk = Hunk {
            after: Some("def f():".to_owned()),
            old: vec!["x".to_owned()],
            new: vec!["y".to_owned()],
            at_end: false,
        };
        let expected = [
            Change::Add { path: "a/b".to_owned(), content: "one\n\n".to_owned() },
            Change::Delete { path: "c".to_owned() },
            Change::Update { path: "d".to_owned(), to: Some("e".to_owned()), hunks: vec![hunk] },
        ];
        assert_eq!(parse(patch).as_deref(), Ok(expected.as_slice()));
        for (patch, expected) in [
            ("", "line 1: give *** Begin Patch"),
            ("*** Begin Patch", "line 1: give *** Begin Patch"),
            ("*** Begin Patch\n*** Add File: a", "line 2: give *** End Patch"),
            ("*** Begin Patch\n*** End Patch", "it changes no file"),
            ("*** Begin Patch\nx\n*** End Patch", "line 2: give *** Add File"),
            ("*** Begin Patch\n*** Add File: a\nx\n*** End Patch", "line 3: give + before"),
            ("*** Begin Patch\n*** Delete File: a\n-x\n*** End Patch", "line 3: a removed file"),
            ("*** Begin Patch\n*** Update File: a\n?x\n*** End Patch", "line 3: give a space, + or -"),
            (
                "*** Begin Patch\n*** Update File: a\n*** End of File\n*** End Patch",
                "line 3: there are no lines",
            ),
            (
                "*** Begin Patch\n*** Update File: a\n+x\n*** Move to: b\n*** End Patch",
                "line 4: give *** Move to",
            ),
        ] {
            let error = parse(patch).unwrap_err();
            assert!(error.starts_with(expected), "{patch}: {error}");
        }
        for twice in [
            "*** Update File: a\n-x\n+y\n*** Update File: ./a\n-y\n+z",
            "*** Add File: a/b\n+x\n*** Delete File: a//b",
            "*** Update File: a\n*** Move to: b\n-x\n+y\n*** Add File: b\n+z",
        ] {
            let error = parse(&format!("*** Begin Patch\n{twice}\n*** End Patch")).unwrap_err();
            assert!(error.contains("is in it twice"), "{twice}: {error}");
        }
        let many: String = (0..=MAX_CHANGES).map(|index| format!("*** Delete File: {index}\n")).collect();
        assert!(parse(&format!("*** Begin Patch\n{many}*** End Patch")).unwrap_err().contains("at most 200"));
    }

    #[test]
    fn hunks_are_applied_in_order() {
        let text = "a\nb\nc\nb\nd\n";
        assert_eq!(update(text, " a\n-b\n+B\n c").as_deref(), Ok("a\nB\nc\nb\nd\n"));
        assert_eq!(update(text, "@@ c\n-b\n+B").as_deref(), Ok("a\nb\nc\nB\nd\n"));
        assert_eq!(update(text, "-b\n+1\n@@\n-b\n+2").as_deref(), Ok("a\n1\nc\n2\nd\n"));
        assert_eq!(update(text, "@@ a\n+x").as_deref(), Ok("a\nx\nb\nc\nb\nd\n"));
        assert_eq!(update(text, "+x").as_deref(), Ok("a\nb\nc\nb\nd\nx\n"));
        assert_eq!(update("a\na\n", "-a\n+b\n*** End of File").as_deref(), Ok("a\nb\n"));
        assert_eq!(update("  a  \n", "-a\n+b").as_deref(), Ok("b\n"));
        assert_eq!(update("a\n\nb\n", " a\n\n-b\n+c").as_deref(), Ok("a\n\nc\n"));
        assert_eq!(update("a\r\nb\r\n", "-b\n+c").as_deref(), Ok("a\r\nc\n"));
        assert_eq!(update("", "+a").as_deref(), Ok("a\n"));
        assert_eq!(update("a\n", "-a").as_deref(), Ok(""));
        assert_eq!(update("", "+").as_deref(), Ok("\n"));
        assert_eq!(update(text, "-x\n+y").unwrap_err(), "these lines are not in the file:\nx");
        assert_eq!(update(text, "@@ x\n-b\n+y").unwrap_err(), "the line \"x\" is not in the file");
        // Later hunks are below earlier ones.
        assert!(update(text, "-d\n+D\n@@\n-a\n+A").is_err());
    }
    #[test]
    fn work_and_results_are_bounded() {
        // Each of the lines begins like the wanted ones.
        let text = "a\n".repeat(1 << 20);
        let hunk =
            Hunk { old: [vec!["a".to_owned(); 1 << 16], vec!["b".to_owned()]].concat(), ..Hunk::default() };
        let begin = std::time::Instant::now();
        let error = apply(&text, &[hunk], usize::MAX).unwrap_err();
        assert!(error.contains("takes too long"), "{error} after {:?}", begin.elapsed());
        // Many hunks, each of which is found at once.
        let hunk =
            |new: &str| Hunk { old: vec!["a".to_owned()], new: vec![new.to_owned()], ..Hunk::default() };
        let long =
            format!("*** Begin Patch\n*** Add File: a\n{}*** End Patch", "+\n".repeat(MAX_PATCH_LINES));
        assert!(parse(&long).unwrap_err().contains("200000 lines"));
        assert!(apply(&"\n".repeat(MAX_LINES + 1), &[], usize::MAX).unwrap_err().contains("1048576 lines"));
        let hunks = vec![hunk("b"); 1 << 20];
        assert_eq!(apply(&text, &hunks, 2 << 20), Ok("b\n".repeat(1 << 20)));
        let error = apply(&text, &vec![hunk(&"b".repeat(64)); 1 << 10], 2 << 20).unwrap_err();
        assert_eq!(error, "the patch writes more than 2097152 bytes; give it in parts");
    }
}
