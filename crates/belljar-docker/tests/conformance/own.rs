//! What only this engine has: images, what the daemon is left with, and sandboxes that outlive their server.

use std::time::Duration;

use belljar_docker::{DockerConfig, DockerEngine, Route};
use belljar_engine::{CreateRequest, Engine as _, EngineError, ProcessEvent, Sandbox, v1};
use belljar_model::{EngineName, LimitsChange, NetworkFile, SandboxId, SandboxSpec, Tree};
use libtest_mimic::{Completion, Failed, Trial};

use crate::daemon::Daemon;
use crate::with_daemon;

type Checked<T = ()> = Result<T, Failed>;
type Test = fn(&Daemon) -> Checked;

pub(crate) fn trials() -> Vec<Trial> {
    let all: [(&str, Test); 10] = [
        ("twenty_in_a_row_leave_nothing", twenty_in_a_row_leave_nothing),
        ("missing_image_is_an_error", missing_image_is_an_error),
        ("image_without_a_shell_starts", image_without_a_shell_starts),
        ("hostile_image_gets_no_more", hostile_image_gets_no_more),
        ("image_that_moves_the_socket_is_refused", image_that_moves_the_socket_is_refused),
        ("network_is_refused_by_name", network_is_refused_by_name),
        ("missing_daemon_is_an_error_with_a_fix", missing_daemon_is_an_error_with_a_fix),
        ("sandbox_outlives_its_server", sandbox_outlives_its_server),
        ("interrupted_launches_are_removed", interrupted_launches_are_removed),
        ("limits_are_those_of_the_container", limits_are_those_of_the_container),
    ];
    let trial = |(name, test): (&str, Test)| {
        Trial::ignorable_test(format!("own::{name}"), move || {
            with_daemon(|daemon| test(daemon).map(|()| Completion::Completed))
        })
    };
    all.map(trial).into()
}

fn spec() -> SandboxSpec {
    SandboxSpec { engine: EngineName::known("docker"), ..SandboxSpec::default() }
}

fn id(byte: u8) -> SandboxId {
    let mut bytes = [byte; SandboxId::LEN];
    bytes[..4].copy_from_slice(&std::process::id().to_ne_bytes());
    SandboxId::from_entropy(bytes)
}

fn block_on<T>(future: impl Future<Output = T>) -> Checked<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(future))
}

/// Runs a program, and returns its output and its exit status.
async fn run(sandbox: &Sandbox, argv: &[&str]) -> Checked<(String, i32)> {
    let argv = argv.iter().map(|word| bytes::Bytes::copy_from_slice(word.as_bytes())).collect();
    let request = v1::StartRequest { argv, ..Default::default() };
    let mut execution = sandbox.guest().start(request).await?;
    let mut output = Vec::new();
    while let Some(event) = execution.next().await? {
        match event {
            ProcessEvent::Output { data, .. } => output.extend_from_slice(&data),
            ProcessEvent::Exited(exited) => {
                return Ok((String::from_utf8_lossy(&output).trim().to_owned(), exited.code));
            }
            _ => {}
        }
    }
    Err("the program has no end".into())
}

/// Everything of this engine that the daemon has, but for the guest's volume.
fn inventory(daemon: &Daemon) -> Checked<(String, String)> {
    let containers = daemon.docker(&["ps", "--all", "--quiet", "--filter", "label=belljar.sandbox"])?;
    let volumes = daemon.docker(&["volume", "ls", "--quiet"])?;
    let volumes = volumes.lines().filter(|name| !name.starts_with("belljar-guest-"));
    Ok((containers, volumes.collect::<Vec<_>>().join(" ")))
}

