#!/usr/bin/env python3
"""Runs all stages of the gate, and reports the result of each at the end.

usage: gate.py --logs DIRECTORY [--long] [STAGE...]

A stage is a target of the Makefile; --long runs those of `make long`. A failed stage prevents only the stages that depend on it. Each
stage writes its output to DIRECTORY/STAGE.log, and its test results, if any, to DIRECTORY/STAGE.xml (JUnit).

Tests skipped because a capability is missing are listed and counted. With CI set, a skip that is not in tests/skips.txt fails
the gate. Tests that passed only on a retry are listed as FLAKY; tests/flaky.md has their causes.
"""

from __future__ import annotations

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

ROOT = Path(__file__).resolve().parent.parent

# In order of execution, each with the stages that it depends on.
STAGES: Dict[str, List[str]] = {
    "deps": [],
    "format": [],
    "lint": [],
    "test-build": [],
    "test-rust": ["test-build"],
    "docker": ["test-build"],
    "gvisor": ["test-build"],
    "kernel-python": [],
    "kernel-javascript": [],
    "sdk-python": ["test-build"],
    "sdk-typescript": ["test-build"],
    "openapi": ["test-build"],
    "e2b-python": ["test-build"],
    "e2b-javascript": ["test-build"],
    "mcp": ["test-build"],
    "console": ["test-build"],
    "packages": ["test-build"],
}

# Stages that need much time, real clocks, new seeds or an idle machine.
LONG: Dict[str, List[str]] = {
    "deps": [],
    "build": [],
    "test-build": [],
    "conformance": ["test-build"],
    "docker-all": ["test-build"],
    "gvisor-all": ["test-build"],
    "timing": ["test-build"],
    "release": ["build", "test-build"],
    "install-packages": ["build"],
    "golden": ["test-build"],
    "registries": ["test-build"],
    "hostile": ["build"],
    "leaks": ["test-build"],
    "crash": ["test-build"],
    "soak": ["build"],
    "transfers": ["test-build"],
    "properties": ["test-build"],
    "fuzz": [],
    "schemathesis": ["test-build"],
    "e2b-frameworks": ["test-build"],
    "bench": ["build"],
    "bench-service": ["build"],
    "bench-network": ["build"],
    "bench-interpreter": ["build"],
    "bench-e2b": ["build"],
    "bench-agents": ["build"],
    "bench-growth": ["build"],
}

# In seconds.
DAY = 24 * 60 * 60

SKIPPED = re.compile(r"^\s*SKIPPED(?: (?P<what>.*?))?: (?P<why>.+?)\s*$", re.MULTILINE)


class Tests(NamedTuple):
    """The results of a stage's tests."""

    passed: int
    failed: List[str]
    flaky: List[str]
    # `test: reason`.
    skipped: List[str]


class Outcome(NamedTuple):
    """The outcome of a stage."""

    stage: str
    # `passed`, `failed`, or the reason why it was not run.
    result: str
    seconds: float
    tests: Optional[Tests]


