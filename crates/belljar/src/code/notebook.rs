//! Notebooks (nbformat 4): their cells, and the file with the outputs of a run.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use belljar_model::{CodeError, CodeResult, CodeStatus};
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::cell::{CodeRequest, Screen, run_cell};
use super::place::Place;
use crate::input::read_text;
use crate::message::{Quit, one_line, say};
use crate::signals::Signals;

/// Extension of notebooks.
const EXTENSION: &str = "ipynb";

/// Maximum size of a notebook's file in bytes, with its outputs.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Maximum number of cells.
const MAX_CELLS: usize = 10_000;

/// Maximum size of all outputs that are saved, in bytes.
const MAX_SAVED_BYTES: usize = 64 << 20;

/// The version of the format that is read and written.
const FORMAT: u64 = 4;

/// Maximum length of a parser's error in a message, in characters.
const ERROR_CHARS: usize = 200;

/// A notebook.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Notebook {
    #[serde(deserialize_with = "bounded")]
    cells: Vec<Cell>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
    nbformat: u64,
    #[serde(default)]
    nbformat_minor: u64,
}

/// A cell. Its outputs and its number are those of this run: the ones in the file are not read.
#[derive(Debug, Deserialize, Serialize)]
struct Cell {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attachments: Option<Box<RawValue>>,
    cell_type: String,
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    execution_count: Option<Option<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<Box<RawValue>>,
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    outputs: Option<Vec<Value>>,
    source: Source,
}

/// A text, as one or as its lines, each with its line end.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum Source {
    Text(String),
    Lines(Vec<String>),
}

/// The version of a notebook, which tells what the rest is like.
#[derive(Debug, Deserialize)]
struct Version {
    nbformat: Option<u64>,
}

/// What a notebook tells about its language.
#[derive(Debug, Default, Deserialize)]
struct Metadata {
    kernelspec: Option<Named>,
    language_info: Option<Named>,
}

#[derive(Debug, Deserialize)]
struct Named {
    language: Option<String>,
    name: Option<String>,
}

/// Reads at most [`MAX_CELLS`] cells.
fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Cell>, D::Error> {
    struct Cells;

    impl<'de> Visitor<'de> for Cells {
        type Value = Vec<Cell>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list of cells")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Cell>, A::Error> {
            let mut cells = Vec::new();
            while let Some(cell) = list.next_element()? {
                if cells.len() == MAX_CELLS {
                    return Err(A::Error::custom(format!("it has more than {MAX_CELLS} cells")));
                }
                cells.push(cell);
            }
            Ok(cells)
        }
    }

    deserializer.deserialize_seq(Cells)
}

