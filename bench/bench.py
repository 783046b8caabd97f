#!/usr/bin/env python3
"""Measures the cost of a sandbox, as ratios to a bare process and to other sandboxes in the same run.

Usage: BELLJAR=path/to/belljar bench.py [--rounds N] [--write]
With --write the results replace bench/RESULTS.md. Under bench/peers.sh, Docker and others are measured too.
"""

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import contenders
import measure
import phases
import report
import streams

HERE = pathlib.Path(__file__).resolve().parent
WIDTHS = (2, 8)
STREAM_ROUNDS = 9


@dataclasses.dataclass
class Results:
    """The data of the report."""

    rounds: int
    made_by: str
    versions: list[str]
    # Load average of the minute before the start; above the number of processors, the machine was busy.
    load: float
    field: contenders.Field
    core: dict = dataclasses.field(default_factory=dict)
    core_wide: dict = dataclasses.field(default_factory=dict)
    peers: dict = dataclasses.field(default_factory=dict)
    peers_wide: dict = dataclasses.field(default_factory=dict)
    peer_commands: dict = dataclasses.field(default_factory=dict)
    stdout: dict = dataclasses.field(default_factory=dict)
    files: dict = dataclasses.field(default_factory=dict)
    phases: dict = dataclasses.field(default_factory=dict)


def version(argv):
    """Returns the first line of a program's version, or None if it is not installed."""
    if not shutil.which(argv[0]):
        return None
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    line = (done.stdout or done.stderr).strip().splitlines()
    return re.sub(r",? (build|commit) .*", "", line[0]) if line else None


def versions(belljar, field):
    programs = [belljar, "bwrap", contenders.PYTHON, *contenders.peer_programs(field)]
    return [found for program in programs if (found := version([program, "--version"]))]


def measure_parallel(commands, rounds):
    return {width: measure.at_once(commands, width, rounds) for width in WIDTHS}


def measure_all(belljar, options):
    load = os.getloadavg()[0]
    if load > os.cpu_count() / 2:
        measure.say(f"the machine is busy (load {load:.1f}): results will be noisy")
    field = contenders.find(belljar)
    for name, reason in field.skipped.items():
        measure.say(f"skipped: {name}: {reason}")
    for needed in ("bare", "belljar"):
        if needed in field.skipped:
            sys.exit(f"{needed} cannot be run: {field.skipped[needed]}")
    made_by = "make bench-peers" if "BELLJAR_PEERS" in os.environ else "make bench"
    results = Results(options.rounds, made_by, versions(belljar, field), load, field)
    for program, commands in field.core.items():
        measure.say(f"{program}: {', '.join(command.name for command in commands)}")
        results.core[program] = measure.in_turn(commands, options.rounds)
        results.core_wide[program] = measure_parallel(commands, options.rounds)
    measure.say("standard output, files, phases")
    results.stdout = streams.standard_output(belljar, options.megabytes, STREAM_ROUNDS)
    results.files = streams.files(belljar, STREAM_ROUNDS)
    results.phases = {program: phases.measure_phases(belljar, program, options.rounds) for program in field.core}
    for program, peers in field.peers.items():
        if peers:
            commands = field.core[program] + peers
            measure.say(f"{program}: {', '.join(command.name for command in commands)}")
            results.peer_commands[program] = commands
            results.peers[program] = measure.in_turn(commands, options.rounds)
            results.peers_wide[program] = measure_parallel(commands, options.rounds)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="runs per command (default: 200)")
    parser.add_argument("--megabytes", type=int, default=1000, help="size of standard output (default: 1000)")
    parser.add_argument("--write", action="store_true", help="write bench/RESULTS.md")
    options = parser.parse_args()
    belljar = os.environ.get("BELLJAR") or shutil.which("belljar")
    if not belljar:
        sys.exit("set BELLJAR to the path of the belljar binary")
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as directory:
        installed = str(measure.install(belljar, directory))
        try:
            text = report.render(measure_all(installed, options))
        except measure.Failed as error:
            sys.exit(str(error))
    print(text)
    if options.write:
        (HERE / "RESULTS.md").write_text(text)


if __name__ == "__main__":
    main()
