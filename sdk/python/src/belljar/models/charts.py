"""Data of charts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Tuple, Union

from .. import _json as read


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
    """A chart.

    Attributes:
        type: `line`, `scatter`, `bar`, `pie`, `box_and_whisker`, `superchart` (several charts) or `unknown`.
        title: Its title, if it has one.
        elements: Its series, bars, wedges or boxes; for a superchart its charts.
        x_label: The name of the x axis, and so on, for charts with two axes.
        raw: The whole chart, as JSON.
    """

    type: str
    title: Optional[str]
    elements: Tuple[Union[Points, Bar, Slice, Box, Chart], ...] = ()
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


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    return "" if found is None else str(found)


def _optional(value: Mapping[str, Any], key: str) -> Optional[str]:
    found = value.get(key)
    return None if found is None else str(found)


def chart_from_json(value: Any, depth: int = 0) -> Chart:
    """Parses a chart."""
    value = read.mapping(value, "the chart")
    kind = read.text(value, "type")
    elements: Tuple[Any, ...] = ()
    said = read.items(value, "elements") if value.get("elements") else []
    if kind == "superchart" and depth < 4:
        elements = tuple(chart_from_json(one, depth + 1) for one in said)
    elif kind in _ELEMENTS:
        elements = tuple(_ELEMENTS[kind](one) for one in said)
    return Chart(
        type=kind,
        title=_optional(value, "title"),
        elements=elements,
        x_label=_optional(value, "x_label"),
        y_label=_optional(value, "y_label"),
        x_unit=_optional(value, "x_unit"),
        y_unit=_optional(value, "y_unit"),
        x_scale=_optional(value, "x_scale"),
        y_scale=_optional(value, "y_scale"),
        x_ticks=tuple(value.get("x_ticks") or ()),
        y_ticks=tuple(value.get("y_ticks") or ()),
        x_tick_labels=tuple(str(one) for one in value.get("x_tick_labels") or ()),
        y_tick_labels=tuple(str(one) for one in value.get("y_tick_labels") or ()),
        raw=value,
    )