fn twenty_in_a_row_leave_nothing(daemon: &Daemon) -> Checked {
    let engine = DockerEngine::new(daemon.config(Route::Shortest));
    let mut ids = Vec::new();
    block_on(async {
        for round in 0..20u8 {
            let spec = spec();
            let sandbox = engine.create(CreateRequest::run(&spec)).await?;
            ids.push(sandbox.id.clone());
            match round % 3 {
                0 => sandbox.stop().await?,
                1 => {
                    sandbox.kill();
                    sandbox.stop().await?;
                }
                _ => drop(sandbox),
            }
        }
        for id in &ids {
            while !daemon.leftovers(id.as_str()).is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Checked::Ok(())
    })??;
    let (_, volumes) = inventory(daemon)?;
    if !volumes.is_empty() {
        return Err(format!("volumes are left: {volumes}").into());
    }
    Ok(())
}

fn missing_image_is_an_error(daemon: &Daemon) -> Checked {
    let engine = DockerEngine::new(daemon.config(Route::Shortest));
    let spec = SandboxSpec { tree: Tree::Image("no-such-image:7".parse()?), ..spec() };
    let made = block_on(engine.create(CreateRequest::run(&spec)))?;
    match made {
        Err(EngineError::Unsupported { what, reason, .. })
            if what == "image" && reason.contains("docker.io/library/no-such-image:7") =>
        {
            Ok(())
        }
        other => Err(format!("got {other:?}").into()),
    }
}

/// Imports an image that has nothing but a file and these links, with these changes of its configuration.
fn import(daemon: &Daemon, name: &str, links: &[(&str, &str)], changes: &[&str]) -> Checked {
    let dir = tempfile::tempdir()?;
    let root = dir.path().join("root");
    std::fs::create_dir(&root)?;
    std::fs::write(root.join("file"), "of the image")?;
    for (link, target) in links {
        let link = root.join(link);
        std::fs::create_dir_all(link.parent().ok_or("a link has a directory")?)?;
        std::os::unix::fs::symlink(target, link)?;
    }
    let tar = dir.path().join("image.tar");
    let made =
        std::process::Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&tar).arg(".").status()?;
    if !made.success() {
        return Err("tar has failed".into());
    }
    let mut arguments = vec!["import"];
    arguments.extend(changes.iter().flat_map(|change| ["--change", change]));
    let tar = tar.display().to_string();
    arguments.extend([tar.as_str(), name]);
    daemon.docker(&arguments)?;
    Ok(())
}

fn image_without_a_shell_starts(daemon: &Daemon) -> Checked {
    import(daemon, "belljar-test-bare:1", &[], &[])?;
    let engine = DockerEngine::new(daemon.config(Route::Shortest));
    let spec = SandboxSpec { tree: Tree::Image("belljar-test-bare:1".parse()?), ..spec() };
    block_on(async {
        let sandbox = engine.create(CreateRequest::run(&spec)).await?;
        let content = sandbox.read_file("/file", 100).await?;
        let started = run(&sandbox, &["/bin/sh"]).await;
        sandbox.stop().await?;
        if content != "of the image" || started.is_ok() {
            return Err(format!("got {content:?} and {started:?}").into());
        }
        Checked::Ok(())
    })?
}

/// An image whose configuration asks for a volume, another user, a program of its own, and checks that run in the container.
fn hostile_image_gets_no_more(daemon: &Daemon) -> Checked {
    let changes = [
        "VOLUME /data",
        "USER nobody-there",
        "ENTRYPOINT [\"/no/such\"]",
        "HEALTHCHECK --interval=1s CMD /no/such",
        "ENV HOME=/data LD_PRELOAD=/file",
        "LABEL belljar.sandbox=other belljar.server=other",
    ];
    import(daemon, "belljar-test-hostile:1", &[], &changes)?;
    let engine = DockerEngine::new(daemon.config(Route::Shortest));
    let spec = SandboxSpec { tree: Tree::Image("belljar-test-hostile:1".parse()?), ..spec() };
    block_on(async {
        let sandbox = engine.create(CreateRequest::run(&spec)).await?;
        let name = format!("belljar-{}", sandbox.id);
        let facts = daemon.docker(&[
            "inspect",
            "--format",
            "{{json .Config.Healthcheck}} {{json .Config.Entrypoint}} {{len .Mounts}} {{index .Config.Labels \"belljar.sandbox\"}} \
             {{json (index .HostConfig.Tmpfs \"/data\")}}",
            &name,
        ])?;
        sandbox.write_file("/data/file", "in memory").await?;
        let id = sandbox.id.clone();
        sandbox.stop().await?;
        let walls = format!("[\"/.belljar/bin/guest\"] 1 {id} \"rw,nosuid,nodev,exec,size=");
        if !facts.starts_with("{\"Test\":[\"NONE\"]") || !facts.contains(&walls) {
            return Err(format!("the container has {facts}").into());
        }
        Checked::Ok(())
    })??;
    match inventory(daemon)? {
        (_, volumes) if volumes.is_empty() => Ok(()),
        left => Err(format!("left: {left:?}").into()),
    }
}

/// Symbolic links of an image: each one's path and target.
type Links = &'static [(&'static str, &'static str)];

