//! Separate layers for each case, and helpers for builds and sandboxes.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use belljar_engine::{CreateRequest, Engine as _, ProcessEvent, v1};
use belljar_image::{BuildError, BuildEvent, BuildInput, Builder, Built, Definition, Layer, Layers};
use belljar_local::{LocalConfig, LocalEngine, LocalKind};
use belljar_model::{Isolation, LimitsGrade, SandboxSpec, TemplateStart, TemplateTree, Tree, TreeBase};

pub(crate) type Case = fn(Fixture) -> Pin<Box<dyn Future<Output = ()>>>;

pub(crate) struct Fixture {
    pub(crate) engine: LocalEngine,
    pub(crate) layers: Layers,
    pub(crate) dir: tempfile::TempDir,
}

/// The result of a command line in a sandbox.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) text: String,
    pub(crate) isolation: Isolation,
}

pub(crate) fn run(case: Case) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let layers = Layers::new(dir.path().join("layers"));
        let engine = LocalEngine::new(LocalConfig::new(LocalKind::Local));
        case(Fixture { engine, layers, dir }).await;
    });
}

impl Fixture {
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Builds a template, and returns the result with the events.
    pub(crate) async fn build(
        &self,
        text: &str,
        input: &BuildInput,
    ) -> (Result<Built, BuildError>, Vec<BuildEvent>) {
        self.build_for("me", text, input).await
    }

    pub(crate) async fn build_for(
        &self,
        owner: &str,
        text: &str,
        input: &BuildInput,
    ) -> (Result<Built, BuildError>, Vec<BuildEvent>) {
        let mut events = Vec::new();
        let mut tell = |event| events.push(event);
        let definition = Definition::parse(text).unwrap();
        let builder = Builder {
            engine: &self.engine,
            layers: &self.layers,
            owner,
            grade: LimitsGrade::default(),
            tell: &mut tell,
        };
        let built = builder.build(&definition, input).await;
        (built, events)
    }

    pub(crate) async fn build_ok(&self, text: &str, input: &BuildInput) -> Built {
        let (built, events) = self.build(text, input).await;
        built.unwrap_or_else(|error| panic!("{error}\n{events:?}"))
    }

    /// Returns the specification of a sandbox with layers.
    pub(crate) fn spec(&self, base: TreeBase, layers: &[Layer], owner: &str) -> SandboxSpec {
        let tree = TemplateTree {
            base,
            layers: self.layers.tree(layers),
            owner: owner.to_owned(),
            build: None,
            warm: Vec::new(),
            start: TemplateStart::default(),
        };
        SandboxSpec { tree: Tree::Template(Box::new(tree)), ..SandboxSpec::default() }
    }

    /// Runs a command line in a sandbox of a built template.
    pub(crate) async fn sh(&self, built: &Built, line: &str) -> CommandOutput {
        self.run_with_spec(&self.spec(built.base, &built.layers, "me"), line).await
    }

    pub(crate) async fn run_with_spec(&self, spec: &SandboxSpec, line: &str) -> CommandOutput {
        let sandbox = self.engine.create(CreateRequest::run(spec)).await.unwrap();
        let request = v1::StartRequest { shell: line.as_bytes().to_vec().into(), ..Default::default() };
        let mut execution = sandbox.guest().start(request).await.unwrap();
        let (mut text, mut code) = (Vec::new(), -1);
        while let Some(event) = execution.next().await.unwrap() {
            match event {
                ProcessEvent::Output { data, .. } => text.extend_from_slice(&data),
                ProcessEvent::Exited(exited) => code = exited.code,
                ProcessEvent::Started { .. } => {}
            }
        }
        let isolation = sandbox.isolation.clone();
        sandbox.stop().await.unwrap();
        CommandOutput { code, text: String::from_utf8_lossy(&text).into_owned(), isolation }
    }

    /// Counts the loop devices that hold a layer of this fixture.
    pub(crate) fn loops(&self) -> usize {
        let files = (0..64).filter_map(|number| {
            std::fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file")).ok()
        });
        files.filter(|file| file.starts_with(&self.path().display().to_string())).count()
    }

    /// Waits until no loop device holds a layer of this fixture.
    pub(crate) async fn wait_for_no_loops(&self) {
        let begin = std::time::Instant::now();
        while self.loops() > 0 {
            assert!(begin.elapsed().as_secs() < 20, "leftover loop device");
            tokio::task::yield_now().await;
        }
    }
}
