"""Runs the gallery: representations, picture size and chart data of each snippet.

With BELLJAR_GALLERY_OUT=folder the pictures are saved there for inspection.
"""

import os
import pathlib

import pytest
from driver import CHART, TABLE
from gallery import matplotlib_snippets, pandas_snippets, seaborn_snippets

START = "import numpy as np, pandas as pd, matplotlib.pyplot as plt\n"
PLOTS = {
    **{f"matplotlib {name}": value for name, value in matplotlib_snippets.SNIPPETS.items()},
    **{f"pandas {name}": value for name, value in pandas_snippets.SNIPPETS.items()},
    **{f"seaborn {name}": value for name, value in seaborn_snippets.SNIPPETS.items()},
}


def _keep(name, png):
    folder = os.environ.get("BELLJAR_GALLERY_OUT")
    if folder:
        pathlib.Path(folder).mkdir(exist_ok=True)
        (pathlib.Path(folder) / f"{name.replace(' ', '-')}.png").write_bytes(png)


@pytest.mark.parametrize("name", PLOTS)
def test_plot(kernel, name):
    code, size, check = PLOTS[name]
    start = START + ("import seaborn as sns\n" if name.startswith("seaborn") else "")
    outcome = kernel.run(start + code)
    assert outcome.status == "ok", outcome.error
    pictures = [one for one in outcome.results if "image/png" in one["data"]]
    assert len(pictures) == 1, [list(one["data"]) for one in outcome.results]
    (picture,) = pictures
    assert picture["main"] is False and "cut" not in picture, picture.get("cut")
    assert set(picture["data"]) == {"text/plain", "image/png", CHART}
    png = outcome.png()
    _keep(name, png)
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and png.endswith(b"IEND\xaeB`\x82")
    for given, at in zip(size, (16, 20), strict=True):
        # The picture is cropped to the drawing, so that it may be slightly smaller or larger than the figure.
        pixels = int.from_bytes(png[at : at + 4], "big")
        assert given * 100 * 0.4 <= pixels <= given * 100 * 1.35, (given, pixels)
    chart = outcome.chart()
    assert eval(check, {"c": chart}), chart


@pytest.mark.parametrize("name", pandas_snippets.FRAMES)
def test_frame(kernel, name):
    code, check = pandas_snippets.FRAMES[name]
    outcome = kernel.run(START + code)
    assert outcome.status == "ok", outcome.error
    assert outcome.text and outcome.stderr == ""
    assert {"text/plain", TABLE} <= set(outcome.main["data"]) <= {"text/plain", TABLE, "text/html"}
    assert eval(check, {"t": outcome.main["data"][TABLE]}), outcome.main["data"][TABLE]
