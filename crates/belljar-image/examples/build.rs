//! Builds a template without a server, and runs a command line in a sandbox of it:
//! `cargo run -p belljar-image --example build -- TEMPLATE.toml LAYERS_DIR MIRROR|- IMAGE|- [COMMAND]`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use belljar_engine::{Engine, ProcessEvent, v1};
use belljar_image::{BuildEvent, BuildInput, Builder, Definition, Layers};
use belljar_local::{CreateRequest, LocalConfig, LocalEngine, LocalKind};
use belljar_model::{LimitsGrade, TemplateStart, TemplateTree, Tree};

fn print(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn main() -> ExitCode {
    belljar_guest::enter();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    match runtime.block_on(build(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            print(&text);
            ExitCode::FAILURE
        }
    }
}

async fn build(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let [file, layers, mirror, image, command @ ..] = arguments else {
        return Err("give TEMPLATE LAYERS MIRROR|- IMAGE|- [COMMAND]".into());
    };
    let definition = Definition::parse(&std::fs::read_to_string(file)?)?;
    let layers = Layers::new(std::path::absolute(layers)?);
    let engine = LocalEngine::new(LocalConfig::new(LocalKind::Local));
    let path = |text: &String| (text != "-").then(|| PathBuf::from(text));
    let input = BuildInput { mirror: path(mirror), image: path(image), ..BuildInput::default() };
    let begin = Instant::now();
    let mut tell = |event: BuildEvent| print(&format!("{:6.1} s  {event:?}", begin.elapsed().as_secs_f64()));
    let builder = Builder {
        engine: &engine,
        layers: &layers,
        owner: "me",
        grade: LimitsGrade::default(),
        tell: &mut tell,
    };
    let built = builder.build(&definition, &input).await?;
    print(&format!("{:6.1} s  {built:?}", begin.elapsed().as_secs_f64()));
    let tree = TemplateTree {
        base: built.base,
        layers: layers.tree(&built.layers),
        owner: "me".to_owned(),
        build: None,
        warm: Vec::new(),
        start: TemplateStart::default(),
    };
    let mut spec = built.spec.resolve()?;
    spec.tree = Tree::Template(Box::new(tree));
    for line in command {
        let begin = Instant::now();
        let sandbox = engine.create(CreateRequest::run(&spec)).await?;
        let request = v1::StartRequest { shell: line.clone().into_bytes().into(), ..Default::default() };
        let mut execution = sandbox.guest().start(request).await?;
        while let Some(event) = execution.next().await? {
            match event {
                ProcessEvent::Output { data, .. } => print(&String::from_utf8_lossy(&data)),
                ProcessEvent::Exited(exited) => {
                    print(&format!("exit code {} after {:?}", exited.code, begin.elapsed()));
                }
                ProcessEvent::Started { .. } => {}
            }
        }
        sandbox.stop().await?;
    }
    Ok(())
}