/// Images in which a place where user code may write is that of the guest's socket, by a link or a volume.
fn image_that_moves_the_socket_is_refused(daemon: &Daemon) -> Checked {
    let in_reach = &["user code could write in"][..];
    let cannot_start = &["cannot start the container"][..];
    // The daemon mounts in no fixed order, so it or the guest comes first.
    let either = &[in_reach[0], cannot_start[0]][..];
    let images: [(&str, Links, &[&str], &[&str]); 6] = [
        ("home", &[("home/user", "/.belljar/run")], &[], in_reach),
        ("tmp", &[("tmp", "/")], &[], either),
        ("guest", &[("var/tmp", "/.belljar")], &[], cannot_start),
        ("volume", &[("a/b/c", "/.belljar/run")], &["VOLUME /a/b/c"], in_reach),
        ("socket", &[(".belljar", "/tmp")], &[], in_reach),
        ("declared", &[], &["VOLUME /x/../.belljar"], &["declares the volume"]),
    ];
    let dir = tempfile::tempdir()?;
    let run_dir = dir.path().join("docker");
    let engine =
        DockerEngine::new(DockerConfig { run_dir: Some(run_dir.clone()), ..daemon.config(Route::Shortest) });
    for (number, (name, links, changes, reasons)) in (10..).zip(images) {
        let (name, id) = (format!("belljar-test-moves-{name}:1"), id(number));
        import(daemon, &name, links, changes)?;
        let spec = SandboxSpec { tree: Tree::Image(name.parse()?), ..spec() };
        let made = block_on(engine.create(CreateRequest::long_lived(&id, &spec, None)))?;
        let refusal = made.err().as_ref().map(chain).unwrap_or_default();
        if !reasons.iter().any(|reason| refusal.contains(reason)) {
            return Err(format!("{name}: {refusal:?}").into());
        }
        let left = daemon.leftovers(id.as_str());
        if !left.is_empty() || run_dir.join(format!("{id}.json")).exists() {
            return Err(format!("{name} leaves {left:?}").into());
        }
    }
    Ok(())
}

/// Returns an error with its causes.
fn chain(error: &EngineError) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn network_is_refused_by_name(daemon: &Daemon) -> Checked {
    let engine = DockerEngine::new(daemon.config(Route::Shortest));
    let spec = SandboxSpec {
        network: NetworkFile { mode: Some("open".to_owned()), ..NetworkFile::default() }.resolve()?,
        ..spec()
    };
    match block_on(engine.create(CreateRequest::run(&spec)))? {
        Err(EngineError::Unsupported { what, .. }) if what == "network" => Ok(()),
        other => Err(format!("got {other:?}").into()),
    }
}

fn missing_daemon_is_an_error_with_a_fix(daemon: &Daemon) -> Checked {
    for host in ["unix:///no/such.sock", "tcp://127.0.0.1:1", "ssh://host"] {
        let mut config = daemon.config(Route::Shortest);
        config.settings.host = Some(host.to_owned());
        let engine = DockerEngine::new(config);
        match block_on(engine.create(CreateRequest::run(&spec())))? {
            Err(EngineError::Layer { reason, fix, .. })
                if reason.contains(host) && fix.contains("engines.docker.host") => {}
            other => return Err(format!("{host}: got {other:?}").into()),
        }
    }
    Ok(())
}

