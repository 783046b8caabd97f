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
    private_images_need_an_account,
    images_are_imported_from_files,
    unused_layers_of_images_are_removed,
    settings_of_images_are_shown,
    machines_have_a_default_user,
    dockerfiles_become_templates,
];

const HOST: &str = "127.0.0.1:5000";

/// The operator's configuration.
const ALLOWED: &str = "[images]\nregistries = [\"http://127.0.0.1:5000\"]";

/// A registry, which ends with this.
struct Registry(Child);

/// An account `bob` with the password `s3cret-pass`, in the form of `htpasswd -B`.
const ACCOUNTS: &str = "bob:$2y$05$abcdefghijklmnopqrstuuV7fpPozvyqJfnY19y0802WTlXUm6Rjy\n";

impl Registry {
    fn start(dir: &Path) -> Self {
        Self::start_with(dir, "")
    }

    /// Starts one that accepts only the account of [`ACCOUNTS`].
    fn start_private(dir: &Path) -> Self {
        let accounts = dir.join("accounts");
        std::fs::write(&accounts, ACCOUNTS).unwrap();
        Self::start_with(dir, &format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", accounts.display()))
    }

    fn start_with(dir: &Path, more: &str) -> Self {
        let config = dir.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '{HOST}'}}\n{more}",
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
        make(HOST, name, tag, more)
    }
}

/// Makes an image, and pushes or saves it.
fn make(place: &str, name: &str, tag: &str, more: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/network/push.py");
    let done = Command::new("python3").arg(script).args([place, name, tag]).args(more).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
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
    // Who may not pull it is told who may; who may not build is not.
    let user = home.good("key create --role user --name user");
    let user = user.trim();
    let advice = "an administrator pulls it with belljar image pull";
    for command in ["sandbox create --image", "image pull"] {
        let words: Vec<&str> = command.split(' ').chain([image.as_str(), "--api-key", user]).collect();
        home.run_args(&words).refused(125, &["template.build needs", advice]);
    }
    home.write("src/Dockerfile", &format!("FROM {image}\n"));
    let built = home.run_args(&["image", "build", "src", "--api-key", user]);
    built.refused(125, &["template.build needs"]);
    assert!(!built.stderr.contains(advice), "{built:?}");
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
    let shown = home.good("template info mine");
    assert!(shown.lines().any(|line| line.starts_with("machine") && line.ends_with(" yes")), "{shown}");
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
        home.write("theirs", "x");
        home.run(&format!("sandbox cp theirs {}:/etc/theirs", sandbox.trim()))
            .refused(125, &["cannot write /etc/theirs", "belljar sandbox exec -u root -i"]);
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

fn private_images_need_an_account(fixture: &Fixture) {
    const PASSWORD: &[u8] = b"s3cret-pass\n";
    let home = home(fixture, ALLOWED);
    drop({
        let registry = Registry::start(fixture.dir());
        Registry::push("org/app", "1.0", &[]);
        registry
    });
    let _registry = Registry::start_private(fixture.dir());
    let image = format!("{HOST}/org/app:1.0");
    let advice = format!("log in with belljar image login {HOST}");
    home.run(&format!("image pull {image}")).refused(125, &["refuses access to org/app", &advice]);
    let login = format!("image login -u bob --password-stdin {HOST}");
    home.feed(&login, b"wrong\n").refused(2, &["password: ", "refuses the account"]);
    home.run(&format!("image pull {image}")).refused(125, &["refuses access"]);
    let done = home.feed(&login, PASSWORD);
    assert_eq!((done.status, done.stdout.as_str()), (Some(0), format!("{HOST}\n").as_str()), "{done:?}");
    let accounts = home.good("image accounts");
    assert!(
        accounts.lines().nth(1).is_some_and(|line| line.starts_with(&format!("{HOST}  bob  "))),
        "{accounts}"
    );
    assert_eq!(home.json("image accounts")["user"], "bob");
    home.good(&format!("image pull {image}"));
    let done = home.run_args(&["run", "-q", "--image", &image, "-l", "sh", "-c", "cat /app/kept"]);
    assert_eq!(done.stdout, "kept\n", "{done:?}");
    // It is nowhere in plain text: neither in answers nor in the audit log nor in the store.
    let shown = home.good("audit tail --format json");
    assert!(
        shown.contains("image.login") && shown.contains("\"account\":\"bob\"") && !shown.contains("s3cret"),
        "{shown}"
    );
    for entry in std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().path()) {
        let content = std::fs::read(&entry).unwrap_or_default();
        assert!(!content.windows(11).any(|window| window == b"s3cret-pass"), "{}", entry.display());
    }
    home.good(&format!("image logout {HOST}"));
    assert_eq!(home.good("image accounts -q"), "");
    home.run(&format!("image logout {HOST}")).refused(125, &["account at \"127.0.0.1:5000\" not found"]);
    home.run(&format!("image pull {image}")).refused(125, &["refuses access", &advice]);
    for (line, status, words) in [
        (
            format!("image login {HOST}"),
            2,
            &["password: standard input is not a terminal", "--password-stdin"][..],
        ),
        (format!("image login --password-stdin {HOST}"), 2, &["user: missing", "-u NAME"]),
        (format!("image login -u a:b --password-stdin {HOST}"), 2, &["user: give 1 to 256 bytes"]),
        (format!("image login -u bob -p x {HOST}"), 2, &["a password is no argument"]),
        ("image login -u bob --password-stdin https://ghcr.io".to_owned(), 2, &["registry: ", "give a host"]),
        (
            "image login -u bob --password-stdin ghcr.io".to_owned(),
            125,
            &["images from ghcr.io are not allowed here"],
        ),
    ] {
        home.feed(&line, PASSWORD).refused(status, words);
    }
}

