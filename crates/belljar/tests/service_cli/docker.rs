//! The engine `docker` on the command line, with the daemon of `tests/docker/with-daemon.sh`.

use rustix::process::Signal;

use crate::fixture::{Done, Home, eventually};

/// The daemon's address and an image of it.
struct Daemon {
    host: String,
    image: String,
}

/// Returns the daemon; says that the test is skipped, and returns `None`, without one.
fn daemon() -> Option<Daemon> {
    let variable = |name| std::env::var(name).ok();
    let found = variable("BELLJAR_TEST_DOCKER").zip(variable("BELLJAR_TEST_ENV_IMAGE"));
    if found.is_none() {
        let reason = variable("BELLJAR_TEST_DOCKER_LACKS");
        let reason = reason.unwrap_or_else(|| "run it by tests/docker/with-daemon.sh".to_owned());
        let _ = std::io::Write::write_all(
            &mut std::io::stdout(),
            format!("SKIPPED the engine docker: {reason}\n").as_bytes(),
        );
    }
    let (host, image) = found?;
    Some(Daemon { host, image })
}

impl Daemon {
    fn home(&self) -> Home {
        self.home_with("engines = ['docker']", "")
    }

    /// Returns a home whose server has these engines, and these settings of the engine docker.
    fn home_with(&self, engines: &str, docker: &str) -> Home {
        Home::configured(&format!(
            "[server]\nlinger = '1s'\n[sandboxes]\n{engines}\npool = 0\ntemplate_pool = 0\n\
             [images]\nregistries = ['127.0.0.1:1']\n[engines.docker]\nhost = '{}'\n{docker}\n",
            self.host
        ))
    }

    /// Runs a command without a server.
    fn run(&self, home: &Home, args: &[&str], variables: &[(&str, &str)]) -> Done {
        let mut command = home.belljar(args);
        command.env("DOCKER_HOST", &self.host).envs(variables.iter().copied());
        Done::of(command.output().unwrap())
    }

    /// Runs a command of Docker's own client, and returns its output.
    fn docker(&self, args: &[&str]) -> String {
        let mut docker = std::process::Command::new("docker");
        let done = docker.args(["--host", &self.host]).args(args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Lists the containers of a sandbox.
    fn containers(&self, sandbox: &str) -> String {
        let filter = format!("label=belljar.sandbox={sandbox}");
        self.docker(&["ps", "--all", "--quiet", "--filter", &filter])
    }
}

#[test]
fn code_runs_in_an_image_of_the_daemon() {
    let Some(daemon) = daemon() else { return };
    let home = daemon.home();
    let code = "echo $OF_THE_IMAGE $PWD; id -u | cut -c 1-2";
    let args = ["run", "--engine", "docker", "--image", &daemon.image, "-l", "sh", "-c", code];
    let done = daemon.run(&home, &args, &[]);
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), "yes /home/user\n18\n"), "{done:?}");
    let variables =
        [("CODE_EXEC_SANDBOX", "docker"), ("BELLJAR_ENGINES_DOCKER_IMAGE", daemon.image.as_str())];
    let done = daemon.run(&home, &["run", "--json", "-c", "print(2**64)"], &variables);
    assert!(done.stdout.contains("18446744073709551616") && done.stdout.contains("\"docker\""), "{done:?}");
    let done = daemon.run(&home, &["run", "--memory", "64m", "-c", "x = b'x' * (256 << 20)"], &variables);
    assert_eq!(done.status, Some(137), "{done:?}");
    // What the engine lacks is refused, with the field's name.
    let [sandbox, image] = variables;
    let elsewhere = [sandbox, image, ("DOCKER_HOST", "tcp://127.0.0.1:1")];
    let done = daemon.run(&home, &["run", "--net", "open", "-c", "1"], &elsewhere);
    assert!(done.status == Some(125) && done.stderr.contains("network:"), "{done:?}");
    let done = daemon.run(&home, &["run", "--engine", "docker", "-c", "1"], &[]);
    assert!(done.status == Some(125) && done.stderr.contains("--image"), "{done:?}");
    let done = daemon.run(&home, &["run", "--engine", "local", "--image", &daemon.image, "-c", "1"], &[]);
    assert!(done.status == Some(2) && done.stderr.contains("no images of its own"), "{done:?}");
    assert!(home.holder().is_none(), "a server was started");
}

#[test]
fn engine_shows_what_is_in_force() {
    let Some(daemon) = daemon() else { return };
    let home = daemon.home();
    let done = daemon.run(&home, &["engine", "info", "docker", "--image", &daemon.image], &[]);
    for text in ["Engine docker", "pause", "In force in a sandbox", "no new privileges", "control groups v"] {
        assert!(done.status == Some(0) && done.stdout.contains(text), "{text}: {done:?}");
    }
    let done = daemon.run(&home, &["engine", "info", "docker", "--json"], &[]);
    let report: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert!(done.status == Some(1) && report["failure"].as_str().unwrap().contains("image"), "{done:?}");
    let done = daemon.run(&home, &["engine", "ls"], &[("DOCKER_HOST", "unix:///no/such.sock")]);
    assert!(done.stdout.contains("there is no Docker daemon at unix:///no/such.sock"), "{done:?}");
}

