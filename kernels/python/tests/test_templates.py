"""The templates that come with Belljar, and the script that fills a mirror for them."""

import os
import pathlib
import re
import subprocess
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
TEMPLATES = {path.stem: tomllib.loads(path.read_text()) for path in sorted((ROOT / "templates").glob("*.toml"))}


def words(template, kind):
    return [word for step in TEMPLATES[template]["step"] for word in step.get(kind, [])]


def test_no_template_chooses_how_figures_are_shown():
    assert len(TEMPLATES) == 4
    for template in TEMPLATES.values():
        assert not any("MPLBACKEND" in step.get("env", {}) for step in template["step"])


def test_what_people_expect_is_there():
    expected = (
        "plotly nbformat bokeh sympy opencv-python-headless beautifulsoup4 aiohttp scikit-image xarray nltk python-docx xlrd"
    )
    expected += " soundfile pytest pyarrow polars duckdb pip"
    assert set(expected.split()) <= set(words("code-interpreter", "pip"))
    expected = "python-is-python3 git curl tzdata fonts-noto-cjk fonts-noto-color-emoji"
    assert set(expected.split()) <= set(words("code-interpreter", "apt"))
    assert any(word.startswith("npm@") for word in words("code-interpreter", "npm"))
    assert TEMPLATES["code-interpreter-full"]["base"] == "template:code-interpreter"
    assert {"r-cran-irkernel", "default-jdk-headless"} <= set(words("code-interpreter-full", "apt"))


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_page_lists_the_packages(template):
    page = (ROOT / "docs/templates.md").read_text()
    assert f"`{template}`" in page
    listed = set(re.split(r"[\s`,;().]+", page.partition("## Shipped templates")[2].partition("\n## ")[0]))
    named = {re.split(r"[@<>=]", word)[0] for kind in ("pip", "npm") for word in words(template, kind)}
    assert named - listed == set()


def program(directory, name, text):
    path = directory / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


# A registry's client that refuses a package, and says why unless it is told to be silent.
REFUSE = 'case "$*" in *--silent*|*loglevel=silent*) ;; *) echo "npm error code EBADENGINE" >&2 ;; esac; exit 1'


@pytest.mark.parametrize("client", ["npm", "node"])
def test_the_mirror_shows_why_npm_has_failed(tmp_path, client):
    template = tmp_path / "t.toml"
    template.write_text('name = "t"\nbase = "host"\n[[step]]\nnpm = ["esbuild"]\n')
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs, "npm", "mkdir -p package/bin; tar -czf npm-9.tgz package; echo npm-9.tgz")
    program(programs, client, REFUSE)
    done = subprocess.run(
        [ROOT / "templates/mirror.sh", template, tmp_path / "mirror"],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "npm error code EBADENGINE" in done.stderr and "mirror: failed in line" in done.stderr