fn images_are_imported_from_files(fixture: &Fixture) {
    let home = home(fixture, ALLOWED);
    let file = fixture.dir().join("app.tar");
    let dir = fixture.dir().join("layout");
    make(&format!("docker:{}", file.display()), "org/app", "1.0", &["app/word", "saved"]);
    make(&format!("oci:{}", dir.display()), "org/app", "1.0", &["app/word", "layout"]);
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());
    let word = |image: &str| {
        let line = "cat /app/word; echo $FROM_IMAGE";
        home.run_args(&["run", "-q", "--image", image, "-l", "sh", "-c", line]).good()
    };
    let imported = home.run(&format!("image import {file}"));
    assert!(imported.stderr.contains("org/app:1.0 starts from it"), "{imported:?}");
    assert_eq!(word("org/app:1.0"), "savedyes\n");
    // A directory has to be named: its own name is a tag alone.
    home.run(&format!("image import {dir}")).refused(2, &["name: the file gives the image none"]);
    home.good(&format!("image import {dir} --name local/app:2"));
    assert_eq!(word("local/app:2"), "layoutyes\n");
    // From standard input, compressed, in the place of what had the name.
    let packed = Command::new("gzip").args(["-c", file]).output().unwrap().stdout;
    home.feed("image import - --name local/app:2", &packed).good();
    assert_eq!(word("local/app:2"), "savedyes\n");
    let shown = home.good("image info local/app:2");
    assert!(shown.contains("imported from a file"), "{shown}");
    // Templates are based on it without a registry.
    home.write(
        "mine.toml",
        "name = \"mine\"\nbase = \"image:local/app:2\"\n[[step]]\nrun = \"cat word > made\"\n",
    );
    home.good("template build mine.toml");
    let done = home.run_args(&["run", "-q", "--template", "mine", "-l", "sh", "-c", "cat /app/made"]);
    assert_eq!(done.stdout, "saved", "{done:?}");
    // What is exported is imported again, with what the step has made.
    let exported = home.run("image export mine mine.tar");
    assert!(exported.status == Some(0) && exported.stderr.contains("wrote "), "{exported:?}");
    home.good("image import mine.tar --name again");
    let done = home.run_args(&[
        "run",
        "-q",
        "--image",
        "again",
        "-l",
        "sh",
        "-c",
        "cat /app/made; echo $FROM_IMAGE",
    ]);
    assert_eq!(done.stdout, "savedyes\n", "{done:?}");
    home.run("image export mine mine.tar").refused(2, &["mine.tar already exists"]);
    home.run("image export default x.tar").refused(2, &["template: ", "tree of their own"]);
    home.run("image export none x.tar")
        .refused(125, &["none is neither an image that has been pulled nor a template"]);
    // What is no image is refused, also a large one, and nothing is left of it.
    let content = std::fs::read(file).unwrap();
    home.write("half.tar", "");
    std::fs::write(home.file("half.tar"), &content[..content.len() / 2]).unwrap();
    std::fs::write(home.file("noise"), vec![7; 64 << 20]).unwrap();
    home.run("image import half.tar").refused(2, &["image: "]);
    home.run("image import noise").refused(2, &["image: it is neither a tar of docker save"]);
    home.run("image import nothing.tar").refused(125, &["cannot open nothing.tar"]);
    home.run("image import . --name a").refused(2, &["FILE: ", "has no index.json"]);
    home.run(&format!("image import {file} --name A@b")).refused(2, &["is not the name of an image"]);
    let left = std::fs::read_dir(home.path().join("templates/imports")).unwrap().count();
    assert_eq!(left, 0);
    let audit = home.good("audit tail --format json");
    assert!(audit.contains("image.import") && audit.contains("invalid_field"), "{audit}");
}

