//! Help, version, and information about this machine.

use crate::host::{Done, Host};

#[test]
fn help_and_version() {
    let host = Host::new();
    let done = host.run(&["--version"]);
    let first = format!("belljar {} (commit ", env!("CARGO_PKG_VERSION"));
    assert!(done.text().starts_with(&first) && done.text().contains(", build "), "{done:?}");
    let done = host.run(&["--help"]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(done.text(), @r"
    Run untrusted code in a sandbox

    Usage: belljar <COMMAND>

    Commands:
      run         Run code in a sandbox
      code        Run code in a context that keeps its variables, cell by cell
      shell       Open an interactive terminal in a sandbox
      doctor      Show what this machine can enforce, what is missing, and how to fix it
      engine      List the engines, and show what each enforces here
      languages   List the languages that can be run here, with versions
      screen      Read code, and report what it seems to do; nothing is run, and no server is needed
      serve       Turn this machine into a sandbox service that programs use over the network
      mcp         Offer sandboxes as tools to a model, over the Model Context Protocol on standard
                  streams
      config      Check, show or begin the service's configuration
      cert        Make a certificate for a domain and the host names below it, for TLS on this machine
      sandbox     Create and manage long-lived sandboxes
      volume      Create and manage volumes: files that outlive sandboxes
      key         Create, list and revoke API keys
      secret      Store secrets on the server, for network policies
      template    Build and manage templates
      tool        Store tools, which models call by their names
      approval    Decide about calls that wait for another person
      console     Print a link that signs in to the console, once
      image       Pull images of registries, and manage them
      audit       Read and check the audit trail
      events      Print what happens to sandboxes, processes, templates and keys
      status      Show the server: whether it can create sandboxes, and what this key uses of its quotas
      top         Show what sandboxes use, those with most processor time first
      net         Show what network policies allow
      backup      Write what the server of this home keeps to a file, while it runs
      restore     Restore a home from such a file, while no server uses it
      gc          Delete unused data
      completion  Print a script that completes this command line in a shell

    Options:
      -h, --help     Print help
      -V, --version  Print version

    Examples:
      belljar run -c 'print(2**64)'             Python by default
      belljar run script.js                     language by extension, #! line or -l
      belljar run -f data.csv analyse.py        put a file in
      belljar run -o plot.png plot.py           bring a file out
      belljar run --with requests get.py        with a package of Python
      belljar run --rich plot.py                show what it shows: tables, pictures
      belljar run --template NAME script.py     with the packages of a template
      belljar run notebook.ipynb                cell after cell; --save FILE keeps the outputs
      belljar code                              cell by cell
      belljar shell                             a terminal in a sandbox
      belljar doctor                            what this machine can enforce
    ");
    let done = host.run(&["run", "--help"]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(done.text(), @r"
    Run code in a sandbox

    Usage: belljar run [OPTIONS] [SCRIPT] [ARGS]...

    Arguments:
      [SCRIPT] [ARGS]...  Script, or - for standard input, and arguments for the program

    Options:
      -l, --language <NAME>    Language of the code, by name or alias; see `belljar languages`
      -c, --code <CODE>        Code to run, instead of a script
      -f, --file <SRC[:DEST]>  Put a file or directory in; DEST is below the home directory
      -o, --out <SRC[:DEST]>   Bring a file or directory out after the run; DEST is SRC's name in this
                               directory if not given
      -h, --help               Print help

    Sandbox:
          --template <NAME>          Use the files and programs of a template of the server, and its
                                     limits where no flag sets another
          --image <IMAGE>            Use those of an image, such as python:3.12-slim, which the server
                                     pulls once; with the engine docker, the daemon
          --with <PACKAGE>           Install a Python package before the code runs, with the network
                                     preset pip, which is closed again then
          --tool <NAME>              Let the code call a stored tool as belljar.tools.NAME(…), with
                                     --rich or in a notebook; may be given more than once
          --engine <ENGINE>          Engine: local, process, none for no walls, docker or gvisor
                                     [default: local]
          --mount <SRC:DST[:ro|rw]>  Show a directory or file of this machine inside, read-only unless
                                     rw
      -e, --env <NAME[=VALUE]>       Set an environment variable; NAME alone takes its value from here
          --hostname <NAME>          Host name inside [default: belljar]
          --spec <FILE>              Read the sandbox's specification from a .toml or .json file; flags
                                     override it
          --policy <FILE>            Read from a TOML file what may be mounted: read, write and
                                     forbidden paths
          --cleanup <WHEN>           Wait for the removal of the sandbox, or leave it to the background
                                     [default: wait] [possible values: wait, background]

    Limits:
          --memory <SIZE>        Memory and swap of everything in a sandbox, including files in memory
                                 [default: 512m]
          --cpus <NUMBER>        Processors, such as 0.5 [default: 1]
          --timeout <TIME>       Time until everything is stopped, such as 30, 500ms or 10m [default:
                                 60s, for a shell 24h; 10s with the engine process]
          --pids <NUMBER>        Maximum number of processes and threads [default: 128]
          --tmp <SIZE>           Size of /tmp, by default nearly that of the memory [default: 480m]
          --disk <SIZE>          Size of the home directory, by default nearly that of the memory
                                 [default: 480m]
          --inodes <NUMBER>      Maximum number of files and directories in each writable file system
                                 [default: 65536]
          --output <SIZE>        Maximum of each output stream in a result [default: 8m]
          --open-files <NUMBER>  Maximum number of open files of each process [default: 1024]
          --log <SIZE>           Maximum of each output stream in --log-dir [default: 256m]
          --limits <GRADE>       How limits are enforced: cgroup, or watched, which is weaker

    Network:
          --net <MODE>           disabled, whitelist or open [default: whitelist if something is
                                 allowed, else disabled]
          --preset <NAME>        Allow what a package manager needs; see `belljar net presets`
          --allow <RULE>         Allow a host, *.SUFFIX or CIDR, each with :PORT; hosts without a port
                                 on 443 and 80
          --deny <RULE>          Deny what others allow, in the same form
          --request <HOST=RULE>  Allow a host only requests such as 'GET /v1/*'; * is any method, or any
                                 rest of the path at its end
          --secret <SECRET>      NAME=HOST:HEADER[:env=VARIABLE|:file=PATH|:secret=STORED]: replace a
                                 placeholder in a header of requests to an allowed host by a secret.
                                 Code has only the placeholder, in its variable NAME. The secret is read
                                 from the variable NAME by default
          --header <HEADER>      HOST:HEADER:env=VARIABLE, :file=PATH or :secret=STORED: set a header in
                                 requests to an allowed host, or to all hosts below *.SUFFIX
          --tls <HOST=MODE>      HOST=terminate: end TLS to a host, or to all below *.SUFFIX, at the
                                 gateway, which reads the requests; HOST=pass: do not

    Output:
      -q, --quiet            Print no messages except errors
          --json             Print one JSON result instead of the program's output
          --format <FORMAT>  Output format: table is the program's own output, json the same as --json
                             [possible values: table, json]
          --rich             Show results and pictures, as a notebook does
          --pictures <DIR>   Directory for pictures that cannot be shown, with --rich or of a notebook
                             [default: this one]
          --save <FILE>      Write the notebook with the outputs of this run
          --events           Print one JSON event a line as things happen
          --timings          Print how long each step took
          --log-dir <DIR>    Directory for the whole of an output stream that is more than is kept

    Examples:
      belljar run -c 'print(2**64)'
      belljar run script.js one two
      cat data.csv | belljar run -f data.csv analyse.py
      belljar run --memory 256m --cpus 0.5 --timeout 30 --mount /data:/data:ro job.py
      belljar run --json -l bash -c 'ls /'
      belljar run --rich plot.py
      belljar run --with 'pandas>=2' --with rich table.py
      belljar run --save out.ipynb notebook.ipynb

    Exit status: the code's own; 124 timed out, 137 out of memory, 128+n killed by signal n,
    125 Belljar itself failed or refused something, 2 wrong usage.
    ");
}

#[test]
fn doctor_creates_a_test_sandbox() {
    let host = Host::new();
    let done = host.run(&["doctor"]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{done:?}");
    for line in [
        "  ok      networks        a sandbox can have one",
        "  ok      local           every wall; the default here; a sandbox was started\n",
        "  weaker  process         fewer walls; with --engine process\n",
        "\nIn force in a sandbox of the engine local\n",
        "  ok      seccomp ",
    ] {
        assert!(done.text().contains(line), "{line:?} is not in {}", done.text());
    }
    let report = host.run(&["doctor", "--json"]).json();
    assert_eq!(report["failure"], serde_json::Value::Null);
    assert_eq!(report["isolation"]["engine"], "local");
    assert_eq!(report["engines"][1]["name"], "process");
    assert_eq!(report["engines"][1]["capabilities"]["own_tree"], false);
    assert!(report["findings"].as_array().unwrap().iter().all(|finding| finding["state"] != "missing"));
    // What contexts, builds and volumes need has a finding each, with what to do if it is not there.
    for name in ["code", "templates", "volumes"] {
        let finding =
            report["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == name).unwrap();
        assert_eq!(finding["state"] == "good", finding["fix"].is_null(), "{finding}");
    }
}

#[test]
fn doctor_tests_the_default_engine() {
    let host = Host::new();
    let report = Done::of(host.belljar(&["doctor", "--json"]).env("BELLJAR_ENGINE", "process")).json();
    assert_eq!(report["isolation"]["engine"], "process");
}

#[test]
fn languages_are_listed_with_versions() {
    let host = Host::new();
    let done = host.run(&["languages", "--json"]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{done:?}");
    let rows = done.json();
    let rows = rows.as_array().unwrap();
    assert!(rows.len() >= 15, "{rows:?}");
    for row in rows {
        assert!(row["version"].is_string() || !row["is_installed"].as_bool().unwrap(), "{row}");
    }
    let python = rows.iter().find(|row| row["name"] == "python").unwrap();
    assert!(python["version"].as_str().unwrap().starts_with("Python 3."), "{python}");
    let table = host.run(&["languages"]);
    assert_eq!(table.text().lines().count(), rows.len());
    assert!(table.text().lines().any(|line| line.starts_with("python ") && line.contains(" .py")));
}

#[test]
fn self_test_reports_contained_attacks() {
    let host = Host::new();
    let done = host.run(&["doctor", "--self-test"]);
    assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{done:?}");
    assert!(
        done.text().lines().any(|line| line.starts_with("K01 ") && line.contains("  contained  ")),
        "{done:?}"
    );
    // A variable for weaker limits does not weaken the test.
    let done = Done::of(host.belljar(&["doctor", "--self-test", "--json"]).env("BELLJAR_LIMITS", "watched"));
    assert_eq!((done.status, done.stderr.as_str()), (0, ""), "{done:?}");
    let report = done.json();
    let has_groups = host.run(&["run", "-l", "sh", "-c", ":"]).status == 0;
    assert_eq!(report["grade"], if has_groups { "cgroup" } else { "watched" }, "{report}");
    assert_eq!((&report["schema"], &report["is_contained"]), (&1.into(), &true.into()), "{report}");
    let cases = report["cases"].as_array().unwrap();
    let count = |kind: &str| cases.iter().filter(|case| case["verdict"]["kind"] == kind).count();
    assert_eq!(count("failed"), 0, "{report}");
    assert!(count("contained") >= 5, "{report}");
}

#[cfg(feature = "mutation")]
#[test]
fn self_test_fails_if_a_wall_is_missing() {
    let host = Host::new();
    let done = Done::of(host.belljar(&["doctor", "--self-test"]).env("BELLJAR_TEST_WITHOUT", "seccomp"));
    assert_eq!(done.status, 1, "{done:?}");
    assert!(
        done.text().lines().any(|line| line.starts_with("K01 ") && line.contains("NOT CONTAINED")),
        "{done:?}"
    );
}
