//! `belljar code` and `belljar run --rich`: code in a context, with its rich results.

mod args;
mod cell;
mod editor;
mod highlight;
mod history;
mod lexical;
mod notebook;
mod pictures;
mod place;
mod session;

pub(crate) use args::CodeArgs;
pub(crate) use place::server_request;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use belljar_model::Language;
use bytes::Bytes;

use self::cell::{CodeRequest, Form, Screen, run_cell};
use self::notebook::Notebook;
use self::place::{Place, PlaceRequest};
use crate::bring_out;
use crate::cli::{Cleanup, RunArgs, misplaced_option};
use crate::copy_out::Outputs;
use crate::files::Inputs;
use crate::input::{Program, by_name, read_stdin};
use crate::message::Quit;
use crate::packages::Packages;
use crate::run::runtime;
use crate::service::args::{Format, ServerArgs};
use crate::service::values;
use crate::signals::Signals;

/// Prefix of the languages that name a Jupyter kernel.
const JUPYTER: &str = "jupyter:";

/// Runs `belljar code`.
pub(crate) fn code(args: &CodeArgs) -> Result<u8, Quit> {
    let pictures = directory("out", args.out.as_deref())?;
    let language = match args.language.as_deref() {
        Some(name) if name.starts_with(JUPYTER) => name.to_owned(),
        name => by_name(name.unwrap_or("python"))?.name.clone(),
    };
    let limit = args.timeout.as_deref().map(|text| values::time("timeout", text)).transpose()?;
    let request = PlaceRequest::from_code_args(args)?;
    let inputs = Inputs::find(&args.files, None)?;
    make(&pictures)?;
    let is_terminal = rustix::termios::isatty(rustix::stdio::stdin());
    let form = if args.server.format() == Format::Json { Form::Json } else { Form::Plain };
    let code = match is_terminal {
        true => None,
        false => Some(Bytes::from(read_stdin()?)),
    };
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut signals = Signals::catch()?;
        let place = Place::open(request, None, inputs, &mut signals).await?;
        let mut screen = Screen::new(form, pictures, args.server.quiet);
        let code_request = CodeRequest { language, limit, ..CodeRequest::default() };
        let done = match code {
            Some(code) => {
                let code_request = CodeRequest { code, ..code_request };
                let done = run_cell(&place, code_request, &mut screen, &mut signals, None).await;
                done.map(|done| done.exit_status())
            }
            None => session::session(&place, &code_request, &mut screen, &mut signals).await,
        };
        place.end(done).await
    })
}

/// What `belljar run --rich` runs.
enum Work {
    Program(Program),
    Notebook(Box<Notebook>),
}

impl Work {
    fn read(args: &RunArgs) -> Result<Self, Quit> {
        if let Some(path) = notebook_path(args) {
            return Ok(Self::Notebook(Box::new(Notebook::read(path)?)));
        }
        if args.save.is_some() {
            return Err(Quit::Usage(
                "--save: it is for notebooks; give a script that ends in .ipynb".to_owned(),
            ));
        }
        match Program::read(args.code.as_deref(), &args.words, args.language.as_deref().map(without_kernel))?
        {
            Some(program) => Ok(Self::Program(program)),
            None => Err(Quit::Usage(
                "give a script, -c CODE, or pipe a script in; belljar run --help says more".to_owned(),
            )),
        }
    }

    fn language(&self, named: Option<&str>) -> Result<&'static Language, Quit> {
        Ok(match (self, named) {
            (Self::Program(program), _) => program.language,
            (Self::Notebook(_), Some(name)) => by_name(without_kernel(name))?,
            (Self::Notebook(notebook), None) => {
                by_name(&notebook.language().unwrap_or_else(|| "python".to_owned()))?
            }
        })
    }
}

/// Returns the language whose limits and packages are meant: Python, if a kernel of Jupyter is named.
fn without_kernel(language: &str) -> &str {
    if language.starts_with(JUPYTER) { "python" } else { language }
}

/// Returns the path of the notebook that the command line names, if it is one.
pub(crate) fn notebook_path(args: &RunArgs) -> Option<&Path> {
    let script = args.words.first().filter(|_| args.code.is_none()).map(Path::new)?;
    notebook::is_notebook(script).then_some(script)
}