fn unused_layers_of_images_are_removed(fixture: &Fixture) {
    let home = home(fixture, ALLOWED);
    let _registry = Registry::start(fixture.dir());
    Registry::push("app", "1", &["app/word", "first"]);
    Registry::push("app", "2", &["app/word", "second"]);
    let [first, second] = ["1", "2"].map(|tag| format!("{HOST}/app:{tag}"));
    home.good(&format!("image pull {first}"));
    home.good(&format!("image pull {second}"));
    let layers = || {
        let layers = std::fs::read_dir(home.path().join("templates/layers")).unwrap();
        layers.filter(|entry| entry.as_ref().unwrap().file_name().len() == 64).count()
    };
    let gc = |more: &str| home.run(&format!("image gc{more}"));
    assert!(gc(" --dry-run").stderr.contains("nothing is left over"));
    let sandbox = home.create(&format!("--image {first} -q"));
    home.good(&format!("image rm {first}"));
    home.good(&format!("image rm {second}"));
    // The cache of steps would keep both; a sandbox uses one.
    assert_eq!(layers(), 2);
    let done = gc(" --dry-run");
    assert!(done.stdout.contains("layer") && done.stderr.contains("can be freed"), "{done:?}");
    assert_eq!(layers(), 2);
    let done = gc("");
    assert!(done.status == Some(0) && done.stderr.contains(" freed"), "{done:?}");
    assert_eq!((layers(), home.inside(&sandbox, "cat /app/word")), (1, "first".to_owned()));
    home.good(&format!("sandbox kill {sandbox}"));
    assert!(gc("").stdout.contains("layer"));
    assert_eq!(layers(), 0);
    let audit = home.good("audit tail --format json");
    assert!(audit.contains("\"image.gc\""), "{audit}");
    home.good(&format!("image pull {first}"));
    assert_eq!(layers(), 1);
}

