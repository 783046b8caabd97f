//! Images of a registry: Debian's docker-registry, in this test's own network.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Case;
use crate::clients::cases;
use crate::fixture::Fixture;
use crate::headers::home;
use crate::home::eventually;

cases![
    images_are_pulled_by_name,
    tags_are_looked_up_when_an_image_is_pulled,
    templates_are_based_on_images,
    images_are_machines,
    other_registries_are_refused,
];

const HOST: &str = "127.0.0.1:5000";

/// The operator's configuration.
const ALLOWED: &str = "[images]\nregistries = [\"http://127.0.0.1:5000\"]";

/// A registry, which ends with this.
struct Registry(Child);

impl Registry {
    fn start(dir: &Path) -> Self {
        let config = dir.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{HOST}'}}\n",
            dir.join("registry").display()
        );
        std::fs::write(&config, text).unwrap();
        let mut server = Command::new("docker-registry");
        server.arg("serve").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self(server.spawn().expect("docker-registry is installed"));
        eventually(|| std::net::TcpStream::connect(HOST).map_err(|error| error.to_string()));
        server
    }

    /// Pushes an image, and returns its digest.
    fn push(name: &str, tag: &str, more: &[&str]) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/network/push.py");
        let done = Command::new("python3").arg(script).args([HOST, name, tag]).args(more).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const LOOK: &str = "cat /app/kept; echo $FROM_IMAGE $PWD; id -u";
const SEEN: &str = "kept\nyes /home/user\n1000\n";

fn images_are_pulled_by_name(fixture: &Fixture) {
    let home = home(fixture, ALLOWED);
    let registry = Registry::start(fixture.dir());
    let digest = Registry::push("org/app", "1.0", &[]);
    let image = format!("{HOST}/org/app:1.0");
    let done = home.run_args(&["run", "--image", &image, "-l", "sh", "-c", LOOK]);
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), SEEN), "{done:?}");
    assert!(done.stderr.contains(&format!("{image} is {digest}")), "{done:?}");
    // It is there now, without its registry; by its digest it is another one.
    let listed = home.good("image ls");
    assert!(listed.contains(&image) && listed.contains("image-app-1-0-"), "{listed}");
    drop(registry);
    let done = home.run_args(&["run", "--image", &image, "-l", "sh", "-c", "id"]);
    assert!(done.status == Some(0) && !done.stderr.contains("looking up"), "{done:?}");
    let done = home.run_args(&["run", "--rich", "--image", &image, "-l", "bash", "-c", "id"]);
    assert_eq!(done.stderr, "belljar: bash: no such program in the sandbox\n", "the image has none");
    let sandbox = home.good(&format!("sandbox create --image {image} -q"));
    assert_eq!(home.inside(sandbox.trim(), LOOK), SEEN);
    home.good(&format!("sandbox kill {}", sandbox.trim()));
    let by_digest = format!("{HOST}/org/app@{digest}");
    home.run_args(&["run", "--image", &by_digest, "-c", "1"])
        .refused(125, &["cannot connect to 127.0.0.1:5000"]);
    assert!(home.good(&format!("image info {image}")).contains("image-app-1-0-"));
    home.good(&format!("image rm {image}"));
    home.run(&format!("image rm {image}")).refused(125, &["has not been pulled", "belljar image ls"]);
    home.run(&format!("image info {image}")).refused(125, &["has not been pulled"]);
}

fn tags_are_looked_up_when_an_image_is_pulled(fixture: &Fixture) {
    let home = home(fixture, ALLOWED);
    let _registry = Registry::start(fixture.dir());
    Registry::push("app", "latest", &["app/word", "first"]);
    let image = format!("{HOST}/app");
    let look = |expected: &str| {
        let done = home.run_args(&["run", "-q", "--image", &image, "-l", "sh", "-c", "cat /app/word"]);
        assert_eq!(done.stdout, expected, "{done:?}");
    };
    look("first");
    Registry::push("app", "latest", &["app/word", "second"]);
    look("first");
    home.good(&format!("image pull {image}"));
    look("second");
    // What is there already is not fetched again, and nothing is left of a pull but its layer.
    let done = home.run(&format!("image pull {image}"));
    assert!(!done.good().is_empty());
    let layouts = home.path().join("templates/images");
    assert_eq!(std::fs::read_dir(layouts).unwrap().count(), 0);
}

fn templates_are_based_on_images(fixture: &Fixture) {
    let home = home(fixture, ALLOWED);
    let _registry = Registry::start(fixture.dir());
    Registry::push("org/app", "1.0", &[]);
    let text = format!(
        "name = \"mine\"\nbase = \"image:{HOST}/org/app:1.0\"\n[[step]]\nrun = \"cat kept > made\"\n"
    );
    home.write("mine.toml", &text);
    home.good("template build mine.toml");
    let done = home.run_args(&["run", "-q", "--template", "mine", "-l", "sh", "-c", "cat /app/made"]);
    assert_eq!(done.stdout, "kept\n", "{done:?}");
    home.write("mine.toml", "name = \"mine\"\nbase = \"image:Not A Name\"\n");
    home.run("template build mine.toml").refused(125, &["line 2", "is not the name of an image"]);
}

