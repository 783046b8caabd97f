"""Data of charts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Literal, Mapping, Optional, Tuple, Type, Union, cast

from .. import _json as read

MAX_DEPTH = 4
"""Maximum depth of charts of charts."""


@dataclass(frozen=True)
class Points:
    """A series of a line or a scatter chart.

    Attributes:
        label: Its name in the legend.
        points: Pairs of x and y: numbers, strings, or times in ISO 8601.
    """

    label: str
    points: Tuple[Tuple[Any, Any], ...] = field(repr=False)


@dataclass(frozen=True)
class Bar:
    """A bar.

    Attributes:
        label: Its position on the axis.
        value: Its height.
        group: The series that it belongs to.
    """

    label: str
    value: Any
    group: str


@dataclass(frozen=True)
class Slice:
    """A wedge of a pie chart.

    Attributes:
        label: Its name.
        angle: Its angle, in degrees.
        radius: Its radius.
    """

    label: str
    angle: float
    radius: float


@dataclass(frozen=True)
class Box:
    """A box of a box-and-whisker chart."""

    label: str
    min: float
    first_quartile: float
    median: float
    third_quartile: float
    max: float
    outliers: Tuple[float, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A chart. Each kind has a class of its own, which `isinstance` and `type` tell apart.

    Attributes:
        type: `line`, `scatter`, `bar`, `pie`, `box_and_whisker`, `superchart` (several charts) or `unknown`.
        title: Its title, if it has one.
        elements: Its series, bars, wedges or boxes; for a superchart its charts.
        x_label: The name of the x axis, and so on, for charts with two axes.
        raw: The whole chart, as JSON.
    """

    type: str
    title: Optional[str]
    elements: Tuple[Any, ...] = ()
    x_label: Optional[str] = None
    y_label: Optional[str] = None
    x_unit: Optional[str] = None
    y_unit: Optional[str] = None
    x_scale: Optional[str] = None
    y_scale: Optional[str] = None
    x_ticks: Tuple[Any, ...] = ()
    y_ticks: Tuple[Any, ...] = ()
    x_tick_labels: Tuple[str, ...] = ()
    y_tick_labels: Tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def to_dict(self) -> Mapping[str, Any]:
        """The whole chart, as JSON."""
        return self.raw


@dataclass(frozen=True)
class LineChart(Chart):
    """A line chart: `elements` are its lines."""

    type: Literal["line"]
    elements: Tuple[Points, ...] = ()


@dataclass(frozen=True)
class ScatterChart(Chart):
    """A scatter chart: `elements` are its series of points."""

    type: Literal["scatter"]
    elements: Tuple[Points, ...] = ()


@dataclass(frozen=True)
class BarChart(Chart):
    """A bar chart: `elements` are its bars."""

    type: Literal["bar"]
    elements: Tuple[Bar, ...] = ()


@dataclass(frozen=True)
class PieChart(Chart):
    """A pie chart: `elements` are its wedges. It has no axes."""

    type: Literal["pie"]
    elements: Tuple[Slice, ...] = ()


@dataclass(frozen=True)
class BoxAndWhiskerChart(Chart):
    """A box-and-whisker chart: `elements` are its boxes."""

    type: Literal["box_and_whisker"]
    elements: Tuple[Box, ...] = ()


@dataclass(frozen=True)
class SuperChart(Chart):
    """Several charts of one figure: `elements`. It has no axes of its own."""

    type: Literal["superchart"]
    elements: Tuple[AnyChart, ...] = ()


@dataclass(frozen=True)
class UnknownChart(Chart):
    """A chart of another kind. It has no `elements`; `raw` has everything that is known."""

    type: Literal["unknown"]
    elements: Tuple[()] = ()


AnyChart = Union[LineChart, ScatterChart, BarChart, PieChart, BoxAndWhiskerChart, SuperChart, UnknownChart]
"""A chart of any kind: type checkers narrow it by `isinstance` and by `type`."""


def _points(value: Mapping[str, Any]) -> Points:
    pairs = value.get("points") or []
    return Points(_text(value, "label"), tuple((pair[0], pair[1]) for pair in pairs if isinstance(pair, list) and len(pair) == 2))


def _bar(value: Mapping[str, Any]) -> Bar:
    return Bar(_text(value, "label"), value.get("value"), _text(value, "group"))


def _slice(value: Mapping[str, Any]) -> Slice:
    return Slice(_text(value, "label"), read.number(value, "angle"), read.number(value, "radius"))


def _box(value: Mapping[str, Any]) -> Box:
    return Box(
        label=_text(value, "label"),
        min=read.number(value, "min"),
        first_quartile=read.number(value, "first_quartile"),
        median=read.number(value, "median"),
        third_quartile=read.number(value, "third_quartile"),
        max=read.number(value, "max"),
        outliers=tuple(value.get("outliers") or ()),
    )


_ELEMENTS: Mapping[str, Callable[[Mapping[str, Any]], Union[Points, Bar, Slice, Box]]] = {
    "line": _points,
    "scatter": _points,
    "bar": _bar,
    "pie": _slice,
    "box_and_whisker": _box,
}

_KINDS: Mapping[str, Type[Chart]] = {
    "line": LineChart,
    "scatter": ScatterChart,
    "bar": BarChart,
    "pie": PieChart,
    "box_and_whisker": BoxAndWhiskerChart,
    "superchart": SuperChart,
    "unknown": UnknownChart,
}


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    return "" if found is None else str(found)


def _optional(value: Mapping[str, Any], key: str) -> Optional[str]:
    found = value.get(key)
    return None if found is None else str(found)


def chart_from_json(value: Any, depth: int = 0) -> AnyChart:
    """Parses a chart."""
    value = read.mapping(value, "the chart")
    kind = read.text(value, "type")
    kind = kind if kind in _KINDS else "unknown"
    said = read.items(value, "elements") if value.get("elements") else []
    elements: Tuple[Any, ...] = ()
    if kind == "superchart" and depth < MAX_DEPTH:
        elements = tuple(chart_from_json(one, depth + 1) for one in said)
    elif kind in _ELEMENTS:
        elements = tuple(_ELEMENTS[kind](one) for one in said)
    texts: Dict[str, Optional[str]] = {
        name: _optional(value, name) for name in ("title", "x_label", "y_label", "x_unit", "y_unit", "x_scale", "y_scale")
    }
    chart = _KINDS[kind](
        type=kind,
        elements=elements,
        **texts,
        x_ticks=tuple(value.get("x_ticks") or ()),
        y_ticks=tuple(value.get("y_ticks") or ()),
        x_tick_labels=tuple(str(one) for one in value.get("x_tick_labels") or ()),
        y_tick_labels=tuple(str(one) for one in value.get("y_tick_labels") or ()),
        raw=value,
    )
    return cast(AnyChart, chart)