fn settings_of_images_are_shown(fixture: &Fixture) {
    let home = home(fixture, ALLOWED);
    let _registry = Registry::start(fixture.dir());
    let digest = Registry::push("org/app", "1.0", &[]);
    let image = format!("{HOST}/org/app:1.0");
    home.good(&format!("image pull {image}"));
    let shown = home.good(&format!("image info {image}"));
    let row = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    for (name, words) in [
        ("digest", &[digest.as_str()][..]),
        ("ENV", &["PATH=/bin", "honoured"]),
        ("WORKDIR", &["/app", "honoured"]),
        ("USER", &["www", "in the variable USER alone"]),
        ("ENTRYPOINT", &["/bin/entry", "ignored"]),
        ("CMD", &["/bin/sh", "ignored"]),
        ("VOLUME", &["/data", "ignored"]),
        ("STOPSIGNAL", &["SIGINT", "ignored"]),
    ] {
        assert!(words.iter().all(|word| row(name).contains(word)), "{name}: {shown}");
    }
    let json = home.json(&format!("image info {image}"));
    assert_eq!(
        json["image"]["ignored"],
        serde_json::json!(["USER", "ENTRYPOINT", "CMD", "VOLUME", "STOPSIGNAL"])
    );
    assert_eq!(json["image"]["layers"].as_array().map(Vec::len), Some(3));
}

fn machines_have_a_default_user(fixture: &Fixture) {
    let home = home(fixture, ALLOWED);
    let _registry = Registry::start(fixture.dir());
    Registry::push("org/app", "1.0", &[]);
    let image = format!("{HOST}/org/app:1.0");
    let root = home.create(&format!("--image {image} --machine --user root --memory 128m --disk 100m -q"));
    let who = |sandbox: &str| home.inside(sandbox, "id -u; pwd; echo $HOME; echo made > /srv/made");
    assert_eq!(who(&root), "0\n/\n/root\n");
    let user = |name: &str| home.run(&format!("sandbox exec -u {name} {root} -- id -u"));
    // Contexts are those of `user`, also the shells among them.
    home.good(&format!("sandbox exec {root} -- ln -s bash-for-later /bin/bash"));
    let shell = home.feed(&format!("code --sandbox {root} -l bash"), b"id -u; pwd\n");
    assert_eq!((shell.status, shell.stdout.as_str()), (Some(0), "1000\n/home/user\n"), "{shell:?}");
    assert_eq!((user("user").good().as_str(), user("www").good().as_str()), ("1000\n", "33\n"));
    assert_eq!(home.json(&format!("sandbox info {root}"))["user"], "root");
    // Copies have it too.
    let forked = home.good(&format!("sandbox fork {root} -q"));
    assert_eq!(who(forked.trim()), "0\n/\n/root\n");
    home.good(&format!("sandbox snapshot {root} --name kept"));
    let made = home.create("--template kept -q");
    assert_eq!(who(&made), "0\n/\n/root\n");
    for sandbox in [&root, forked.trim(), &made] {
        home.good(&format!("sandbox kill {sandbox}"));
    }
    home.good("template rm kept");
    let www = home.create(&format!("--image {image} --machine -u www -q"));
    assert_eq!(home.inside(&www, "id -u; pwd"), "33\n/srv\n");
    home.good(&format!("sandbox kill {www}"));
    home.run(&format!("sandbox create --image {image} --user root"))
        .refused(2, &["user: \"root\" is not allowed", "make it a machine (--machine)"]);
    home.run("sandbox create --user root").refused(2, &["user: ", "make it a machine"]);
    home.run(&format!("sandbox create --image {image} --machine --user a:b")).refused(2, &["user: \"a:b\""]);
}

