//! What only this engine has: images, what the daemon is left with, and sandboxes that outlive their server.

use std::time::{Duration, Instant};

use belljar_docker::{DockerConfig, DockerEngine, Route};
use belljar_engine::conformance::{
    self, OwnTest, Setup as _, Tested, block_on, id, in_a_row_leave_nothing, own_trial, run,
};
use belljar_engine::{CreateRequest, Engine as _, EngineError};
use belljar_model::{LimitsChange, NetworkFile, SandboxId, SandboxSpec, Tree};
use libtest_mimic::Trial;

use crate::daemon::Daemon;

pub(crate) fn trials() -> Vec<Trial> {
    let all: [OwnTest<Daemon>; 11] = [
        ("twenty_in_a_row_leave_nothing", twenty_in_a_row_leave_nothing),
        ("missing_image_is_an_error", missing_image_is_an_error),
        ("image_without_a_shell_starts", image_without_a_shell_starts),
        ("hostile_image_gets_no_more", hostile_image_gets_no_more),
        ("image_that_moves_the_socket_is_refused", image_that_moves_the_socket_is_refused),
        ("network_elsewhere_is_refused_by_name", network_elsewhere_is_refused_by_name),
        ("missing_daemon_is_an_error_with_a_fix", missing_daemon_is_an_error_with_a_fix),
        ("sandbox_outlives_its_server", sandbox_outlives_its_server),
        ("interrupted_launches_are_removed", interrupted_launches_are_removed),
        ("limits_are_those_of_the_container", limits_are_those_of_the_container),
        ("waiting_connections_end_the_sandbox", |daemon| {
            conformance::waiting_connections_end_the_sandbox::<Daemon>(&DockerEngine::new(
                daemon.config(Route::Shortest),
            ))
        }),
    ];
    all.map(own_trial).into()
}

fn spec() -> SandboxSpec {
    conformance::spec::<Daemon>()
}

/// Waits until the daemon has no volume but the guest's that no container uses: one that is being made or removed has none for a moment.
fn no_volume_is_left(daemon: &Daemon) -> Tested {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let volumes = daemon.docker(&["volume", "ls", "--quiet", "--filter", "dangling=true"])?;
        let left: Vec<_> = volumes.lines().filter(|name| !name.starts_with("belljar-guest-")).collect();
        match left.is_empty() {
            true => return Ok(()),
            false if Instant::now() > deadline => return Err(format!("volumes are left: {left:?}").into()),
            false => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn twenty_in_a_row_leave_nothing(daemon: &Daemon) -> Tested {
    in_a_row_leave_nothing(daemon, &DockerEngine::new(daemon.config(Route::Shortest)), 20)?;
    no_volume_is_left(daemon)
}

fn missing_image_is_an_error(daemon: &Daemon) -> Tested {
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
fn import(daemon: &Daemon, name: &str, links: &[(&str, &str)], changes: &[&str]) -> Tested {
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

fn image_without_a_shell_starts(daemon: &Daemon) -> Tested {
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
        Tested::Ok(())
    })?
}

/// An image whose configuration asks for a volume, another user, a program of its own, and checks that run in the container.
fn hostile_image_gets_no_more(daemon: &Daemon) -> Tested {
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
        Tested::Ok(())
    })??;
    no_volume_is_left(daemon)
}

/// Symbolic links of an image: each one's path and target.
type Links = &'static [(&'static str, &'static str)];

/// Images in which a place where user code may write is that of the guest's socket, by a link or a volume.
fn image_that_moves_the_socket_is_refused(daemon: &Daemon) -> Tested {
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

/// A daemon that is reached as one of another machine, and one with such an address.
fn network_elsewhere_is_refused_by_name(daemon: &Daemon) -> Tested {
    let through = daemon.config(Route::ThroughDaemon);
    let mut elsewhere = daemon.config(Route::Shortest);
    elsewhere.settings.host = Some("tcp://127.0.0.1:1".to_owned());
    let network = NetworkFile { mode: Some("open".to_owned()), ..NetworkFile::default() }.resolve()?;
    let spec = SandboxSpec { network, ..spec() };
    for config in [through, elsewhere] {
        match block_on(DockerEngine::new(config).create(CreateRequest::run(&spec)))? {
            Err(EngineError::Unsupported { what, reason, .. })
                if what == "network" && reason.contains("unix://") => {}
            other => return Err(format!("got {other:?}").into()),
        }
    }
    Ok(())
}

fn missing_daemon_is_an_error_with_a_fix(daemon: &Daemon) -> Tested {
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

fn sandbox_outlives_its_server(daemon: &Daemon) -> Tested {
    let open = |run_dir| {
        DockerEngine::new(DockerConfig { run_dir: Some(run_dir), ..daemon.config(Route::Shortest) })
    };
    let kill = |id: &SandboxId| Ok(daemon.docker(&["kill", &format!("belljar-{id}")]).map(drop)?);
    conformance::sandbox_outlives_its_server(daemon, open, kill)
}

/// A server that was killed between the creation of a container and its start, or before the creation.
fn interrupted_launches_are_removed(daemon: &Daemon) -> Tested {
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
        Tested::Ok(())
    })??;
    assert!(daemon.leftovers(created.as_str()).is_empty());
    let names = std::fs::read_dir(&run_dir)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert_eq!(names.collect::<Vec<_>>(), ["id"]);
    Ok(())
}

/// What the daemon was told is what it enforces, also after a change.
fn limits_are_those_of_the_container(daemon: &Daemon) -> Tested {
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
        Tested::Ok(())
    })?
}
