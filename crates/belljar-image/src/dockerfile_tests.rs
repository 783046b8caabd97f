use super::*;

fn parse(text: &str) -> Result<Dockerfile, String> {
    Dockerfile::parse(text, &BTreeMap::new()).map_err(|error| error.to_string())
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn kinds(text: &str) -> Vec<DockerStepKind> {
    let image = map(&[("PATH", "/usr/bin"), ("EMPTY", "")]);
    let steps = parse(text).unwrap().steps(&image, Some("/srv")).unwrap();
    steps.into_iter().map(|step| step.kind).collect()
}

fn run(line: &str) -> DockerStepKind {
    DockerStepKind::Run { line: line.to_owned(), args: BTreeMap::new() }
}

fn copy(sources: &[&str], to: &str, is_dir: bool) -> DockerStepKind {
    let sources = sources.iter().map(|source| (*source).to_owned()).collect();
    DockerStepKind::Copy { sources, to: to.to_owned(), is_dir }
}

#[test]
fn dockerfile_becomes_steps() {
    let text = "# syntax=docker/dockerfile:1\n\
        ARG VERSION=3.12\n\
        FROM python:${VERSION}-slim AS base\n\
        \n\
        ENV A=1 B=\"two words\" \\\n\
            PATH=/opt/bin:$PATH\n\
        WORKDIR app\n\
        copy requirements.txt ./\n\
        RUN pip install \\\n\
          # a comment\n\
          -r requirements.txt \\\n\
        \n\
          && echo \"$A\"\n\
        COPY --chown=root:root . .\n\
        COPY [\"a b\", \"/x y\"]\n\
        USER app\n\
        RUN [\"echo\", \"it's\"]\n";
    let parsed = parse(text).unwrap();
    assert_eq!(parsed.base().to_string(), "docker.io/library/python:3.12-slim");
    let lines: Vec<usize> =
        parsed.steps(&BTreeMap::new(), None).unwrap().iter().map(|step| step.line).collect();
    assert_eq!(lines, [5, 7, 8, 9, 14, 15, 16, 17]);
    let env = map(&[("A", "1"), ("B", "two words"), ("PATH", "/opt/bin:/usr/bin")]);
    assert_eq!(
        kinds(text),
        [
            DockerStepKind::Env(env),
            DockerStepKind::Workdir("/srv/app".to_owned()),
            copy(&["requirements.txt"], "/srv/app", true),
            run("pip install -r requirements.txt && echo \"$A\""),
            copy(&["."], "/srv/app", true),
            copy(&["a b"], "/x y", false),
            DockerStepKind::User("app".to_owned()),
            run("'echo' 'it'\\''s'"),
        ]
    );
}

#[test]
fn arguments_are_given_by_name_and_seen_by_commands() {
    let text = "ARG TAG=1 KIND=x\nFROM app:$TAG\nARG TAG\nARG WHO=\"the ${TAG}\" NONE TARGETARCH\nENV WHERE=here\nARG WHERE=there\nRUN x\n";
    let sees = |tag: &str, who: &str| DockerStepKind::Run {
        line: "x".to_owned(),
        args: map(&[("TAG", tag), ("TARGETARCH", architecture()), ("WHO", who)]),
    };
    assert_eq!(kinds(text)[1], sees("1", "the 1"));
    let given = Dockerfile::parse(text, &map(&[("TAG", "2"), ("WHO", "it")])).unwrap();
    assert_eq!(given.base().version(), "2");
    assert_eq!(given.steps(&BTreeMap::new(), None).unwrap()[1].kind, sees("2", "it"));
    let error = Dockerfile::parse(text, &map(&[("OTHER", "2")])).unwrap_err().to_string();
    assert_eq!(error, "line 2: ARG: OTHER was given, but no ARG names it");
}

#[test]
fn here_documents_are_scripts_or_input() {
    let text =
        "FROM a\nRUN <<EOF\necho $A\n# kept\nEOF\nRUN python3 <<-'END' > out\n\tprint(1)\n\tEND\nRUN x\n";
    let expected = [run("echo $A\n# kept"), run("python3 <<-'END' > out\n\tprint(1)\n\tEND\n"), run("x")];
    assert_eq!(kinds(text), expected);
}

#[test]
fn variables_are_expanded() {
    let variables = map(&[("A", "a b"), ("EMPTY", "")]);
    for (word, expected) in [
        ("$A", "a b"),
        ("${A}x$", "a bx$"),
        ("'$A'", "$A"),
        ("\"$A\\$A\\n\"", "a b$A\\n"),
        ("\\$A", "$A"),
        ("$NONE.", "."),
        ("${EMPTY:-${A}}", "a b"),
        ("${EMPTY-x}${NONE-y}${A:+z}${NONE+w}", "yz"),
        ("a\\ b", "a b"),
    ] {
        assert_eq!(expand(word, &variables, '\\').unwrap(), expected, "{word}");
    }
    for word in ["${A", "\"x", "${}", "${A#b}", "${A:?b}"] {
        assert!(expand(word, &variables, '\\').is_err(), "{word}");
    }
    assert_eq!(kinds("# escape=`\nFROM a\nRUN a`\nb c:\\d\n"), [run("ab c:\\d")]);
}

#[test]
fn what_a_template_cannot_express_is_refused_by_line_and_name() {
    for (name, _) in REFUSED {
        let error = parse(&format!("FROM a\n# c\n{} x\n", name.to_lowercase())).unwrap_err();
        assert!(error.starts_with(&format!("line 3: {name}: not supported: ")), "{error}");
    }
    let error = parse("FROM a\nLABEL a=b\nRUN x\nEXPOSE 80\nCMD x\n").unwrap_err();
    assert!(error.starts_with("line 2: LABEL: not supported: "), "{error}");
    assert!(error.ends_with("; nor is line 4 EXPOSE, line 5 CMD"), "{error}");
    for (text, expected) in [
        ("", "line 1: FROM: missing"),
        ("RUN x\nFROM a\n", "line 1: RUN: it is before FROM"),
        ("FROM a\nFROM b\n", "line 2: FROM: not supported: a second stage"),
        ("FROM scratch\n", "line 1: FROM: not supported: scratch"),
        ("FROM --platform=linux/arm64 a\n", "line 1: FROM: not supported: --platform=linux/arm64"),
        ("FROM a b\n", "line 1: FROM: give one image"),
        ("FROM Not/An@Image\n", "line 1: FROM: \"Not/An@Image\" is not the name of an image"),
        ("FROM a\nNOPE x\n", "line 2: NOPE: unknown instruction"),
        (
            "FROM a\nRUN --mount=type=cache,target=/c x\n",
            "line 2: RUN: not supported: --mount=type=cache,target=/c",
        ),
        ("FROM a\nRUN\n", "line 2: RUN: give a command"),
        ("FROM a\nRUN <<EOF\nx\n", "line 2: RUN: the here-document \"EOF\" has no end"),
        ("FROM a\nRUN <<EOF\n#!/bin/x\nEOF\n", "line 2: RUN: not supported: a script with an interpreter"),
        ("FROM a\nCOPY --from=b /x /y\n", "line 2: COPY: not supported: --from=b"),
        ("FROM a\nCOPY --chown=app x /y\n", "line 2: COPY: not supported: --chown=app"),
        ("FROM a\nCOPY x\n", "line 2: COPY: give a source and a destination"),
        ("FROM a\nCOPY ../x /y\n", "line 2: COPY: \"../x\" is not beside the Dockerfile"),
        ("FROM a\nCOPY https://x.example/y /y\n", "line 2: COPY: \"https://x.example/y\" is not supported"),
        ("FROM a\nCOPY <<EOF /y\nx\nEOF\n", "line 2: COPY: not supported: here-documents"),
        ("FROM a\nENV A\n", "line 2: ENV: \"A\" has no value"),
        ("FROM a\nENV A=1 B\n", "line 2: ENV: \"B\" is not NAME=VALUE"),
        ("FROM a\nENV A=\"1\n", "line 2: ENV: "),
        ("FROM a\nUSER 1000:1000\n", "line 2: USER: \"1000:1000\" is not supported"),
        ("FROM a\nWORKDIR\n", "line 2: WORKDIR: give one value"),
        ("FROM a\nARG 1A=2\n", "line 2: ARG: \"1A\" is not a name"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
    let error = parse(&"#".repeat(MAX_DOCKERFILE_BYTES + 1)).unwrap_err();
    assert!(error.starts_with("line 1: file: it has 262145 bytes"), "{error}");
}

#[test]
fn expansions_are_bounded() {
    let nested = |depth: usize| format!("ARG b={}x{}\nFROM a\n", "${c:-".repeat(depth), "}".repeat(depth));
    parse(&nested(31)).unwrap();
    for depth in [32, 40_000] {
        let error = parse(&nested(depth)).unwrap_err();
        assert!(error.contains("more than 32 ${…} within each other"), "{error}");
    }
    let mut text = format!("ARG v0={}\n", "x".repeat(32));
    for number in 1..40 {
        let before = format!("$v{}", number - 1);
        text.push_str(&format!("ARG v{number}={}\n", before.repeat(4)));
    }
    let error = parse(&format!("{text}FROM a\n")).unwrap_err();
    assert!(error.contains("a value has more than 64 KiB"), "{error}");
}
