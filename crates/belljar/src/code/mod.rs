//! `belljar code` and `belljar run --rich`: code in a context, with its rich results.

mod args;
mod cell;
mod complete;
mod pictures;
mod place;
mod session;

pub(crate) use args::CodeArgs;
pub(crate) use place::server_request;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;

use self::cell::{CodeRequest, Form, Screen};
use self::place::{Place, PlaceRequest};
use crate::cli::RunArgs;
use crate::files::Inputs;
use crate::input::{Program, by_name, read_stdin};
use crate::message::Quit;
use crate::run::runtime;
use crate::service::args::{Format, ServerArgs};
use crate::service::values;
use crate::signals::Signals;

/// Prefix of the languages that name a Jupyter kernel.
const JUPYTER: &str = "jupyter:";

/// Runs `belljar code`.
pub(crate) fn code(args: &CodeArgs) -> Result<u8, Quit> {
    let pictures = directory(args.out.as_deref())?;
    let language = match args.language.as_deref() {
        Some(name) if name.starts_with(JUPYTER) => name.to_owned(),
        name => by_name(name.unwrap_or("python"))?.name.clone(),
    };
    let limit = args.timeout.as_deref().map(|text| values::time("timeout", text)).transpose()?;
    let request = PlaceRequest::from_code_args(args)?;
    let inputs = Inputs::find(&args.files, None)?;
    let is_terminal = rustix::termios::isatty(rustix::stdio::stdin());
    let form = if args.server.format == Format::Json { Form::Json } else { Form::Plain };
    let code = match is_terminal {
        true => None,
        false => Some(Bytes::from(read_stdin()?)),
    };
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut signals = Signals::catch()?;
        let place = Place::open(request, inputs, &mut signals).await?;
        let mut screen = Screen::new(form, pictures, args.server.quiet);
        let code_request = CodeRequest { language, limit, ..CodeRequest::default() };
        let done = match code {
            Some(code) => {
                cell::run(&place, CodeRequest { code, ..code_request }, &mut screen, &mut signals).await
            }
            None => session::session(&place, &code_request, &mut screen, &mut signals).await,
        };
        place.end(done).await
    })
}

/// Runs `belljar run --rich`.
pub(crate) fn rich(args: &RunArgs) -> Result<u8, Quit> {
    let Some(program) = Program::read(args.code.as_deref(), &args.words, args.language.as_deref())? else {
        return Err(Quit::Usage(
            "give a script, -c CODE, or pipe a script in; belljar run --help says more".to_owned(),
        ));
    };
    if !program.args.is_empty() {
        return Err(Quit::Usage("--rich: code in a context has no arguments; leave them out".to_owned()));
    }
    let pictures = match args.outs.as_slice() {
        [] => directory(None)?,
        [dir] => directory(Some(Path::new(dir)))?,
        _ => return Err(Quit::Usage("--out: with --rich it is one directory, for pictures".to_owned())),
    };
    let limit = match args.sandbox.resources.get("timeout") {
        Some(text) => values::time("timeout", text)?,
        None => belljar_model::Timeout::default().duration(),
    };
    let request = PlaceRequest::from_run_args(args, program.language)?;
    let inputs = Inputs::find(&args.files, None)?;
    let form = if args.json { Form::Json } else { Form::Plain };
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let mut signals = Signals::catch()?;
        let place = Place::open(request, inputs, &mut signals).await?;
        let mut screen = Screen::new(form, pictures, args.sandbox.quiet);
        let code_request = CodeRequest {
            code: program.source,
            language: program.language.name.clone(),
            limit: Some(limit),
            ..CodeRequest::default()
        };
        let done = cell::run(&place, code_request, &mut screen, &mut signals).await;
        place.end(done).await
    });
    std::mem::forget(runtime);
    done
}

/// Returns the directory for pictures, which must exist.
fn directory(named: Option<&Path>) -> Result<PathBuf, Quit> {
    let Some(dir) = named else { return Ok(PathBuf::from(".")) };
    match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => Ok(dir.to_owned()),
        Ok(_) => Err(anyhow::anyhow!("out: {dir:?} is not a directory; give one for pictures").into()),
        Err(error) => Err(anyhow::Error::new(error).context(format!("out: cannot use {dir:?}")).into()),
    }
}

/// Converts a time to milliseconds; `None` is 0.
fn milliseconds(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