/// Reports whether a script is a notebook, by its name.
pub(super) fn is_notebook(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

impl Notebook {
    /// Reads a notebook.
    pub(super) fn read(path: &Path) -> Result<Self, Quit> {
        let text = read_text("script", path, MAX_FILE_BYTES)?;
        Self::parse(&text).map_err(|reason| anyhow::anyhow!("script: {path:?} {reason}").into())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let invalid = |error: serde_json::Error| {
            format!("is not a notebook that can be read: {}", one_line(&error.to_string(), ERROR_CHARS))
        };
        match serde_json::from_str::<Version>(text).map_err(invalid)?.nbformat {
            Some(FORMAT) => {}
            None => return Err("is not a notebook: it has no key nbformat".to_owned()),
            Some(version) if version < FORMAT => {
                return Err(format!(
                    "is a notebook of version {version}; convert it to version {FORMAT} with jupyter nbconvert --to notebook --nbformat {FORMAT}"
                ));
            }
            Some(version) => {
                return Err(format!("is a notebook of version {version}; version {FORMAT} can be read"));
            }
        }
        let mut notebook: Self = serde_json::from_str(text).map_err(invalid)?;
        for cell in notebook.cells.iter_mut().filter(|cell| cell.cell_type == "code") {
            (cell.execution_count, cell.outputs) = (Some(None), Some(Vec::new()));
        }
        Ok(notebook)
    }

    /// Returns the name of the language in which the cells are.
    pub(super) fn language(&self) -> Option<String> {
        let metadata: Metadata = serde_json::from_str(self.metadata.as_ref()?.get()).ok()?;
        let of_kernel = metadata.kernelspec.and_then(|kernel| kernel.language);
        let name = of_kernel.or_else(|| metadata.language_info?.name)?;
        Some(name.to_lowercase())
    }

    /// Returns the number of cells that are run.
    pub(super) fn count(&self) -> usize {
        self.cells.iter().filter(|cell| cell.is_code()).count()
    }

    /// Runs the cells in order, up to the first that fails, and returns the exit status.
    pub(super) async fn run(
        &mut self,
        place: &Place,
        request: &CodeRequest,
        screen: &mut Screen,
        signals: &mut Signals,
    ) -> Result<u8, Quit> {
        let count = self.count();
        let mut room = MAX_SAVED_BYTES;
        for (index, cell) in self.cells.iter_mut().filter(|cell| cell.is_code()).enumerate() {
            let request = CodeRequest { code: cell.source.text().into(), ..request.clone() };
            screen.begin_record(room);
            let done = run_cell(place, request, screen, signals, None).await;
            let record = screen.end_record();
            room = record.room;
            cell.outputs = Some(record.outputs());
            let done = done.inspect_err(|_| report(index, count))?;
            cell.execution_count = Some(Some(done.count));
            if done.status != CodeStatus::Ok {
                report(index, count);
                return Ok(done.exit_status());
            }
        }
        Ok(0)
    }

    /// Writes the notebook, which replaces an earlier file as a whole.
    pub(super) fn save(&self, path: &Path) -> Result<(), Quit> {
        let failed =
            |error: std::io::Error| anyhow::Error::new(error).context(format!("save: cannot write {path:?}"));
        check_destination(path)?;
        let mut text = Vec::new();
        let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
        self.serialize(&mut serde_json::Serializer::with_formatter(&mut text, format))?;
        text.push(b'\n');
        let new = temporary(path);
        let written = OpenOptions::new().write(true).create_new(true).open(&new).and_then(|mut file| {
            file.write_all(&text)?;
            std::fs::rename(&new, path)
        });
        written.inspect_err(|_| drop(std::fs::remove_file(&new))).map_err(failed)?;
        Ok(())
    }
}

/// Reports the cell that failed.
fn report(index: usize, count: usize) {
    let rest = count - index - 1;
    let rest = if rest == 0 { String::new() } else { format!("; the {rest} after it were not run") };
    say(&format!("code cell {} of {count} failed{rest}", index + 1));
}

/// Returns the path under which a file is written until it is complete.
fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

/// Checks that a notebook can be saved there: what is there is replaced, which must not happen to a device or a link.
pub(super) fn check_destination(path: &Path) -> Result<(), Quit> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.file_name().is_none() || path.is_dir() {
        return Err(anyhow::anyhow!("save: {path:?} is a directory; give a file").into());
    }
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(anyhow::anyhow!("save: {path:?} is not a regular file; give another path").into());
    }
    match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(anyhow::anyhow!("save: {dir:?} is not a directory").into()),
        Err(error) => Err(anyhow::Error::new(error).context(format!("save: cannot use {dir:?}")).into()),
    }
}

impl Cell {
    /// Reports whether there is something to run.
    fn is_code(&self) -> bool {
        self.outputs.is_some() && !self.source.text().trim().is_empty()
    }
}

impl Source {
    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Lines(lines) => lines.concat(),
        }
    }
}

/// The outputs of a cell as they happen, up to a size.
#[derive(Debug, Default)]
pub(super) struct Record {
    outputs: Vec<Output>,
    /// Bytes that may still be kept.
    room: usize,
    is_cut: bool,
}

#[derive(Debug)]
enum Output {
    Stream { name: &'static str, bytes: Vec<u8> },
    Other { display_id: Option<String>, value: Value },
}

impl Record {
    pub(super) fn new(room: usize) -> Self {
        Self { room, ..Self::default() }
    }

    /// Takes the room for an output. Without room it is left out.
    fn take(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.room;
        self.room -= if fits { bytes } else { 0 };
        self.is_cut |= !fits;
        fits
    }

    pub(super) fn stream(&mut self, is_error: bool, data: &[u8]) {
        if !self.take(data.len()) {
            return;
        }
        let name = if is_error { "stderr" } else { "stdout" };
        match self.outputs.last_mut() {
            Some(Output::Stream { name: last, bytes }) if *last == name => bytes.extend_from_slice(data),
            _ => self.outputs.push(Output::Stream { name, bytes: data.to_vec() }),
        }
    }

    pub(super) fn result(&mut self, result: &CodeResult, count: u64) {
        let size = |(mime, value): (&String, &Value)| {
            mime.len() + value.as_str().map_or_else(|| value.to_string().len(), str::len)
        };
        if !self.take(result.data.iter().map(size).sum()) {
            return;
        }
        let metadata = result.metadata.clone().unwrap_or_default();
        let mut value = json!({"output_type": "display_data", "data": result.data, "metadata": metadata});
        if result.main {
            value["output_type"] = "execute_result".into();
            value["execution_count"] = count.into();
        }
        if result.update {
            for output in &mut self.outputs {
                if let Output::Other { display_id, value: shown } = output
                    && display_id.is_some()
                    && *display_id == result.display_id
                {
                    for key in ["data", "metadata"] {
                        shown[key] = value[key].clone();
                    }
                }
            }
            return;
        }
        self.outputs.push(Output::Other { display_id: result.display_id.clone(), value });
    }