def run(stage: str, logs: Path) -> Outcome:
    """Runs one stage, and prints its output as it is written."""
    junit = logs / f"{stage}.xml"
    junit.unlink(missing_ok=True)
    print(f"== {stage}", flush=True)
    begin = time.monotonic()
    # `ONLY` selects stages here, but cases in the stages that have any.
    command = ["make", "--no-print-directory", stage, "ONLY="]
    environment = {**os.environ, "GATE_JUNIT": str(junit)}
    with open(logs / f"{stage}.log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        status = process.wait()
    seconds = time.monotonic() - begin
    tests = read(junit) if junit.exists() else from_output(logs / f"{stage}.log")
    result = "passed" if status == 0 else "failed"
    print(f"== {stage}: {result} in {spell(seconds)}", flush=True)
    return Outcome(stage, result, seconds, tests)


def read(junit: Path) -> Optional[Tests]:
    """Reads a JUnit report. Returns None if it is truncated."""
    try:
        root = ET.parse(junit).getroot()
    except ET.ParseError:
        return None
    tests = Tests(0, [], [], [])
    passed = 0
    for case in root.iter("testcase"):
        name = f"{case.get('classname', '')} {case.get('name', '')}".strip()
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            tests.failed.append(name)
            continue
        marked = case.find("skipped")
        if marked is not None:
            tests.skipped.append(f"{name}: {marked.get('message') or marked.text or ''}".rstrip(": "))
            continue
        # A Rust test that lacks a capability prints the reason and passes.
        output = "\n".join(child.text or "" for child in case if child.tag in ("system-out", "system-err"))
        reasons = {match["why"] for match in SKIPPED.finditer(output)}
        if reasons:
            tests.skipped.extend(f"{name}: {reason}" for reason in sorted(reasons))
            continue
        passed += 1
        if "flakyFailure" in kinds or "flakyError" in kinds:
            tests.flaky.append(name)
    return tests._replace(passed=passed)


def from_output(log: Path) -> Optional[Tests]:
    """Reads the skip lines of a stage that could not be run at all."""
    lines = log.read_text("utf-8", "replace").splitlines()
    skipped = [line[len("SKIPPED ") :] for line in lines if line.startswith("SKIPPED the ")]
    return Tests(0, [], [], skipped) if skipped else None


def unlisted(skipped: List[str]) -> List[str]:
    """Returns the skips that are not in tests/skips.txt."""
    lines = (ROOT / "tests/skips.txt").read_text("utf-8").splitlines()
    patterns = [re.compile(line) for line in lines if line and not line.startswith("#")]
    return [skip for skip in skipped if not any(pattern.search(skip) for pattern in patterns)]


def spell(seconds: float) -> str:
    """Formats a duration for people."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def report(outcomes: List[Outcome]) -> List[str]:
    """Returns the lines of the summary."""
    width = max(len(outcome.stage) for outcome in outcomes)
    lines = [f"== Summary: {spell(sum(outcome.seconds for outcome in outcomes))}"]
    for stage, result, seconds, tests in outcomes:
        line = f"{stage:{width}}  {result:8}  {spell(seconds):>12}"
        if tests is not None:
            line += f"  {tests.passed} passed, {len(tests.failed)} failed, {len(tests.flaky)} flaky, {len(tests.skipped)} skipped"
        lines.append(line)
    for stage, _, _, tests in outcomes:
        if tests is None:
            continue
        lines += [f"FAILED {stage}: {name}" for name in tests.failed]
        lines += [f"FLAKY {stage}: {name}" for name in tests.flaky]
        reasons = collections.Counter(skip.split(": ", 1)[-1] for skip in tests.skipped)
        lines += [f"SKIPPED {stage}: {count} x {reason}" for reason, count in sorted(reasons.items())]
    return lines


def prune(target: Path) -> None:
    """Removes incremental compilation data that was not used for a day: each set of features has its own."""
    for left in [*target.glob("*/incremental/*"), *target.glob("*/*/incremental/*")]:
        if time.time() - left.stat().st_mtime > DAY:
            shutil.rmtree(left, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, required=True, help="directory for output and results")
    parser.add_argument("--long", action="store_true", help="the stages of `make long`")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="the stages to run; all of them if none is named")
    given = parser.parse_args()
    stages = LONG if given.long else STAGES
    unknown = [stage for stage in given.stages if stage not in stages]
    if unknown:
        parser.error(f"no such stage: {', '.join(unknown)}; there are {', '.join(stages)}")
    given.logs.mkdir(parents=True, exist_ok=True)
    prune(given.logs.parent)
    outcomes: List[Outcome] = []
    missing: Dict[str, str] = {}
    for stage, needs in stages.items():
        if given.stages and stage not in given.stages:
            continue
        # Stages without a failed dependency still run.
        lacking = next((need for need in needs if need in missing), None)
        if lacking is not None:
            outcomes.append(Outcome(stage, f"not run, as {lacking} failed", 0, None))
            continue
        outcomes.append(run(stage, given.logs))
        if outcomes[-1].result != "passed":
            missing[stage] = outcomes[-1].result
    lines = report(outcomes)
    is_red = any(outcome.result != "passed" for outcome in outcomes)
    skipped = [skip for outcome in outcomes if outcome.tests for skip in outcome.tests.skipped]
    if os.environ.get("CI") and (extra := unlisted(skipped)):
        lines += [f"NOT ALLOWED TO SKIP: {skip}" for skip in extra]
        is_red = True
    counts = [outcome.tests for outcome in outcomes if outcome.tests]
    failed = sum(len(tests.failed) for tests in counts)
    lines.append(f"{sum(tests.passed for tests in counts)} passed, {failed} failed, {len(skipped)} skipped")
    (given.logs / "summary.txt").write_text("\n".join(lines) + "\n", "utf-8")
    print("\n".join(lines), flush=True)
    sys.exit(1 if is_red else 0)


if __name__ == "__main__":
    main()
