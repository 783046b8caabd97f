"""The gallery: programs in the style of the documented examples of matplotlib, pandas and seaborn, run as code in a sandbox. The
representations, the picture size, and the chart data of each result are compared with what the program has drawn.

The programs are those of the Python kernel's own tests. With BELLJAR_GALLERY_OUT=folder the pictures are saved there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import struct
from typing import Any, Dict, Iterator, List, Tuple

import pytest

import belljar
from belljar import Sandbox
from belljar.models import charts
from belljar.models.code import CHART, TABLE, Execution, Result

GALLERY = pathlib.Path(__file__).resolve().parents[3] / "kernels" / "python" / "tests" / "gallery"

START = "import numpy as np, pandas as pd, matplotlib.pyplot as plt\n"

# What the program has drawn, as reported by matplotlib: the parts of each of its axes, and the picture's size in pixels.
FACTS = """

def _facts():
    import json
    figure = plt.gcf()
    figure.canvas.draw()
    box = figure.get_tightbbox(figure.canvas.get_renderer()).padded(plt.rcParams["savefig.pad_inches"])
    axes = [
        {
            "title": axis.get_title(),
            "x_label": axis.get_xlabel(),
            "y_label": axis.get_ylabel(),
            "lines": [len(line.get_xdata()) for line in axis.get_lines()],
            "dots": [len(dots.get_offsets()) for dots in axis.collections if type(dots).__name__ == "PathCollection"],
            "bars": [len(bars.patches) for bars in axis.containers if hasattr(bars, "patches")],
            "wedges": sum(type(patch).__name__ == "Wedge" for patch in axis.patches),
        }
        for axis in figure.axes
    ]
    print(json.dumps({"axes": axes, "size": [box.width * figure.dpi, box.height * figure.dpi]}))

_facts()
"""

# Prints the modules that the interpreter finds.
LOOK = """
import importlib.util, json
names = ["matplotlib", "pandas", "seaborn", "scipy", "openpyxl"]
print(json.dumps({name: importlib.util.find_spec(name) is not None for name in names}))
"""

FORMS = {"text/plain", "image/png", CHART}


def _snippets(library: str) -> Any:
    """The programs of a library; nothing where this SDK lies apart from the rest of the repository."""
    path = GALLERY / f"{library}_snippets.py"
    spec = importlib.util.spec_from_file_location(f"gallery_{library}", path)
    if not path.exists() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _all(kind: str) -> List[Tuple[str, str, Any]]:
    found = []
    for library in ("matplotlib", "pandas", "seaborn"):
        programs: Dict[str, Any] = getattr(_snippets(library), kind, {})
        found += [(library, name, program) for name, program in programs.items()]
    return found


PLOTS, FRAMES = _all("SNIPPETS"), _all("FRAMES")


def _id(program: Any) -> str:
    return f"{program[0]}-{program[1]}".replace(" ", "-")


@pytest.fixture(scope="module")
def gallery(server: Tuple[str, str, bool]) -> Iterator[Tuple[Sandbox, Dict[str, bool]]]:
    """A sandbox for all programs, and its modules."""
    if not server[2]:
        pytest.skip("the stand-in runs no code; set BELLJAR_BIN")
    with belljar.Belljar(api_key=server[1], api_url=server[0]) as client:
        with client.sandboxes.create(timeout=1200, limits={"memory": "1g"}) as sandbox:
            needed = "command -v python3 >/dev/null && python3 -c 'import IPython'"
            if sandbox.commands.run(needed, check=False).exit_code != 0:
                pytest.skip("SKIPPED the gallery: the sandbox has no IPython")
            told = _run(sandbox, LOOK)
            there: Dict[str, bool] = json.loads(told.stdout)
            yield sandbox, there


def _needs(there: Dict[str, bool], program: str, modules: List[str]) -> None:
    missing = [module for module in modules if not there.get(module)]
    if missing:
        pytest.skip(f"SKIPPED {program}: the sandbox has no {', '.join(missing)}")


def _run(sandbox: Sandbox, code: str) -> Execution:
    execution = sandbox.run_code(code, timeout=60)
    assert execution.ok and execution.state == "preserved", execution.error
    return execution


def _size(png: bytes) -> Tuple[int, int]:
    """Returns width and height from the file's header."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and png[12:16] == b"IHDR" and png.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def _keep(name: str, png: bytes) -> None:
    folder = os.environ.get("BELLJAR_GALLERY_OUT")
    if folder:
        pathlib.Path(folder).mkdir(exist_ok=True)
        (pathlib.Path(folder) / f"{name}.png").write_bytes(png)