fn dockerfiles_become_templates(fixture: &Fixture) {
    let home = home(fixture, ALLOWED);
    let _registry = Registry::start(fixture.dir());
    Registry::push("org/app", "1.0", &[]);
    let image = format!("{HOST}/org/app:1.0");
    let text = format!(
        "ARG TAG\nFROM {HOST}/org/app:$TAG\nENV PATH=/opt/tools:$PATH GREETING=\"hello there\"\nWORKDIR sub\n\
         COPY tools/ /opt/tools/\nCOPY *.txt .\nARG WHO=nobody\n# a comment\nRUN echo \"$GREETING $WHO\" \\\n  > made\n\
         RUN <<EOF\nmy-tool >> made\nEOF\n"
    );
    home.write("src/Dockerfile", &text);
    home.write("src/tools/my-tool", "#!/bin/sh\ncat a.txt b.txt\n");
    home.write("src/a.txt", "a\n");
    home.write("src/b.txt", "b\n");
    home.write("src/secret.txt", "secret\n");
    home.write("src/.dockerignore", "secret.txt\n");
    let tool = home.file("src/tools/my-tool");
    std::fs::set_permissions(tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let built = home.run("image build --build-arg TAG=1.0 --build-arg WHO=world src");
    assert!(built.status == Some(0) && built.stderr.contains("--template src starts from it"), "{built:?}");
    // What has its name elsewhere is another image.
    home.run("run --image src -l sh -c true")
        .refused(2, &["src is a template here", "docker.io/library/src:latest has not been pulled"]);
    let line = "cat /app/sub/made; ls /app/sub; echo $PATH";
    let done = home.run_args(&["run", "-q", "--template", "src", "-l", "sh", "-c", line]);
    assert_eq!(done.stdout, "hello there world\na\nb\na.txt\nb.txt\nmade\n/opt/tools:/bin\n", "{done:?}");
    // Again, all steps are cached; another argument runs those that see it.
    let cached = |line: &str| home.run(line).stderr.matches("cached").count();
    assert!(cached("image build --build-arg TAG=1.0 --build-arg WHO=world -t src src") >= 4);
    let file = home.file("src/Dockerfile");
    let with = |more: &str| std::fs::write(&file, format!("FROM {image}\n{more}\n")).unwrap();
    for (more, words) in [
        ("RUN true\nCMD [\"x\"]", &["line 3: CMD: not supported"][..]),
        ("ADD a.txt /", &["line 2: ADD: not supported"]),
        ("RUN --mount=type=cache,target=/c x", &["line 2: RUN: not supported: --mount"]),
        ("COPY none /x", &["line 2: COPY: \"none\" is not in src"]),
        ("COPY secret.txt /x", &["line 2: COPY: \"secret.txt\"", ".dockerignore"]),
        ("ENV =2", &["line 2: "]),
    ] {
        with(more);
        home.run("image build src").refused(2, &[words, &["src/Dockerfile: "]].concat());
    }
    // A link in the context, as a repository may have one, leads nowhere.
    std::os::unix::fs::symlink("/etc", home.file("src/link")).unwrap();
    for source in ["link/passwd", "link/ssl"] {
        with(&format!("COPY {source} /x"));
        let words = ["line 2: COPY: ", "a symbolic link leads there"];
        home.run("image build src").refused(2, &words);
    }
    // What failed is named as it was written, also after arguments.
    with("ARG LEVEL=3\nRUN set -e\nRUN test $LEVEL = 4");
    let failed = home.run("image build src");
    failed.refused(125, &["step 2 of 2 (run): test $LEVEL = 4: ", "exit code 1"]);
    assert!(!failed.stderr.contains("export"), "{failed:?}");
    let builds = home.good("template builds");
    assert!(builds.lines().last().is_some_and(|last| last.contains("it ended with exit code 1")), "{builds}");
    home.run("image build -f none src").refused(125, &["cannot read none"]);
    home.run("image build none").refused(2, &["DIR: none is not a directory"]);
    home.run("image build -t App src").refused(2, &["--name (-t): \"App\" is not allowed", "such as app"]);
    home.run("image build -t app:1 src")
        .refused(2, &["--name (-t): \"app:1\" is not allowed", "neither a tag"]);
    with("EXPOSE 80\nLABEL a=b\nCMD x");
    home.run("image build src")
        .refused(2, &["line 2: EXPOSE: not supported", "nor is line 3 LABEL, line 4 CMD"]);
    home.run("image build --build-arg NOT_SET src").refused(2, &["--build-arg: NOT_SET is not set here"]);
}