    pub(super) fn error(&mut self, error: &CodeError) {
        if self.take(error.name.len() + error.value.len() + error.traceback.len()) {
            let traceback: Vec<&str> = error.traceback.lines().collect();
            let value = json!({
                "output_type": "error", "ename": error.name, "evalue": error.value, "traceback": traceback,
            });
            self.outputs.push(Output::Other { display_id: None, value });
        }
    }

    /// Returns the outputs in the form of a notebook.
    fn outputs(self) -> Vec<Value> {
        if self.is_cut {
            say(&format!("save: output of more than {MAX_SAVED_BYTES} bytes is left out"));
        }
        let value = |output| match output {
            Output::Stream { name, bytes } => {
                json!({"output_type": "stream", "name": name, "text": String::from_utf8_lossy(&bytes)})
            }
            Output::Other { value, .. } => value,
        };
        self.outputs.into_iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_and_language_are_read() {
        let text = r##"{"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": {"name": "ir", "language": "R"}, "x": [1]},
            "cells": [
                {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# a\n", "b"]},
                {"cell_type": "code", "metadata": {"y": 2}, "source": ["x = 1\n", "x"], "outputs": [{"z": 1}], "execution_count": 9},
                {"cell_type": "code", "metadata": {}, "source": " ", "outputs": []}
            ]}"##;
        let mut notebook = Notebook::parse(text).unwrap();
        assert_eq!((notebook.language().as_deref(), notebook.count()), (Some("r"), 1));
        assert_eq!(notebook.cells[1].source.text(), "x = 1\nx");
        let mut record = Record::new(1000);
        record.stream(false, b"a");
        record.stream(false, "ü".as_bytes());
        record.stream(true, b"b");
        let mut result = CodeResult { main: true, display_id: Some("d".to_owned()), ..CodeResult::default() };
        result.add("text/plain", b"1");
        record.result(&result, 3);
        (result.main, result.update) = (false, true);
        result.add("text/plain", b"2");
        record.result(&result, 3);
        record.error(&CodeError {
            name: "E".to_owned(),
            value: "v".to_owned(),
            traceback: "a\nb".to_owned(),
        });
        notebook.cells[1].outputs = Some(record.outputs());
        notebook.cells[1].execution_count = Some(Some(3));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.ipynb");
        std::fs::write(&path, "old").unwrap();
        notebook.save(&path).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(notebook.save(&link).is_err() && link.is_symlink());
        std::fs::remove_file(&link).unwrap();
        let saved: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let outputs = json!([
            {"output_type": "stream", "name": "stdout", "text": "aü"},
            {"output_type": "stream", "name": "stderr", "text": "b"},
            {"output_type": "execute_result", "data": {"text/plain": "2"}, "metadata": {}, "execution_count": 3},
            {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["a", "b"]},
        ]);
        let expected = json!({
            "nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": {"name": "ir", "language": "R"}, "x": [1]},
            "cells": [
                {"cell_type": "markdown", "id": "a", "metadata": {}, "source": ["# a\n", "b"]},
                {"cell_type": "code", "metadata": {"y": 2}, "source": ["x = 1\n", "x"], "outputs": outputs, "execution_count": 3},
                {"cell_type": "code", "metadata": {}, "source": " ", "outputs": [], "execution_count": null},
            ],
        });
        assert_eq!(saved, expected);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
    }

    #[test]
    fn other_files_are_refused() {
        let cells = "{\"cell_type\":\"code\",\"source\":\"\"},".repeat(MAX_CELLS);
        let many =
            format!("{{\"nbformat\": 4, \"cells\": [{cells}{{\"cell_type\":\"code\",\"source\":\"\"}}]}}");
        for (text, reason) in [
            ("not JSON", "line 1 column"),
            ("", "EOF"),
            ("[]", "is not a notebook"),
            ("{}", "no key nbformat"),
            (r#"{"nbformat": 3, "worksheets": []}"#, "version 3; convert it to version 4"),
            (r#"{"nbformat": 5, "cells": []}"#, "version 5; version 4 can be read"),
            (r#"{"nbformat": 4}"#, "missing field `cells`"),
            (r#"{"nbformat": 4, "cells": [{"cell_type": "code", "source": 1}]}"#, "is not a notebook"),
            (&many, "more than 10000 cells"),
            (&"[".repeat(100_000), "is not a notebook"),
        ] {
            let error = Notebook::parse(text).unwrap_err();
            assert!(error.contains(reason) && !error.contains('\n') && error.len() < 300, "{error}");
        }
    }

    #[test]
    fn recorded_output_is_bounded() {
        let mut record = Record::new(10);
        record.stream(false, b"0123456");
        record.stream(false, b"78901");
        record.stream(false, b"abc");
        assert!(record.is_cut && record.room == 0);
        assert_eq!(
            record.outputs(),
            [json!({"output_type": "stream", "name": "stdout", "text": "0123456abc"})]
        );
    }
}
