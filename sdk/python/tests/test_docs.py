"""Runs each example of docs/agents.md, docs/code-interpreter.md, docs/python.md, docs/screening.md and the README, and each
program in `examples`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

import pytest

SDK = Path(__file__).resolve().parent.parent
NAMES = ("agents.md", "code-interpreter.md", "python.md", "screening.md")
PAGES = [*(SDK.parent.parent / "docs" / name for name in NAMES), SDK / "README.md"]
BLOCK = re.compile(
    r"(?:<!-- needs: (walls|interpreters|templates|volumes) -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def blocks() -> Iterator[Any]:
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start(2)) + 1
            yield pytest.param(match[2], match[1], id=f"{page.name}:{line}")


def has_interpreters() -> bool:
    """Reports whether this machine, whose tree the sandboxes use, has the interpreters of the page."""
    env = {**os.environ, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    wanted = (["python3", "-c", "import IPython, pandas, matplotlib"], ["node", "--version"])
    return all(subprocess.run(["env", *one], env=env, capture_output=True).returncode == 0 for one in wanted)


def run(arguments: Any, directory: Path, environment: Dict[str, str]) -> str:
    env = {**os.environ, **environment, "PYTHONWARNINGS": "error", "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=directory, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(("code", "needs"), list(blocks()))
def test_page(
    code: str, needs: Optional[str], server: Tuple[str, str, bool], environment: Dict[str, str], tmp_path: Path
) -> None:
    if needs is not None and not server[2]:
        pytest.skip("the stand-in has no such thing; set BELLJAR_BIN")
    if needs == "interpreters" and not has_interpreters():
        pytest.skip("SKIPPED: needs Python with IPython, pandas and matplotlib, and Node")
    if needs in ("templates", "volumes") and os.geteuid() != 0:
        pytest.skip("SKIPPED: templates are built, and volumes mounted, by a server of root")
    run(["-c", code], tmp_path, environment)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("hello.py", "hello from"),
        ("many_at_once.py", "[0, 1, 4, 9, 16]"),
        ("try_two_ways.py", "42 works"),
        ("watch_a_build.py", "done: all is well"),
    ],
)
def test_example(program: str, says: str, environment: Dict[str, str], tmp_path: Path) -> None:
    assert says in run([str(SDK / "examples" / program)], tmp_path, environment)


def test_each_example_is_tried() -> None:
    assert {path.name for path in (SDK / "examples").glob("*.py")} == {
        "hello.py",
        "many_at_once.py",
        "try_two_ways.py",
        "watch_a_build.py",
    }
