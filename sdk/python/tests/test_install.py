"""The package installs from a checkout, with the command of the page."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SDK = Path(__file__).resolve().parent.parent
PAGES = [SDK.parent.parent / "docs" / "python.md", SDK / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_install_from_a_checkout(page: Path, tmp_path: Path) -> None:
    if not page.exists():
        pytest.skip("SKIPPED: this is not a checkout")
    (command,) = re.findall(r"^pip (install .*)$", page.read_text("utf-8"), re.MULTILINE)
    ignored = shutil.ignore_patterns(".venv", "dist", "__pycache__", ".*_cache")
    shutil.copytree(SDK, tmp_path / "sdk" / "python", ignore=ignored)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", "--constraint", str(SDK / "constraints.txt")]
    pip = [str(python), "-m", "pip", *command.split(), *options]
    done = subprocess.run(pip, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    program = (
        "import belljar, pathlib; print(belljar.__version__, pathlib.Path(belljar.__file__).parent.joinpath('py.typed').exists())"
    )
    said = subprocess.run([str(python), "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"\d+\.\d+\.\d+\S* True\n", said)