def _agrees(chart: charts.Chart, axes: List[Dict[str, Any]], figure: str) -> None:
    """Reports whether a chart matches matplotlib's description of its axes."""
    if chart.type == "superchart":
        assert len(chart.elements) > 1
        for element in chart.elements:
            assert isinstance(element, charts.Chart)
            _agrees(element, axes, figure)
        return
    titles = {axis["title"] for axis in axes}
    assert (chart.title or "") in titles | {figure}, (chart.title, titles)
    if chart.type in ("unknown", "pie"):
        if chart.type == "pie":
            assert len(chart.elements) in {axis["wedges"] for axis in axes}
            assert all(isinstance(one, charts.Slice) and 0 < one.angle <= 360 for one in chart.elements)
        return
    labels = (chart.x_label or "", chart.y_label or "")
    mine = [axis for axis in axes if (axis["x_label"], axis["y_label"]) == labels]
    assert mine, (labels, axes)
    lengths = [len(one.points) for one in chart.elements if isinstance(one, charts.Points)]
    if chart.type == "line":
        assert lengths and any(set(lengths) <= set(axis["lines"]) for axis in mine), (lengths, mine)
    elif chart.type == "scatter":
        assert sum(lengths) in {sum(axis["dots"]) for axis in mine}, (lengths, mine)
    elif chart.type == "bar":
        assert len(chart.elements) in {sum(axis["bars"]) for axis in mine}, (len(chart.elements), mine)
    else:
        assert chart.type == "box_and_whisker"
        for box in chart.elements:
            assert isinstance(box, charts.Box)
            assert box.min <= box.first_quartile <= box.median <= box.third_quartile <= box.max


@pytest.mark.parametrize("program", PLOTS, ids=_id)
def test_plot(gallery: Tuple[Sandbox, Dict[str, bool]], program: Tuple[str, str, Any]) -> None:
    sandbox, there = gallery
    library, name, (code, inches, check) = program
    needed = ["scipy"] if "density" in name or "kde" in code else []
    _needs(there, f"{library} {name}", ["matplotlib", "pandas", *needed, *([library] if library == "seaborn" else [])])
    start = START + ("import seaborn as sns\n" if library == "seaborn" else "")
    execution = _run(sandbox, start + code + FACTS)
    facts = json.loads(execution.stdout.splitlines()[-1])
    pictures = [result for result in execution.results if result.png is not None]
    assert len(pictures) == 1, [result.formats() for result in execution.results]
    (picture,) = pictures
    assert set(picture.mime) == FORMS and picture.formats() == ["text", "png", "chart"]
    assert not picture.is_main_result and picture.cut == ()
    png, chart = picture.png, picture.chart
    assert png is not None and chart is not None
    _keep(_id(program), png)
    for pixels, drawn, given in zip(_size(png), facts["size"], inches):
        assert abs(pixels - drawn) <= 3, (pixels, drawn)
        # It is cropped to the drawing, so that it may be slightly smaller or larger than the figure.
        assert given * 40 <= pixels <= given * 135, (pixels, given)
    figure = chart.title if chart.type == "superchart" and chart.title else ""
    _agrees(chart, facts["axes"], figure)
    assert eval(check, {"c": chart.to_dict()}), chart.to_dict()


@pytest.mark.parametrize("program", FRAMES, ids=_id)
def test_frame(gallery: Tuple[Sandbox, Dict[str, bool]], program: Tuple[str, str, Any]) -> None:
    sandbox, there = gallery
    library, name, (code, check) = program
    needed = ["openpyxl"] if "excel" in code else []
    _needs(there, f"{library} {name}", ["matplotlib", "pandas", *needed])
    execution = _run(sandbox, START + code)
    assert execution.stderr == ""
    mains: List[Result] = [result for result in execution.results if result.is_main_result]
    assert len(mains) == 1 and execution.text
    (main,) = mains
    assert {"text/plain", TABLE} <= set(main.mime) <= {"text/plain", TABLE, "text/html"}
    table = main.data
    assert table is not None
    raw = main.mime[TABLE]
    assert eval(check, {"t": raw}), raw
    assert len(raw["rows"]) == raw["row_count"] and all(len(row) == len(raw["columns"]) for row in raw["rows"])
    assert list(table.to_dict()) == [column["name"] for column in raw["columns"]]


def test_there_are_enough_programs() -> None:
    if not GALLERY.exists():
        pytest.skip("SKIPPED the gallery: it is not beside this SDK")
    assert len(PLOTS) >= 60 and len({_id(program) for program in PLOTS + FRAMES}) == len(PLOTS) + len(FRAMES)
