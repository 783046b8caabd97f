use proptest::prelude::*;

use super::*;

const C: &str = r#"
name = "c"
aliases = ["gcc"]
extensions = ["c"]
shebangs = []
file = "main.c"
compile = ["gcc", "-O2", "-o", "{dir}/main", "{file}", "-lm"]
run = ["{dir}/main", "{args}"]
version = ["gcc", "--version"]
program = "gcc"
requires = ["ld"]
package = "gcc binutils"
[env]
LANG = "C"
[limits]
compile_timeout = "60s"
compile_memory = "1g"
memory = 67108864
pids = 16
"#;

fn values<'a>(file: &'a str, dir: &'a str, stem: &'a str) -> CommandValues<'a> {
    CommandValues { file, dir, stem, memory: "512m".parse().unwrap() }
}

#[test]
fn heap_is_three_quarters_of_the_memory() {
    let template = CommandTemplate::new(vec!["node".into(), "--max={heap}".into()]).unwrap();
    assert_eq!(template.render::<&str>(&values("f", "/d", "s"), &[]), ["node", "--max=384"]);
}

#[test]
fn language_file_is_parsed() {
    let c = Language::from_toml(C).unwrap();
    assert_eq!(c.names().collect::<Vec<_>>(), ["c", "gcc"]);
    assert_eq!(c.programs().collect::<Vec<_>>(), ["gcc", "ld"]);
    assert_eq!((c.file.as_str(), c.package.as_str()), ("main.c", "gcc binutils"));
    assert_eq!(c.extensions, ["c"]);
    assert!(c.shebangs.is_empty());
    assert_eq!(c.version, ["gcc", "--version"]);
    assert_eq!(c.env.get("LANG").map(String::as_str), Some("C"));
    assert_eq!(c.limits.compile_timeout.unwrap().duration().as_secs(), 60);
    assert_eq!(c.limits.compile_memory.unwrap().bytes(), 1 << 30);
    assert_eq!(c.limits.memory.unwrap().bytes(), 64 << 20);
    assert_eq!(c.limits.pids.unwrap().get(), 16);
    let compile = c.compile.unwrap().render(&values("/home/user/a.c", "/home/user", "a"), &["x"]);
    assert_eq!(compile, ["gcc", "-O2", "-o", "/home/user/main", "/home/user/a.c", "-lm"]);
    assert_eq!(c.run.render(&values("f", "/d", "s"), &["x", "y z", ""]), ["/d/main", "x", "y z", ""]);
    assert_eq!(c.run.render::<&str>(&values("f", "/d", "s"), &[]), ["/d/main"]);
}

#[test]
fn invalid_language_files_are_refused() {
    let cases = [
        (
            "pids = 16",
            "cpus = 1",
            "\"limits.cpus\": unknown key; allowed here: compile_memory, compile_timeout, memory, pids",
        ),
        (
            "pids = 16",
            "pids = 0",
            "pids: \"0\" is not allowed; give a whole number from 1 to 4194304, such as 64",
        ),
        ("name = \"c\"", "name = \"c c\"", "name: \"c c\" is not allowed; give a word without spaces"),
        ("name = \"c\"", "", "\"name\": this key is missing; give a text"),
        (
            "file = \"main.c\"",
            "file = \"../x\"",
            "file: \"../x\" is not allowed; give the name of a file without a directory, such as main.c",
        ),
        ("run = [\"{dir}/main\", \"{args}\"]", "", "\"run\": this key is missing; give a list of texts"),
        (
            "run = [\"{dir}/main\", \"{args}\"]",
            "run = []",
            "command: \"\" is not allowed; give a program and its arguments",
        ),
        (
            "\"{args}\"",
            "\"-a{args}\"",
            "command: \"-a{args}\" is not allowed; give {args} as an argument of its own, after the program",
        ),
        (
            "\"{dir}/main\", \"{args}\"",
            "\"{args}\"",
            "command: \"{args}\" is not allowed; give {args} as an argument of its own, after the program",
        ),
        (
            "\"{args}\"",
            "\"{arg}\"",
            "command: \"{arg}\" is not allowed; give the placeholders {file}, {dir}, {stem}, {heap} and {args}",
        ),
        (
            "LANG = \"C\"",
            "\"A=B\" = \"C\"",
            "env: \"A=B\" is not allowed; give a name that is not empty and has no = and no NUL in it, such as LANG",
        ),
        (
            "aliases = [\"gcc\"]",
            "alias = \"gcc\"",
            "\"alias\": unknown key; allowed here: aliases, compile, env, extensions, file, limits, name, package, program, requires, run, shebangs, version",
        ),
    ];
    for (good, bad, expected) in cases {
        assert!(C.contains(good), "{good}");
        let error = Language::from_toml(&C.replacen(good, bad, 1)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn other_braces_are_plain_text() {
    let texts = ["p", "{ print $1 }", "{}", "{", "}", "a{file}b{stem}{", "{{dir}}", "${HOME}", "{1}"];
    let template = CommandTemplate::new(texts.map(str::to_owned).to_vec()).unwrap();
    let rendered = template.render::<&str>(&values("F", "D", "S"), &[]);
    assert_eq!(rendered, ["p", "{ print $1 }", "{}", "{", "}", "aFbS{", "{D}", "${HOME}", "{1}"]);
}

proptest! {
    #[test]
    fn substituted_text_is_not_scanned_again(file: String, args: Vec<String>) {
        let argv = ["p", "-f={file}", "{args}", "--", "{args}"].map(str::to_owned).to_vec();
        let rendered = CommandTemplate::new(argv).unwrap().render(&values(&file, "{args}", "{file}"), &args);
        let mut expected = vec!["p".to_owned(), format!("-f={file}")];
        expected.extend(args.clone());
        expected.push("--".to_owned());
        expected.extend(args);
        prop_assert_eq!(rendered, expected);
    }
}
