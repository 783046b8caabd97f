"""Charts as data, from matplotlib figures."""

import datetime
import functools
import inspect
import math
import re

MAX_POINTS = 10_000
MAX_ELEMENTS = 1_000
MAX_AXES = 64
_MATH = re.compile(r"\$\\mathdefault\{(.*)\}\$")
_UNIT = re.compile(r"[\(\[]([^\(\)\[\]]+)[\)\]]\s*$")


def watch(axes_class):
    """Records the statistics of box plots, which the drawing itself does not keep."""
    original = axes_class.bxp

    @functools.wraps(original)
    def bxp(self, bxpstats, *args, **kwargs):
        made = original(self, bxpstats, *args, **kwargs)
        positions = args[0] if args else kwargs.get("positions")
        upright = kwargs.get("orientation", "vertical") == "vertical" and kwargs.get("vert") is not False
        kept = self.__dict__.setdefault("_belljar_boxes", [])
        places = list(range(1, len(bxpstats) + 1)) if positions is None else list(positions)
        label = kwargs.get("label")
        # The line of the median tells whether the box is still there.
        lines = made["medians"]
        kept.extend((line, dict(stats), place, upright, label) for line, stats, place in zip(lines, bxpstats, places))
        return made

    axes_class.bxp = bxp
    axes_class.boxplot = with_both_names(axes_class.boxplot)


def with_both_names(boxplot):
    """Lets `boxplot` take its labels by the name that matplotlib 3.11 has removed, and by that which 3.9 has added."""
    parameters = inspect.signature(boxplot).parameters
    name, other = ("tick_labels", "labels") if "tick_labels" in parameters else ("labels", "tick_labels")

    @functools.wraps(boxplot)
    def either(*args, **kwargs):
        if other in kwargs:
            kwargs[name] = kwargs.pop(other)
        return boxplot(*args, **kwargs)

    return either


class _Limiter:
    """Limits numbers of values, and notes the first omission."""

    def __init__(self, notes):
        self._notes = notes
        self._is_noted = False

    def first(self, values, limit, what):
        if len(values) > limit and not self._is_noted:
            self._is_noted = True
            self._notes.append(f"application/vnd.belljar.chart.v1+json: the first {limit:,} of {len(values):,} {what}")
        return values[:limit]


def of_figure(figure, notes):
    """Returns the figure's chart; several axes give a superchart; None if it has no axes."""
    limiter = _Limiter(notes)
    charts = [_of_axes(axes, limiter) for axes in figure.axes[:MAX_AXES] if _counts(axes)]
    if not charts:
        return None
    if len(charts) == 1:
        chart = charts[0]
        if not chart["title"]:
            chart["title"] = _main_title(figure)
        return chart
    return {"type": "superchart", "title": _main_title(figure), "elements": charts}


def _main_title(figure):
    title = getattr(figure, "_suptitle", None)
    return (title.get_text() or None) if title is not None else None


def _counts(axes):
    if not axes.get_visible() or axes.get_label() == "<colorbar>" or hasattr(axes, "_colorbar"):
        return False
    return bool(axes.has_data() or (axes.axison and axes.get_title()) or _boxes(axes))


def _boxes(axes):
    lines = {id(line) for line in axes.lines}
    return [box for line, *box in axes.__dict__.get("_belljar_boxes", ()) if id(line) in lines]


def _of_axes(axes, limiter):
    title = next((text for text in (axes.get_title(loc=place) for place in ("center", "left", "right")) if text), None)
    if not hasattr(axes, "get_xlabel") or getattr(axes, "name", "rectilinear") not in ("rectilinear", "polar"):
        return {"type": "unknown", "title": title, "elements": []}
    wedges = [patch for patch in axes.patches if type(patch).__name__ == "Wedge"]
    if wedges:
        return {"type": "pie", "title": title, "elements": [_wedge(one) for one in wedges[:MAX_ELEMENTS]]}
    chart = {"type": "unknown", "title": title, "elements": []}
    chart.update(_labels(axes))
    boxes = _boxes(axes)
    if boxes:
        chart["type"] = "box_and_whisker"
        chart["elements"] = [_box(axes, *one) for one in limiter.first(boxes, MAX_ELEMENTS, "boxes")]
        return chart
    bars = _bars(axes, limiter)
    if bars:
        chart["type"] = "bar"
        chart["elements"] = bars
        return chart
    scatters = _scatters(axes, limiter)
    lines = [] if scatters else _lines(axes, limiter)
    if scatters or lines:
        chart["type"] = "scatter" if scatters else "line"
        chart.update(_scales(axes, (scatters or lines)[0]["points"]))
        chart["elements"] = scatters or lines
    return chart


def _labels(axes):
    found = {}
    for side in "xy":
        label = getattr(axes, f"get_{side}label")() or None
        unit = _UNIT.search(label) if label else None
        found[f"{side}_label"] = label
        found[f"{side}_unit"] = unit[1].strip() if unit else None
    return found


def _number(value):
    value = float(value)
    return value if math.isfinite(value) else None