fn images_are_machines(fixture: &Fixture) {
    let home = home(fixture, ALLOWED);
    let _registry = Registry::start(fixture.dir());
    Registry::push("org/app", "1.0", &[]);
    let image = format!("{HOST}/org/app:1.0");
    home.write("mine.toml", &format!("name = \"mine\"\nbase = \"image:{image}\"\nmachine = true\n"));
    home.good("template build mine.toml");
    for origin in [format!("--image {image} --machine"), "--template mine".to_owned()] {
        let sandbox = home.good(&format!("sandbox create {origin} --memory 128m --disk 500m -q"));
        let exec = |user: &str, line: &str| {
            home.run_args(&["sandbox", "exec", "-u", user, sandbox.trim(), "--", "sh", "-c", line])
        };
        let said = |user: &str, line: &str| exec(user, line).good().to_owned();
        let line = "id -u; pwd; echo made > /srv/made; stat -c '%u:%g %a' /srv/theirs /srv/made";
        assert_eq!(said("root", line), "0\n/\n33:33 644\n0:0 644\n", "everybody may read files of images");
        assert_eq!(said("www", "id -u; id -G; pwd; cat theirs made"), "33\n33 50\n/srv\ntheirs\nmade\n");
        let line = "id -u; id-as-root -u; (echo x > /srv/theirs) 2>&1 | grep -c denied; echo x > made; stat -c %u made";
        assert_eq!(said("user", line), "1000\n0\n1\n1000\n");
        // More than the memory, in the tree and in the home.
        let line =
            "head -c 200000000 /dev/zero > big; stat -c %s big; grep -c ' /home/user ext4 ' /proc/mounts";
        assert_eq!(said("root", &format!("cd /srv; {line}")), "200000000\n1\n");
        assert_eq!(said("user", line), "200000000\n1\n");
        let full = said("root", "cd /srv; head -c 200000000 /dev/zero > more || echo full; rm more");
        assert_eq!(full, "full\n");
        assert!(
            home.path()
                .join("disks")
                .read_dir()
                .unwrap()
                .all(|entry| entry.unwrap().file_name() == "content")
        );
        exec("nobody", "id").refused(125, &["user: \"nobody\" is not in /etc/passwd of the sandbox"]);
        let told = home.good(&format!("sandbox info {}", sandbox.trim()));
        assert!(told.contains("machine"), "{told}");
        // Copies have all of the disk, and what programs do meanwhile is in them or not at all.
        said("user", "echo begun > state; sleep 1000 & echo late > late; rm late");
        home.good(&format!("sandbox snapshot {} --name kept", sandbox.trim()));
        let forked = home.good(&format!("sandbox fork {} -q", sandbox.trim()));
        let made = home.good("sandbox create --template kept -q");
        home.run("sandbox create --template kept --disk 600m").refused(2, &["limits.disk", "cannot change"]);
        home.good(&format!("sandbox kill {}", sandbox.trim()));
        for copy in [forked, made] {
            let line =
                "stat -c '%u:%g %a' /srv/theirs /srv/made /srv/big /home/user/state; cat /home/user/state";
            let seen = home.run_args(&["sandbox", "exec", "-u", "root", copy.trim(), "--", "sh", "-c", line]);
            assert_eq!(seen.good(), "33:33 644\n0:0 644\n0:0 644\n1000:1000 644\nbegun\n");
            let told = home.good(&format!("sandbox info {}", copy.trim()));
            assert!(told.contains("machine"), "{told}");
            home.good(&format!("sandbox kill {}", copy.trim()));
        }
        home.good("template rm kept");
    }
    // The image alone is no machine, and nothing without a tree of its own is one.
    let sandbox = home.good(&format!("sandbox create --image {image} -q"));
    home.run(&format!("sandbox exec -u root {} -- id", sandbox.trim()))
        .refused(125, &["user: \"root\" does not exist in this sandbox", "machine"]);
    assert_eq!(home.inside(sandbox.trim(), "id-as-root -u"), "1000\n");
    home.good(&format!("sandbox kill {}", sandbox.trim()));
    home.run("sandbox create --machine").refused(2, &["machine", "has a tree of its own"]);
}

fn other_registries_are_refused(fixture: &Fixture) {
    let home = home(fixture, ALLOWED);
    let _registry = Registry::start(fixture.dir());
    for (image, words) in [
        ("ghcr.io/org/app", &["images from ghcr.io are not allowed here", "images.registries"][..]),
        ("127.0.0.1:5001/org/app", &["images from 127.0.0.1:5001 are not allowed here"]),
        ("127.0.0.1:5000/org/none", &["there is no image 127.0.0.1:5000/org/none:latest"]),
    ] {
        home.run(&format!("image pull {image}")).refused(125, words);
    }
    home.run("image pull Not/A@Name").refused(2, &["is not the name of an image"]);
}