fn sandbox_outlives_its_server(daemon: &Daemon) -> Checked {
    let dir = tempfile::tempdir()?;
    let config =
        || DockerConfig { run_dir: Some(dir.path().join("docker")), ..daemon.config(Route::Shortest) };
    let (running, paused) = (id(1), id(2));
    block_on(async {
        let engine = DockerEngine::new(config());
        assert!(engine.survivors().await?.is_empty());
        for id in [&running, &paused] {
            let sandbox = engine.create(CreateRequest::long_lived(id, &spec(), None)).await?;
            sandbox.write_file("file", id.to_string()).await?;
            let again = engine.create(CreateRequest::long_lived(id, &spec(), None)).await;
            assert!(matches!(again, Err(EngineError::IdInUse { .. })), "{again:?}");
            sandbox.set_deadline(Some(Duration::from_secs(600))).await?;
            if *id == paused {
                sandbox.freeze().await?;
            }
        }
        Checked::Ok(())
    })??;
    // A server with other records has other sandboxes.
    block_on(async {
        let other = DockerConfig { run_dir: Some(dir.path().join("other")), ..config() };
        assert!(DockerEngine::new(other).survivors().await?.is_empty());
        let engine = DockerEngine::new(config());
        let survivors = engine.survivors().await?;
        assert_eq!(survivors.len(), 2, "{survivors:?}");
        for survivor in survivors {
            assert_eq!(survivor.is_frozen, survivor.id == paused);
            assert!(
                survivor.ended.is_none() && survivor.deadline > Some(Duration::from_secs(500)),
                "{survivor:?}"
            );
            let sandbox = engine.adopt(&survivor.id).await?.ok_or("it is not there")?;
            if survivor.is_frozen {
                sandbox.thaw().await?;
            }
            assert_eq!(sandbox.read_file("file", 100).await?, survivor.id.as_str());
            if survivor.id == paused {
                sandbox.stop().await?;
            }
        }
        // Killed by somebody else while no server runs.
        daemon.docker(&["kill", &format!("belljar-{running}")])?;
        let engine = DockerEngine::new(config());
        let survivors = engine.survivors().await?;
        assert_eq!(survivors.len(), 1, "{survivors:?}");
        assert!(survivors[0].ended.is_some() && engine.adopt(&running).await?.is_none());
        assert!(engine.survivors().await?.is_empty());
        Checked::Ok(())
    })??;
    for id in [running, paused] {
        let left = daemon.leftovers(id.as_str());
        assert!(left.is_empty(), "{left:?}");
    }
    Ok(())
}

/// A server that was killed between the creation of a container and its start, or before the creation.
fn interrupted_launches_are_removed(daemon: &Daemon) -> Checked {
    let dir = tempfile::tempdir()?;
    let run_dir = dir.path().join("docker");
    let config = || DockerConfig { run_dir: Some(run_dir.clone()), ..daemon.config(Route::Shortest) };
    let (recorded, created) = (id(3), id(4));
    block_on(async {
        let engine = DockerEngine::new(config());
        let sandbox = engine.create(CreateRequest::long_lived(&created, &spec(), None)).await?;
        let record = run_dir.join(format!("{created}.json"));
        std::fs::copy(&record, run_dir.join(format!("{recorded}.json")))?;
        let kept = std::fs::read(&record)?;
        sandbox.stop().await?;
        std::fs::write(&record, kept)?;
        let server = std::fs::read_to_string(run_dir.join("id"))?;
        let labels = [format!("belljar.sandbox={created}"), format!("belljar.server={server}")];
        let name = format!("belljar-{created}");
        daemon.docker(&[
            "create",
            "--name",
            &name,
            "--label",
            &labels[0],
            "--label",
            &labels[1],
            "belljar-test:1",
            "/bin/sh",
        ])?;
        let survivors = DockerEngine::new(config()).survivors().await?;
        assert!(survivors.len() == 1 && survivors[0].ended.is_some(), "{survivors:?}");
        Checked::Ok(())
    })??;
    assert!(daemon.leftovers(created.as_str()).is_empty());
    let names = std::fs::read_dir(&run_dir)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert_eq!(names.collect::<Vec<_>>(), ["id"]);
    Ok(())
}

/// What the daemon was told is what it enforces, also after a change.
fn limits_are_those_of_the_container(daemon: &Daemon) -> Checked {
    let engine = DockerEngine::new(daemon.config(Route::Shortest));
    let mut spec = spec();
    spec.limits.memory = "128m".parse()?;
    spec.limits.cpus = "0.5".parse()?;
    spec.limits.pids = "20".parse()?;
    block_on(async {
        let sandbox = engine.create(CreateRequest::run(&spec)).await?;
        let name = format!("belljar-{}", sandbox.id);
        let limits = || {
            let format = "{{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.HostConfig.NanoCpus}} {{.HostConfig.PidsLimit}}";
            daemon.docker(&["inspect", "--format", format, &name])
        };
        assert_eq!(limits()?, "134217728 134217728 500000000 22");
        let change = LimitsChange {
            memory: Some("256m".parse()?),
            pids: Some("30".parse()?),
            ..LimitsChange::default()
        };
        sandbox.set_limits(&change).await?;
        assert_eq!(limits()?, "268435456 268435456 500000000 32");
        let (text, _) = run(&sandbox, &["/bin/sh", "-c", "ulimit -c; cat /proc/1/environ 2>&1"]).await?;
        assert!(text.starts_with('0') && text.contains("ermission denied"), "{text}");
        sandbox.stop().await?;
        Checked::Ok(())
    })?
}
