"""What type checkers make of the package: the kinds of charts narrow, and nothing is unknown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SDK = Path(__file__).resolve().parent.parent

PROGRAM = """
from typing import Optional
from typing_extensions import assert_type
from belljar import (
    AnyChart, BarChart, Chart, ExecutionError, KernelDied, LineChart, PieChart, Points, Result, ScatterChart, Slice, SuperChart
)

def by_type(result: Result) -> None:
    chart = result.chart
    assert_type(chart, Optional[AnyChart])
    if chart is None:
        return
    if chart.type == "line":
        assert_type(chart, LineChart)
        assert_type(chart.elements[0], Points)
    elif chart.type == "pie":
        assert_type(chart, PieChart)
        assert_type(chart.elements[0].angle, float)
    elif chart.type == "superchart":
        assert_type(chart.elements[0], AnyChart)
    base: Chart = chart
    print(base.title)

def by_class(chart: AnyChart, error: Optional[ExecutionError]) -> None:
    if isinstance(chart, (LineChart, ScatterChart)):
        assert_type(chart.elements[0], Points)
    if isinstance(chart, BarChart):
        assert_type(chart.elements[0].group, str)
    if isinstance(error, KernelDied):
        assert_type(error.exit_code, Optional[int])
"""


def test_charts_narrow(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text('{"reportMissingModuleSource": "none", "typeCheckingMode": "standard"}')
    for checker in (["mypy", "--strict", "--config-file="], ["basedpyright", "--pythonpath", sys.executable]):
        command = [sys.executable, "-m", checker[0], *checker[1:], "program.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