#[test]
fn sandboxes_outlive_the_server() {
    let Some(daemon) = daemon() else { return };
    let home = daemon.home();
    let image = &daemon.image;
    let sandbox = home.create(&format!("--engine docker --image {image} --timeout 10m --memory 128m -q"));
    assert_eq!(home.inside(&sandbox, "echo kept > file; echo $OF_THE_IMAGE"), "yes\n");
    // A template of its files alone would lack the image.
    home.run(&format!("sandbox snapshot {sandbox} --name snap"))
        .refused(125, &["a snapshot", "docker", "a fork copies it"]);
    let info = home.json(&format!("sandbox info {sandbox}"));
    assert_eq!((&info["engine"], &info["isolation"]["tree"]), (&"docker".into(), &"image".into()), "{info}");
    home.good(&format!("sandbox pause {sandbox}"));
    let (server, _) = home.holder().unwrap();
    rustix::process::kill_process(server, Signal::KILL).unwrap();
    eventually(|| if home.is_held() { Err("the server is there".to_owned()) } else { Ok(()) });
    assert_eq!(home.inside(&sandbox, "cat file"), "kept\n");
    let fork = home.good(&format!("sandbox fork {sandbox} -q"));
    assert_eq!(home.inside(fork.trim(), "cat file; echo $OF_THE_IMAGE"), "kept\nyes\n");
    home.good(&format!("sandbox set {sandbox} --memory 256m"));
    let refused = home.run(&format!("sandbox create --image {image} --engine process"));
    assert_ne!(refused.status, Some(0), "{refused:?}");
    for live in [sandbox.trim(), fork.trim()] {
        assert_eq!(daemon.containers(live).lines().count(), 1, "{live}");
    }
    home.good(&format!("sandbox kill {sandbox} {}", fork.trim()));
    for ended in [sandbox.trim(), fork.trim()] {
        assert_eq!(daemon.containers(ended), "", "{ended}");
    }
}

#[test]
fn images_are_those_of_the_engine_that_the_server_takes() {
    let Some(daemon) = daemon() else { return };
    let image = &daemon.image;
    for engines in ["engine = 'docker'", "engine = 'docker'\nengines = ['local']"] {
        let home = daemon.home_with(engines, "");
        let sandbox = home.create(&format!("--image {image} --timeout 10m -q"));
        assert_eq!(home.inside(&sandbox, "echo $OF_THE_IMAGE"), "yes\n");
        let echo = ["-l", "sh", "-c", "echo $OF_THE_IMAGE"];
        for command in [&["run"][..], &["run", "--rich"]] {
            let args = [command, &["--image", image], &echo].concat();
            assert_eq!(home.run_args(&args).good(), "yes\n", "{args:?}");
        }
        assert_eq!(home.good("image ls -q"), "", "an image was pulled");
        home.good(&format!("sandbox kill {sandbox}"));
    }
    // The image of the engine's settings is named as well.
    let home = daemon.home_with("engine = 'docker'", &format!("image = '{image}'"));
    let sandbox = home.create("--timeout 10m -q");
    let template = home.json(&format!("sandbox info {sandbox}"))["template"].clone();
    assert!(
        template.as_str().is_some_and(|name| name.starts_with("image:") && name.contains(image)),
        "{template}"
    );
    home.good(&format!("sandbox kill {sandbox}"));
    // With the engine local as the default, the server pulls it.
    let refused = daemon.home().run(&format!("sandbox create --image {image}"));
    assert!(refused.status != Some(0) && refused.stderr.contains("registr"), "{refused:?}");
}

#[test]
fn containers_that_others_paused_are_named() {
    let Some(daemon) = daemon() else { return };
    let home = daemon.home();
    let sandbox = home.create(&format!("--engine docker --image {} --timeout 10m -q", daemon.image));
    let container = format!("belljar-{}", sandbox.trim());
    daemon.docker(&["pause", &container]);
    let refused = home.run(&format!("sandbox exec {sandbox} -- true"));
    assert!(refused.stderr.contains(&format!("docker unpause {container}")), "{refused:?}");
    daemon.docker(&["unpause", &container]);
    assert_eq!(home.inside(&sandbox, "echo again"), "again\n");
    home.good(&format!("sandbox kill {sandbox}"));
}

#[test]
fn images_that_cannot_be_used_are_named() {
    let Some(daemon) = daemon() else { return };
    let home = daemon.home();
    let id = daemon.docker(&["image", "inspect", "--format", "{{.Id}}", &daemon.image]);
    let short = daemon.docker(&["image", "ls", "--quiet", &daemon.image]);
    for (image, expected) in [
        (id.trim(), "an image's id"),
        (short.trim(), "an image's id"),
        ("127.0.0.1:1/app", "cannot pull 127.0.0.1:1/app"),
    ] {
        let refused = home.run(&format!("sandbox create --engine docker --image {image}"));
        assert_ne!(refused.status, Some(0), "{refused:?}");
        assert!(refused.stderr.contains(expected), "{refused:?}");
    }
}
