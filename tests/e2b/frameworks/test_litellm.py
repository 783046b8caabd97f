"""LiteLLM's sandboxes, which speak E2B's protocol without its client and reach sandboxes by host names alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import WAIT_TIMEOUT


def test_code_in_sandboxes(variables: dict[str, str]):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
    # Its clients of HTTP that use a proxy resolve names there.
    given = {**variables, "HTTPS_PROXY": variables["PROXY"], "DISABLE_AIOHTTP_TRANSPORT": "True"}
    program = Path(__file__).parent / "programs" / "litellm_code.py"
    done = subprocess.run([sys.executable, str(program)], env={**environment, **given}, capture_output=True, text=True, timeout=WAIT_TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == ["45 42 None", "ZeroDivisionError division by zero", "42 2", "True False"]
