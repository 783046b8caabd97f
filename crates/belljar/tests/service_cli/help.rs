//! Help texts of the commands.

use crate::fixture::Home;

/// Command lines as for other programs, and typing mistakes: all answers, for people to read in review.
#[test]
fn mistakes_get_advice() {
    let home = Home::new();
    let lines = [
        "rnu -c 1",
        "ps",
        "exec x ls",
        "ls",
        "login",
        "version",
        "images",
        "sandboxes",
        "nosuch",
        "help nosuch",
        "sandbox stop x",
        "sandbox crate",
        "sandbox exec -it x bash",
        "run -v /a:/b x.py",
        "run -it python",
        "run --rm x.py",
        "run -d x.py",
        "run -p 80:80 x.py",
        "run --memroy 1g x.py",
        "run python -c 1",
        "run node",
        "run --template x --engine local -c 1",
        "run --template x --hostname y -c 1",
        "secret create foo bar",
        "secret set foo bar",
        "code nosuch.py",
        "code --sandbox x --memory 1g",
        "code --sandbox x --volume a:/b",
        "auth login",
        "sandbox connect x",
        "template init",
        "a.py",
        "run -m http.server",
        "run -w /srv x.py",
        "run --python -c 1",
        "run -Z x.py",
        "run --network none x.py",
        "run --net host -c 1",
        "run --preset pypi -c 1",
        "run --secret K=a.example:authorization:env=HOME -c 1",
        "run --secret K=a.example:env=HOME -c 1",
        "run --request a.example=GET:/ -c 1",
        "run print(1)",
        "run -u root -c 1",
        "run --gpus all -c 1",
        "run --save out.ipynb x.py",
        "run --with a,b -c 1",
        "run --with ./sdk -c 1",
        "run --with -c print(1)",
        "run python:3.12 -c 1",
        "pull alpine",
        "key rm x",
        "key create bob",
        "sandbox net get x",
        "net get x",
        "config init",
        "shell --image python:3.12-slim",
        "shell -it",
        "shell python3",
        "shell -c ls",
        "code --with pandas",
        "code -c 1",
        "serve --port 1",
        "template build -t x .",
        "sandbox create -v data:/mnt",
        "sandbox create python:3.12",
        "sandbox exec -w /tmp x pwd",
        "restart",
        "stop",
        "serve stop",
        "server stop",
        "upgrade",
        "sandbox process logs x 1",
        "sandbox net x probe",
        "sandbox rename x y",
        "sandbox fork x --name y",
        "volume inspect x",
        "volume ls x",
        "key rotate x",
        "key create --memory 1g",
        "config get a",
        "audit ls",
        "top --once",
        "audit archive --before yesterday",
        "sandbox ls --server http://127.0.0.1:1",
    ];
    let answers = lines.map(|line| {
        let done = home.run(line);
        format!("$ belljar {line}\n[{}]\n{}{}", done.status.unwrap_or(-1), done.stdout, done.stderr)
    });
    insta::assert_snapshot!("mistakes", answers.join("\n"));
    // No server was started for any of them.
    assert!(!home.path().join("serve.lock").exists());
}

#[test]
fn help_is_a_command_too() {
    let home = Home::new();
    for (line, same) in [
        ("help", "--help"),
        ("help run", "run --help"),
        ("help sandbox create", "sandbox create --help"),
        ("sandbox help create", "sandbox create --help"),
        ("sandbox help", "sandbox --help"),
    ] {
        assert_eq!(home.good(line), home.good(same), "{line}");
    }
    assert_eq!(home.run_args(&["run", "-c", "import sys; print(sys.argv[1:])", "help"]).good(), "['help']\n");
}

#[test]
fn help_texts_match_snapshots() {
    let home = Home::new();
    let help = |line: &str| home.good(&format!("{line} --help"));
    insta::assert_snapshot!("sandbox", help("sandbox"));
    insta::assert_snapshot!("sandbox_create", help("sandbox create"));
    insta::assert_snapshot!("sandbox_exec", help("sandbox exec"));
    insta::assert_snapshot!("sandbox_cp", help("sandbox cp"));
    insta::assert_snapshot!("volume", help("volume"));
    insta::assert_snapshot!("volume_create", help("volume create"));
    insta::assert_snapshot!("code", help("code"));
    insta::assert_snapshot!("key_create", help("key create"));
    insta::assert_snapshot!("template", help("template"));
    insta::assert_snapshot!("audit", help("audit"));
    insta::assert_snapshot!("completion", help("completion"));
}