def _rounded(value):
    """Returns a computed number without the noise of its last digits."""
    return _number(f"{float(value):.12g}")


def _text(label):
    """Returns the text of a tick's label: what is drawn, not its markup."""
    text = label.get_text()
    found = _MATH.fullmatch(text)
    if not found:
        return text
    text = re.sub(r"\\d?frac\{(.*?)\}\{(.*?)\}", r"\1/\2", found[1])
    return re.sub(r"\^\{(.*?)\}", r"^\1", text).replace("\\times", "×")


def _plain(value):
    """Converts a coordinate to JSON: times as ISO 8601."""
    if hasattr(value, "to_timestamp"):
        value = value.to_timestamp()
    if isinstance(value, (datetime.datetime, datetime.date)):
        return None if value != value else value.isoformat()
    if isinstance(value, str):
        return str(value)
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind == "M":
        text = str(value)
        return None if text == "NaT" else text
    if kind == "m":
        return _number(value / value.dtype.type(1, "s"))
    try:
        return _number(value)
    except (TypeError, ValueError):
        return str(value)[:1000]


def _converter(axis):
    getter = getattr(axis, "get_converter", None)
    return getter() if getter is not None else axis.converter


def _is_time(axis):
    name = type(_converter(axis)).__name__
    if "Date" in name or "Period" in name:
        return True
    return "Date" in type(axis.get_major_formatter()).__name__


def _is_category(axis):
    return type(_converter(axis)).__name__ == "StrCategoryConverter"


def _from_axis(axis, values):
    """Converts numbers of an axis to the values that they represent."""
    if _is_category(axis):
        names = {place: name for name, place in axis.units._mapping.items()}
        return [names.get(round(float(value)), _plain(value)) if value == value else None for value in values]
    name = type(_converter(axis)).__name__
    if "Period" in name or type(axis.get_major_formatter()).__name__ == "TimeSeries_DateFormatter":
        import pandas

        frequency = getattr(axis, "freq", None) or getattr(axis.axes, "freq", None)
        if frequency is not None:
            return [_plain(pandas.Period(ordinal=round(float(value)), freq=frequency)) for value in values]
    if _is_time(axis):
        from matplotlib.dates import num2date

        return [num2date(value).replace(tzinfo=None).isoformat() if math.isfinite(value) else None for value in values]
    return [_plain(value) for value in values]


def _scale(axis, values):
    if _is_time(axis):
        return "datetime"
    if _is_category(axis) or any(isinstance(value, str) for value in values[:20]):
        return "categorical"
    return axis.get_scale()


def _scales(axes, points):
    found = {}
    for at, side in enumerate("xy"):
        axis = getattr(axes, f"{side}axis")
        low, high = sorted(axis.get_view_interval())
        ticks = [
            (place, label) for place, label in zip(axis.get_majorticklocs(), axis.get_majorticklabels()) if low <= place <= high
        ]
        ticks = ticks[:MAX_ELEMENTS]
        found[f"{side}_ticks"] = (
            [_rounded(place) for place, _ in ticks] if not _is_time(axis) else _from_axis(axis, [p for p, _ in ticks])
        )
        found[f"{side}_tick_labels"] = [_text(label) for _, label in ticks]
        found[f"{side}_scale"] = _scale(axis, [point[at] for point in points])
    return found


def _label(artist):
    label = artist.get_label()
    label = "" if label is None else str(label)
    return "" if label.startswith("_") else label


def _legend(axes):
    """Returns names in the legend by colour, for artists without their own."""
    legend = axes.get_legend()
    if legend is None:
        return {}
    handles = getattr(legend, "legend_handles", None) or getattr(legend, "legendHandles", None) or []
    found = {}
    for handle, text in zip(handles, legend.get_texts()):
        colour = _colour(handle)
        if colour is not None:
            found.setdefault(colour, text.get_text())
    return found


def _colour(artist):
    from matplotlib.colors import to_rgb

    for name in ("get_color", "get_facecolor"):
        if hasattr(artist, name):
            try:
                return tuple(round(part, 3) for part in to_rgb(getattr(artist, name)()))
            except (TypeError, ValueError):
                return None
    return None


def _lines(axes, limiter):
    legend = _legend(axes)
    extra = set()
    for container in axes.containers:
        if type(container).__name__ == "ErrorbarContainer":
            extra.update(id(cap) for cap in container.lines[1] or ())
        elif type(container).__name__ == "StemContainer":
            extra.add(id(container.baseline))
    found = []
    for line in axes.lines:
        # Lines across the whole axes, such as those of axhline, contain no data.
        if id(line) in extra or line.get_transform() != axes.transData or not line.get_visible():
            continue
        x, y = list(line.get_xdata(orig=True)), list(line.get_ydata(orig=True))
        if not x:
            continue
        x, y = limiter.first(x, MAX_POINTS, "points of a line"), y[:MAX_POINTS]
        # The line keeps values that the axis labels otherwise as numbers.
        if _is_time(axes.xaxis) and isinstance(_plain(x[0]), float):
            x = _from_axis(axes.xaxis, x)
        if _is_time(axes.yaxis) and isinstance(_plain(y[0]), float):
            y = _from_axis(axes.yaxis, y)
        found.append(
            {
                "label": _label(line) or legend.get(_colour(line)) or str(line.get_label()),
                "points": [[_plain(a), _plain(b)] for a, b in zip(x, y)],
            }
        )
    names = [one["label"] for one in found]
    for one in found:
        if one["label"].startswith("_"):
            one["label"] = "" if len(names) == 1 else f"Line {found.index(one) + 1}"
    return limiter.first(found, MAX_ELEMENTS, "lines")


