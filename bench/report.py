"""Makes RESULTS.md of what was measured."""

import datetime
import os
import platform
import shlex

import contenders
import phases
import streams
from measure import median, percentile

HEAD = """# Results of the last run

{date}, {machine}, load {load:.1f} before; {rounds} runs of each. Made by `{made_by}`.
{versions}

Times are from the start of the command to its end, in milliseconds; CPU is user and system time of all that it started,
at p50. Compare within a run, not between runs. "Adds" is what comes on top of the bare program at p50.
"""

CORE_NOTE = """bubblewrap makes the namespaces that Belljar makes (but that for time, which it does not know) and the same kind of tree. It
makes no control groups, installs no seccomp filter and no Landlock rules. `belljar run` runs code in a language, so `true`
has a shell before it, for all: `sh -c 'exec /bin/true'`.
"""

PEER_NOTE = """These ran in turn too, after the ones above and with these beside for comparison. Docker, runc and crun have an image of
Debian with nothing but `python3-minimal`, which starts faster than the Python of a whole system; gVisor shows this machine's
files, as bubblewrap and Belljar do. runc and crun have a container description with the same limits, no capabilities and a
read-only root.
"""


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal")) >> 20
    who = "root" if os.geteuid() == 0 else "ordinary user"
    return f"{os.cpu_count()} × {model}, {memory} GiB, Linux {platform.release()}, {who}"


def table(head, rows):
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def times_table(commands, times):
    """One row for each contender, and what it adds against the bare program and bubblewrap."""
    base = times["bare"]
    peer = times.get("bubblewrap")
    rows = []
    for command in commands:
        took = times[command.name]
        p50 = median(took.wall)
        row = [command.name, *(f"{percentile(took.wall, share):.2f}" for share in (0.5, 0.95, 0.99))]
        row += [f"{p50 / median(base.wall):.2f}"]
        if took is base:
            row += ["", ""]
        else:
            row += [f"{p50 - median(base.wall):.2f}"]
            row += [f"{adds(times, command.name) / adds(times, 'bubblewrap'):.2f}" if peer else ""]
        row += [f"{median(took.cpu):.2f}" if command.counts_cpu else "not known"]
        rows.append(row)
    return table(["", "p50", "p95", "p99", "× bare", "adds", "adds, × bubblewrap", "CPU"], rows)


def adds(times, name):
    return median(times[name].wall) - median(times["bare"].wall)


def wide_table(commands, by_width):
    rows = []
    for width, (times, rates) in by_width.items():
        for command in commands:
            walls = times[command.name].wall
            shares = [f"{percentile(walls, share):.2f}" for share in (0.5, 0.95, 0.99)]
            rows.append([str(width), command.name, *shares, f"{rates[command.name]:.1f}"])
    return table(["at once", "", "p50", "p95", "p99", "a second"], rows)


def target(text, reached, limit, at_most, unit=""):
    """One row of the table of targets."""
    if reached is None:
        return [text, "–", "not measured"]
    good = reached <= limit if at_most else reached >= limit
    factor = reached / limit if at_most else limit / reached
    # A negative cost, from a noisy run, is within any bound.
    return [text, f"{reached:.2f}{unit}", "met" if good else f"missed by factor {factor:.2f}"]


def targets(results):
    def against(program, name="belljar"):
        times = results.core[program]
        return adds(times, name) / adds(times, "bubblewrap") if "bubblewrap" in times else None

    docker = results.peers.get("print(2**64)", {})
    stdout = results.stdout
    rows = [
        *(
            target(f"`{program}`: {name} adds at most {most} times what bubblewrap adds", against(program, name), most, True, " ×")
            for program in contenders.PROGRAMS
            for name, most in (("belljar", 1.1), ("belljar, --cleanup background", 1.0))
        ),
        target(
            "standard output at least half as fast as a plain pipe",
            median(stdout["belljar"]) / median(stdout["plain pipe"]),
            0.5,
            False,
            " ×",
        ),
        target(
            "`docker run` takes at least 15 times as long for `print(2**64)`",
            median(docker["docker run"].wall) / median(docker["belljar"].wall) if "docker run" in docker else None,
            15.0,
            False,
            " ×",
        ),
    ]
    return table(["target", "reached", ""], rows)


def file_table(seconds):
    rows = []
    for (way, name), taken in seconds.items():
        rows.append([way, name, f"{median(taken):.3f}", f"{streams.FILE_BYTES / 1e6 / median(taken):.0f}"])
    return table(["100 MB", "", "s", "MB/s"], rows)


def phase_table(by_program):
    rows = []
    names = list(dict.fromkeys(name for taken in by_program.values() for name in taken))
    for name in names:
        cells = [f"{taken[name]:.3f}" if name in taken else "" for taken in by_program.values()]
        rows.append([f"`{name}`", *cells, phases.MEANING.get(name, "")])
    return table(["phase", *(f"`{program}`" for program in by_program), "what"], rows)


def commands_used(field):
    directory = os.environ.get("BELLJAR_PEERS", "$BELLJAR_PEERS")
    for program in contenders.PROGRAMS:
        yield f"`{program}`:"
        yield ""
        yield "```"
        for command in field.core[program] + field.peers[program]:
            line = shlex.join([os.path.basename(command.argv[0]), *command.argv[1:]])
            yield f"{command.name}: {line}".replace(directory, "$BELLJAR_PEERS")
        yield "```"
        yield ""


def render(results):
    """The whole page."""
    field = results.field
    head = HEAD.format(
        date=datetime.date.today(),
        machine=machine(),
        load=results.load,
        rounds=results.rounds,
        made_by=results.made_by,
        versions=", ".join(results.versions) + ".",
    )
    out = [head, "## Targets", "", *targets(results)]
    if field.skipped:
        out += ["Not measured:", "", *(f"- {name}: {reason}" for name, reason in field.skipped.items()), ""]
    out += ["## Against a bare program and bubblewrap", "", CORE_NOTE]
    for program, commands in field.core.items():
        out += [f"### `{program}`", "", *times_table(commands, results.core[program])]
        out += ["Several at a time:", "", *wide_table(commands, results.core_wide[program])]
    if results.peers:
        out += ["## Others", "", PEER_NOTE]
        for program, commands in results.peer_commands.items():
            out += [f"### `{program}`, others", "", *times_table(commands, results.peers[program])]
            out += ["Several at a time:", "", *wide_table(commands, results.peers_wide[program])]
    out += ["## Standard output", "", "A Python program that writes 64 KiB at a time, from the first byte to the last.", ""]
    plain = median(results.stdout["plain pipe"])
    out += table(
        ["", "MB/s", "× plain pipe"],
        [[name, f"{median(rates):.0f}", f"{median(rates) / plain:.2f}"] for name, rates in results.stdout.items()],
    )
    out += ["## Files", "", "100 MB, from start to end of the command; a digest of what came out is compared.", ""]
    out += file_table(results.files)
    out += ["## Where the time goes", "", "`belljar run --json --timings`, median milliseconds.", ""]
    out += phase_table(results.phases)
    out += ["## The commands", "", *commands_used(field)]
    return "\n".join(out).rstrip() + "\n"