/// Runs `belljar run --rich`, and notebooks.
pub(crate) fn rich(args: &RunArgs) -> Result<u8, Quit> {
    let others = [
        ("events", args.events),
        ("timings", args.timings),
        ("log-dir", args.log_dir.is_some()),
        ("cleanup", args.cleanup != Cleanup::Wait),
    ];
    if let Some((flag, _)) = others.iter().find(|(_, is_given)| *is_given) {
        return Err(Quit::Usage(format!("--{flag}: it is not for notebooks; leave it out")));
    }
    Packages::check(&args.with)?;
    let mut work = Work::read(args)?;
    let program_args = args.words.get(usize::from(args.code.is_none())..).unwrap_or_default();
    if !program_args.is_empty() {
        return Err(Quit::Usage(match (misplaced_option(program_args), notebook_path(args)) {
            (Some(option), Some(_)) => format!("{option}: options of belljar run go before the notebook"),
            (None, Some(_)) => "a notebook has no arguments; leave them out".to_owned(),
            (_, None) => "--rich: code in a context has no arguments; leave them out".to_owned(),
        }));
    }
    if let Some(path) = &args.save {
        notebook::check_destination(path)?;
    }
    let pictures = directory("pictures", args.pictures.as_deref())?;
    let outputs = Outputs::find(&args.outs)?;
    let limit = match args.sandbox.resources.get("timeout") {
        Some(text) => values::time("timeout", text)?,
        None => belljar_model::Timeout::default().duration(),
    };
    let language = work.language(args.language.as_deref())?;
    let (source, count) = match &work {
        Work::Program(program) => (std::str::from_utf8(&program.source).unwrap_or_default(), 1),
        Work::Notebook(notebook) => ("", notebook.count()),
    };
    let packages = Packages::find(&args.with, language, source)?;
    let life = limit.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
    let (request, installation) = PlaceRequest::from_run_args(args, language, life, packages)?;
    let inputs = Inputs::find(&args.files, None)?;
    make(&pictures)?;
    let form = if args.is_json() { Form::Json } else { Form::Plain };
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let mut signals = Signals::catch()?;
        let place = Place::open(request, Some(installation), inputs, &mut signals).await?;
        let mut screen = Screen::new(form, pictures, args.sandbox.quiet);
        let kernel = args.language.as_ref().filter(|name| name.starts_with(JUPYTER));
        let code_request = CodeRequest {
            language: kernel.unwrap_or(&language.name).clone(),
            limit: Some(limit),
            tools: args.tools.clone(),
            ..CodeRequest::default()
        };
        let done = match &mut work {
            Work::Program(program) => {
                let code_request = CodeRequest { code: program.source.clone(), ..code_request };
                let done = run_cell(&place, code_request, &mut screen, &mut signals, None).await;
                done.map(|done| done.exit_status())
            }
            Work::Notebook(notebook) => {
                let done = notebook.run(&place, &code_request, &mut screen, &mut signals).await;
                match args.save.as_deref().map(|path| notebook.save(path)) {
                    Some(Err(error)) if done.is_ok() => Err(error),
                    _ => done,
                }
            }
        };
        let done = match done {
            Ok(status) if !outputs.is_empty() => {
                let copied =
                    bring_out::bring_out(&outputs, place.guest(), place.most_bytes(), &mut signals).await;
                copied.map(|errors| bring_out::report(&errors, status != 0, args.sandbox.quiet, status))
            }
            done => done,
        };
        place.end(done).await
    });
    std::mem::forget(runtime);
    done
}

/// Returns the directory for pictures. One that does not exist is made before the run.
fn directory(flag: &str, named: Option<&Path>) -> Result<PathBuf, Quit> {
    let Some(dir) = named else { return Ok(PathBuf::from(".")) };
    match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => Ok(dir.to_owned()),
        Ok(_) => Err(anyhow::anyhow!("{flag}: {dir:?} is not a directory; give one for pictures").into()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(dir.to_owned()),
        Err(error) => Err(anyhow::Error::new(error).context(format!("{flag}: cannot use {dir:?}")).into()),
    }
}

fn make(dir: &Path) -> Result<(), Quit> {
    Ok(std::fs::create_dir_all(dir).with_context(|| format!("cannot create {dir:?} for pictures"))?)
}

/// Converts a time to milliseconds; `None` is 0.
fn milliseconds(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
