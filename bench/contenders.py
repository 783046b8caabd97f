"""The contenders and their commands. All run the same program in the same environment."""

import dataclasses
import json
import os
import pathlib
import shutil

import measure

PYTHON = "/usr/bin/python3"
CODE = "print(2**64)"
PRINTED = b"18446744073709551616\n"
# `belljar run` runs code in a language, so a shell starts /bin/true, for all contenders.
SHELL_CODE = "exec /bin/true"
PROGRAMS = {"print(2**64)": ([PYTHON, "-c", CODE], PRINTED), "true": (["/bin/sh", "-c", SHELL_CODE], b"")}

# The environment that Belljar sets, for all contenders.
ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": os.environ.get("HOME", "/"),
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}

# Belljar's namespaces except that for time, which bubblewrap does not support, and a similar tree: a new root, /usr read-only,
# private /proc, /dev, /tmp and home.
BWRAP = (
    "--unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup --die-with-parent --new-session "
    "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 "
    "--ro-bind /etc/alternatives /etc/alternatives --ro-bind /etc/ssl/certs /etc/ssl/certs "
    "--ro-bind /etc/ld.so.cache /etc/ld.so.cache --proc /proc --dev /dev --tmpfs /tmp --tmpfs /home/user --chdir /home/user "
    "--setenv HOME /home/user --uid 1000 --gid 1000 --hostname bench --cap-drop ALL --"
).split()

DOCKER = (
    "run --rm --network none --cap-drop ALL --security-opt no-new-privileges --read-only --tmpfs /tmp --pids-limit 128 "
    "--memory 512m --cpus 1"
).split()

# Also the name of its control groups, by which bench/peers.sh finds leftovers.
CONTAINER = "belljar-bench-{id}"

GVISOR = "--platform=systrap --network=none --ignore-cgroups".split()

NSJAIL = (
    "-Mo -Q --user 1000 --group 1000 -R /usr -s usr/bin:/bin -s usr/lib:/lib -s usr/lib64:/lib64 -R /etc/ld.so.cache "
    "-R /dev/null -R /dev/urandom -T /tmp -T /home/user -D /home/user --keep_env --disable_rlimits --"
).split()


@dataclasses.dataclass
class Field:
    """The commands for each program, and the reasons why contenders are missing."""

    core: dict[str, list[measure.Command]]
    peers: dict[str, list[measure.Command]]
    skipped: dict[str, str]


def find(belljar):
    """Finds the contenders that work on this machine."""
    field = Field({program: [] for program in PROGRAMS}, {program: [] for program in PROGRAMS}, {})
    core = [bare, bubblewrap, lambda program: belljar_run(belljar, program), lambda program: belljar_background(belljar, program)]
    for make in core:
        add(field, field.core, make)
    directory = os.environ.get("BELLJAR_PEERS")
    if directory:
        states = dict(line.split("\t", 1) for line in pathlib.Path(directory, "peers").read_text().splitlines())
        for name, make in {"docker": docker, "runc": runc, "crun": crun, "gvisor": gvisor}.items():
            state, reason = states.get(name, "skipped\tnot requested").split("\t")
            if state == "ready":
                add(field, field.peers, lambda program, make=make: make(pathlib.Path(directory), program))
            else:
                field.skipped[name] = reason
        add(field, field.peers, nsjail)
    return field


def peer_programs(field):
    """Returns the programs of the measured peers."""
    return list(dict.fromkeys(command.argv[0] for commands in field.peers.values() for command in commands))


def add(field, commands, make):
    """Adds a contender if it can run every program."""
    made = {program: make(program) for program in PROGRAMS}
    for command in made.values():
        program = command.argv[0]
        reason = f"{program} is not installed" if not shutil.which(program) else measure.works(command)
        if reason:
            field.skipped[command.name] = reason
            return
    for program, command in made.items():
        commands[program].append(command)


def bare(program):
    argv, output = PROGRAMS[program]
    return measure.Command("bare", argv, ENV, output)


def bubblewrap(program):
    argv, output = PROGRAMS[program]
    return measure.Command("bubblewrap", [which("bwrap"), *BWRAP, *argv], ENV, output)


def belljar_run(belljar, program, name="belljar", flags=(), settle=0.0):
    code = ["-c", CODE] if program == "print(2**64)" else ["-l", "sh", "-c", SHELL_CODE]
    return measure.Command(name, [belljar, "run", *flags, *code], ENV, PROGRAMS[program][1], settle=settle)


def belljar_background(belljar, program):
    # The pause keeps the cleanup from slowing down the next command.
    return belljar_run(belljar, program, "belljar, --cleanup background", ["--cleanup", "background"], 0.005)


def docker(directory, program):
    argv, output = PROGRAMS[program]
    names = [word for name in ("LANG", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE") for word in ("-e", name)]
    command = [which("docker"), "-H", f"unix://{directory}/docker.sock", *DOCKER, *names, "belljar-bench", *argv]
    # The command is only a client; the CPU time of the daemon and its children is unknown.
    return measure.Command("docker run", command, peer_env(), output, counts_cpu=False, settle=0.3)


def runc(directory, program):
    argv, output = PROGRAMS[program]
    command = [which("runc"), "--root", f"{directory}/runc", "run", "--bundle", bundle(directory, argv), CONTAINER]
    return measure.Command("runc", command, peer_env(), output)


def crun(directory, program):
    argv, output = PROGRAMS[program]
    command = [which("crun"), "--root", f"{directory}/crun", "run", "--bundle", bundle(directory, argv), CONTAINER]
    return measure.Command("crun", command, peer_env(), output)


def gvisor(directory, program):
    argv, output = PROGRAMS[program]
    command = [which("runsc"), f"--root={directory}/runsc", *GVISOR, "do", *argv]
    # The program inherits this environment.
    return measure.Command("gVisor runsc do", command, ENV, output)


def nsjail(program):
    argv, output = PROGRAMS[program]
    return measure.Command("nsjail", [which("nsjail"), *NSJAIL, *argv], ENV, output)


def which(program):
    return shutil.which(program) or program


def peer_env():
    """Returns the environment of programs unpacked by bench/peers.sh, which need its libraries."""
    return ENV | {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}


def bundle(directory, argv):
    """Creates an OCI bundle like that of `runc spec`, with limits and without privileges; returns its directory."""
    path = directory / f"bundle-{os.path.basename(argv[0])}"
    path.mkdir(exist_ok=True)
    hidden = ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug"]
    small = ["nosuid", "noexec", "nodev"]
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": argv,
            "env": [f"{name}={value}" for name, value in ENV.items()],
            "cwd": "/",
            "capabilities": {"bounding": [], "effective": [], "permitted": [], "ambient": []},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": True,
        },
        "root": {"path": f"{directory}/rootfs", "readonly": True},
        "hostname": "bench",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "size=100m"]},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*small, "ro"]},
        ],
        "linux": {
            "resources": {
                "devices": [{"allow": False, "access": "rwm"}],
                "memory": {"limit": 512 << 20},
                "pids": {"limit": 128},
                "cpu": {"quota": 100000, "period": 100000},
            },
            "namespaces": [{"type": name} for name in ("pid", "network", "ipc", "uts", "mount")],
            "maskedPaths": hidden,
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }
    (path / "config.json").write_text(json.dumps(config))
    return str(path)