def _coloured(collection, points, legend):
    """Returns the points by their names in the legend, if each has its own colour in it."""
    faces = collection.get_facecolors()
    if not legend or len(faces) < len(points) or len(points) < 2:
        return None
    groups = {}
    for point, face in zip(points, faces):
        name = legend.get(tuple(round(float(part), 3) for part in face[:3]))
        if name is None:
            return None
        groups.setdefault(name, []).append(point)
    return [{"label": name, "points": group} for name, group in groups.items()]


def _scatters(axes, limiter):
    found = []
    legend = _legend(axes)
    for collection in axes.collections:
        if type(collection).__name__ != "PathCollection" or not collection.get_visible():
            continue
        offsets = collection.get_offsets()
        # Filled contours are such collections as well, with paths in place.
        if len(offsets) == 0 or collection.get_offset_transform() != axes.transData:
            continue
        offsets = limiter.first(offsets, MAX_POINTS, "points of a scatter plot")
        # Points that are not drawn are masked.
        columns = offsets.filled(math.nan) if hasattr(offsets, "filled") else offsets
        x = _from_axis(axes.xaxis, list(columns[:, 0]))
        y = _from_axis(axes.yaxis, list(columns[:, 1]))
        points = [[a, b] for a, b in zip(x, y)]
        found.extend(_coloured(collection, points, legend) or [{"label": _label(collection), "points": points}])
    return limiter.first(found, MAX_ELEMENTS, "groups of points")


def _named(axis):
    """Returns labels of the axis by position, if it has names instead of numbers."""
    formatter = type(axis.get_major_formatter()).__name__
    if formatter not in ("FixedFormatter", "StrCategoryFormatter", "FuncFormatter", "CategoricalFormatter"):
        return None
    pairs = [(float(place), _text(label)) for place, label in zip(axis.get_majorticklocs(), axis.get_majorticklabels())]
    return [pair for pair in pairs if pair[1]] or None


def _name_at(axis, named, place, reach):
    if named:
        nearest = min(named, key=lambda pair: abs(pair[0] - place))
        if abs(nearest[0] - place) <= reach:
            return nearest[1]
    value = _from_axis(axis, [place])[0]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bars(axes, limiter):
    found = []
    legend = _legend(axes)
    groups = [one for one in axes.containers if type(one).__name__ == "BarContainer"]
    for group in groups:
        bars = [patch for patch in group.patches if type(patch).__name__ == "Rectangle"]
        if not bars:
            continue
        upright = _upright(group, bars)
        axis = axes.xaxis if upright else axes.yaxis
        named = _named(axis)
        for bar in limiter.first(bars, MAX_ELEMENTS, "bars of a group"):
            start, width = (bar.get_x(), bar.get_width()) if upright else (bar.get_y(), bar.get_height())
            value = bar.get_height() if upright else bar.get_width()
            if not math.isfinite(start + width) or not math.isfinite(value):
                continue
            label = _name_at(axis, named, start + width / 2, 0.5)
            found.append({"label": label, "group": _label(group) or legend.get(_colour(bar), ""), "value": _number(value)})
    return limiter.first(found, MAX_POINTS, "bars")


def _upright(group, bars):
    orientation = getattr(group, "orientation", None)
    if orientation is not None:
        return orientation == "vertical"
    # Bars of one group are equally thick; if they are equally long as well, they are vertical.
    return len({round(bar.get_width(), 9) for bar in bars}) == 1


def _wedge(wedge):
    # Matplotlib computes the angles from numbers of 32 bits.
    return {"label": _label(wedge), "angle": _number(round(wedge.theta2 - wedge.theta1, 4)), "radius": _number(wedge.r)}


def _box(axes, stats, place, upright, label):
    axis = axes.xaxis if upright else axes.yaxis
    try:
        place = float(place)
        name = _name_at(axis, _named(axis), place, 0.5)
    except (TypeError, ValueError):
        name = str(place)
    if stats.get("label") not in (None, "") and not _named(axis):
        name = str(stats["label"])
    return {
        "label": name,
        "min": _number(stats["whislo"]),
        "first_quartile": _number(stats["q1"]),
        "median": _number(stats["med"]),
        "third_quartile": _number(stats["q3"]),
        "max": _number(stats["whishi"]),
        "outliers": [_plain(one) for one in list(stats.get("fliers", ()))[:MAX_POINTS]],
    }
