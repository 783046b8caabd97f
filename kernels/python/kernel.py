"""Belljar's Python kernel, in one file. Made by assemble.py from src; change it there."""

import sys

SOURCES = {}

SOURCES['backend'] = r'''"""How matplotlib shows figures here: as results."""

import sys

from _belljar import extras
from matplotlib import _pylab_helpers
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg


def _display(figure):
    from IPython.display import display

    if figure.axes or figure.lines or figure.texts or figure.images or figure.patches or getattr(figure, "subfigs", None):
        display(figure, metadata={})


class FigureManager(FigureManagerBase):
    """A figure without a window."""

    def show(self):
        """Shows this figure now."""
        _display(self.canvas.figure)

    @classmethod
    def pyplot_show(cls, *, block=None):
        """`plt.show()`: shows all open figures now, and closes them."""
        show()


class FigureCanvas(FigureCanvasAgg):
    """Where figures are drawn."""

    manager_class = FigureManager


def new_figure_manager_given_figure(num, figure):
    """A manager for a figure."""
    return FigureManager(FigureCanvas(figure), num)


def new_figure_manager(num, *args, FigureClass=None, **kwargs):
    """A new figure, and its manager."""
    if FigureClass is None:
        from matplotlib.figure import Figure as FigureClass
    return new_figure_manager_given_figure(num, FigureClass(*args, **kwargs))


def _closes():
    shell = extras._shell()
    settings = [one for one in shell.configurables if type(one).__name__ == "InlineBackend"]
    return not settings or settings[0].close_figures


def show(*args, **kwargs):
    """Shows all open figures now, and closes them."""
    try:
        for manager in _pylab_helpers.Gcf.get_all_fig_managers():
            _display(manager.canvas.figure)
    finally:
        if _closes():
            _close()


def _close():
    _pylab_helpers.Gcf.destroy_all()


def draw_if_interactive():
    """Figures are drawn when they are shown."""


def finish(show_them):
    """At the end of an execution: shows what is still open and was not shown, and closes all."""
    matplotlib = sys.modules["matplotlib"]
    if matplotlib.rcParams._get("backend") != extras.BACKEND if hasattr(matplotlib.rcParams, "_get") else False:
        return
    managers = _pylab_helpers.Gcf.get_all_fig_managers()
    if not managers:
        return
    try:
        if show_them:
            seen = extras.shown()
            for manager in managers:
                figure = manager.canvas.figure
                if seen.get(id(figure)) is not figure or figure.stale:
                    _display(figure)
    finally:
        if _closes():
            _close()
'''

SOURCES['bundle'] = r'''"""Results within their bounds: what is sent of each form, and what is said of the rest."""

import base64
import binascii
import json
import math

MAX_VALUE = 8 * 1024 * 1024
MAX_RESULTS = 1000
MAX_TOTAL = 24 * 1024 * 1024
# Of the total, what only the last expression's value may use.
RESERVED = 1024 * 1024
MAX_METADATA = 64 * 1024
MAX_FORMS = 32
MAX_CUT = 16
_SHORTENED = ("text/plain", "text/markdown")


def size_text(count):
    """A number of bytes as people read it."""
    if count >= 1024 * 1024:
        return f"{count / (1024 * 1024):.1f} MiB"
    return f"{count / 1024:.0f} KiB" if count >= 1024 else f"{count} bytes"


def plain(text):
    """The text without lone surrogates, which no UTF-8 has."""
    text = str.__str__(text) if isinstance(text, str) else str(text)
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shorten(text, limit):
    """Head and tail of a text, so that it has at most `limit` bytes, and whether anything is missing."""
    if len(text) * 4 <= limit:
        return text, False
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return text, False
    note = f"\n… {size_text(len(data) - limit)} left out …\n"
    room = max(0, limit - len(note.encode("utf-8")) - 8)
    head = data[: room * 2 // 3].decode("utf-8", "ignore")
    tail = data[len(data) - room // 3 :].decode("utf-8", "ignore")
    return head + note + tail, True


class TooLarge(Exception):
    """A form that does not go."""


def is_json(mime):
    """Whether the form's value is JSON."""
    return mime == "application/json" or mime.endswith("+json")


def is_text(mime):
    """Whether the form's value is a string as it is."""
    return mime.startswith("text/") or mime in ("application/javascript", "image/svg+xml")


def clean_json(value, depth=0, budget=None):
    """The value as JSON has it: no NaN, no other types; or an error."""
    budget = [MAX_VALUE] if budget is None else budget
    budget[0] -= 2
    if budget[0] < 0:
        raise TooLarge("more than the 8 MiB of one form")
    if depth > 100:
        raise TooLarge("nested more than 100 levels deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        budget[0] -= len(value)
        return plain(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        if value.bit_length() > 4096:
            raise TooLarge("a whole number in it is too large")
        return int(value)
    if isinstance(value, (list, tuple)):
        return [clean_json(item, depth + 1, budget) for item in value]
    if isinstance(value, dict):
        return {plain(key): clean_json(item, depth + 1, budget) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return clean_json(value.tolist(), depth + 1, budget)
    raise TooLarge(f"not JSON: it holds a {type(value).__name__}")


def _value(mime, value, limit):
    """The value as it is sent, what it counts, and whether it was shortened."""
    if is_json(mime):
        value = clean_json(value)
        size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8"))
        if size > limit:
            raise TooLarge(f"{size_text(size)} are more than the {size_text(limit)} of one form")
        return value, size, False
    if is_text(mime):
        if isinstance(value, (bytes, bytearray)):
            value = bytes(value).decode("utf-8", "backslashreplace")
        if not isinstance(value, str):
            raise TooLarge(f"text is needed, and it is a {type(value).__name__}")
        short = False
        if mime in _SHORTENED:
            value, short = shorten(value, limit)
        value = plain(value)
        size = len(json.dumps(value, ensure_ascii=False).encode("utf-8"))
        if size > limit and mime in _SHORTENED:
            # What JSON escapes is longer than it looks.
            value, short = shorten(value, limit // 6)
            size = len(json.dumps(value, ensure_ascii=False).encode("utf-8"))
        if size > limit:
            raise TooLarge(f"{size_text(size)} are more than the {size_text(limit)} of one form")
        return value, size, short
    if isinstance(value, str):
        value = _binary(mime, value)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TooLarge(f"bytes are needed, and it is a {type(value).__name__}")
    size = (memoryview(value).nbytes + 2) // 3 * 4
    if size > limit:
        raise TooLarge(f"{size_text(size)} are more than the {size_text(limit)} of one form")
    return base64.b64encode(bytes(value)).decode("ascii"), size, False


def _binary(mime, text):
    if not mime.startswith(("image/", "audio/", "video/", "font/")) and mime not in (
        "application/pdf",
        "application/octet-stream",
    ):
        return plain(text).encode("utf-8")
    if len(text) > 2 * MAX_VALUE:
        raise TooLarge(f"{size_text(len(text))} are more than the 8 MiB of one form")
    try:
        return base64.b64decode("".join(text.split()).encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise TooLarge("base64 is needed, and it is not") from None


class Budget:
    """What the results of one execution may still use."""

    def __init__(self):
        """Nothing is used yet."""
        self.count = 0
        self.used = 0

    def fit(self, data, metadata, main):
        """Forms, metadata and notes as they are sent; nothing when no more results are sent at all."""
        self.count += 1
        if self.count > MAX_RESULTS:
            return None
        cut = []
        sent = {}
        # Text first: it is what remains when there is no room.
        items = sorted(data.items(), key=lambda item: item[0] != "text/plain") if isinstance(data, dict) else []
        for mime, value in items:
            if value is None:
                continue
            if (
                not isinstance(mime, str)
                or not 3 <= len(mime) <= 200
                or "/" not in mime
                or not mime.isprintable()
                or not mime.isascii()
            ):
                cut.append("a form was left out: its name is not a MIME type")
                continue
            if len(sent) >= MAX_FORMS:
                cut.append(f"{mime}: more than {MAX_FORMS} forms of one result")
                break
            mime = str(mime)
            room = MAX_TOTAL - self.used - (0 if main else RESERVED)
            if room <= 1024:
                cut.append(f"{mime}: the results of this execution are more than 24 MiB")
                continue
            try:
                value, size, short = _value(mime, value, min(MAX_VALUE, room))
            except (TooLarge, RecursionError, MemoryError) as error:
                text = "nested too deeply" if isinstance(error, RecursionError) else str(error) or "not enough memory"
                if room < MAX_VALUE and "of one form" in text:
                    text = "the results of this execution are more than 24 MiB"
                cut.append(f"{mime}: {text}")
                continue
            except Exception as error:
                cut.append(f"{mime}: it could not be read ({type(error).__name__})")
                continue
            if short:
                cut.append(f"{mime}: shortened to {size_text(size)}")
            self.used += size
            sent[mime] = value
        return sent, _metadata(metadata, sent, cut), [plain(note)[:400] for note in cut[:MAX_CUT]]


def _metadata(metadata, sent, cut):
    if not metadata or not isinstance(metadata, dict):
        return {}
    try:
        clean = clean_json({key: value for key, value in metadata.items() if value})
        if len(json.dumps(clean)) > MAX_METADATA:
            raise TooLarge("more than 64 KiB")
    except Exception as error:
        cut.append(f"metadata: {error}" if isinstance(error, TooLarge) else "metadata: it could not be read")
        return {}
    return {key: value for key, value in clean.items() if "/" not in key or key in sent}
'''

SOURCES['charts'] = r'''"""Charts as data: what a matplotlib figure shows."""

import datetime
import functools
import math
import re

MAX_POINTS = 10_000
MAX_ELEMENTS = 1_000
MAX_AXES = 64
_UNIT = re.compile(r"[\(\[]([^\(\)\[\]]+)[\)\]]\s*$")


def watch(axes_class):
    """Keeps the numbers of box plots, which the drawing itself no longer has."""
    original = axes_class.bxp

    @functools.wraps(original)
    def bxp(self, bxpstats, *args, **kwargs):
        made = original(self, bxpstats, *args, **kwargs)
        positions = args[0] if args else kwargs.get("positions")
        upright = kwargs.get("orientation", "vertical") == "vertical" and kwargs.get("vert") is not False
        kept = self.__dict__.setdefault("_belljar_boxes", [])
        places = list(range(1, len(bxpstats) + 1)) if positions is None else list(positions)
        label = kwargs.get("label")
        kept.extend((dict(stats), place, upright, label) for stats, place in zip(bxpstats, places))
        return made

    axes_class.bxp = bxp


class _Notes:
    """What was shortened, said once."""

    def __init__(self, notes):
        self._notes = notes
        self._said = False

    def first(self, values, limit, what):
        if len(values) > limit and not self._said:
            self._said = True
            self._notes.append(f"application/vnd.belljar.chart.v1+json: the first {limit:,} of {len(values):,} {what}")
        return values[:limit]


def of_figure(figure, notes):
    """The figure's chart; several axes are a superchart; nothing when it has no axes."""
    said = _Notes(notes)
    charts = [_of_axes(axes, said) for axes in figure.axes[:MAX_AXES] if _counts(axes)]
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
    return bool(axes.has_data() or (axes.axison and axes.get_title()) or axes.__dict__.get("_belljar_boxes"))


def _of_axes(axes, said):
    title = next((text for text in (axes.get_title(loc=place) for place in ("center", "left", "right")) if text), None)
    if not hasattr(axes, "get_xlabel") or getattr(axes, "name", "rectilinear") not in ("rectilinear", "polar"):
        return {"type": "unknown", "title": title, "elements": []}
    wedges = [patch for patch in axes.patches if type(patch).__name__ == "Wedge"]
    if wedges:
        return {"type": "pie", "title": title, "elements": [_wedge(one) for one in wedges[:MAX_ELEMENTS]]}
    chart = {"type": "unknown", "title": title, "elements": []}
    chart.update(_labels(axes))
    boxes = axes.__dict__.get("_belljar_boxes")
    if boxes:
        chart["type"] = "box_and_whisker"
        chart["elements"] = [_box(axes, *one) for one in said.first(boxes, MAX_ELEMENTS, "boxes")]
        return chart
    bars = _bars(axes, said)
    if bars:
        chart["type"] = "bar"
        chart["elements"] = bars
        return chart
    scatters = _scatters(axes, said)
    lines = [] if scatters else _lines(axes, said)
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


def _plain(value):
    """A coordinate as JSON has it: times as ISO 8601."""
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
    """Numbers of an axis as what they stand for."""
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
            [_number(place) for place, _ in ticks] if not _is_time(axis) else _from_axis(axis, [p for p, _ in ticks])
        )
        found[f"{side}_tick_labels"] = [label.get_text() for _, label in ticks]
        found[f"{side}_scale"] = _scale(axis, [point[at] for point in points])
    return found


def _label(artist):
    label = artist.get_label()
    label = "" if label is None else str(label)
    return "" if label.startswith("_") else label


def _legend(axes):
    """Names in the legend by colour, for artists that have none of their own."""
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


def _lines(axes, said):
    legend = _legend(axes)
    extra = set()
    for container in axes.containers:
        if type(container).__name__ == "ErrorbarContainer":
            extra.update(id(cap) for cap in container.lines[1] or ())
        elif type(container).__name__ == "StemContainer":
            extra.add(id(container.baseline))
    found = []
    for line in axes.lines:
        # Lines across the whole axes, such as axhline's, show no data.
        if id(line) in extra or line.get_transform() != axes.transData or not line.get_visible():
            continue
        x, y = list(line.get_xdata(orig=True)), list(line.get_ydata(orig=True))
        if not x:
            continue
        x, y = said.first(x, MAX_POINTS, "points of a line"), y[:MAX_POINTS]
        # What the axis calls by another name is kept as a number by the line.
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
    return said.first(found, MAX_ELEMENTS, "lines")


def _coloured(collection, points, legend):
    """The points by their names in the legend, where each has a colour of its own that is there."""
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


def _scatters(axes, said):
    found = []
    legend = _legend(axes)
    for collection in axes.collections:
        if type(collection).__name__ != "PathCollection" or not collection.get_visible():
            continue
        offsets = collection.get_offsets()
        # Filled contours are such collections as well, whose paths stand where they are.
        if len(offsets) == 0 or collection.get_offset_transform() != axes.transData:
            continue
        offsets = said.first(offsets, MAX_POINTS, "points of a scatter plot")
        # Where nothing is drawn for a point, it is masked.
        columns = offsets.filled(math.nan) if hasattr(offsets, "filled") else offsets
        x = _from_axis(axes.xaxis, list(columns[:, 0]))
        y = _from_axis(axes.yaxis, list(columns[:, 1]))
        points = [[a, b] for a, b in zip(x, y)]
        found.extend(_coloured(collection, points, legend) or [{"label": _label(collection), "points": points}])
    return said.first(found, MAX_ELEMENTS, "groups of points")


def _named(axis):
    """Labels of the axis by place, where it has names instead of numbers."""
    formatter = type(axis.get_major_formatter()).__name__
    if formatter not in ("FixedFormatter", "StrCategoryFormatter", "FuncFormatter", "CategoricalFormatter"):
        return None
    pairs = [(float(place), label.get_text()) for place, label in zip(axis.get_majorticklocs(), axis.get_majorticklabels())]
    return [pair for pair in pairs if pair[1]] or None


def _name_at(axis, named, place, reach):
    if named:
        nearest = min(named, key=lambda pair: abs(pair[0] - place))
        if abs(nearest[0] - place) <= reach:
            return nearest[1]
    value = _from_axis(axis, [place])[0]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bars(axes, said):
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
        for bar in said.first(bars, MAX_ELEMENTS, "bars of a group"):
            start, width = (bar.get_x(), bar.get_width()) if upright else (bar.get_y(), bar.get_height())
            value = bar.get_height() if upright else bar.get_width()
            if not math.isfinite(start + width) or not math.isfinite(value):
                continue
            label = _name_at(axis, named, start + width / 2, 0.5)
            found.append({"label": label, "group": _label(group) or legend.get(_colour(bar), ""), "value": _number(value)})
    return said.first(found, MAX_POINTS, "bars")


def _upright(group, bars):
    orientation = getattr(group, "orientation", None)
    if orientation is not None:
        return orientation == "vertical"
    # Bars of one group are equally thick; where they are equally long as well, they stand.
    return len({round(bar.get_width(), 9) for bar in bars}) == 1


def _wedge(wedge):
    return {"label": _label(wedge), "angle": _number(wedge.theta2 - wedge.theta1), "radius": _number(wedge.r)}


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
'''

SOURCES['commands'] = r'''"""`!command`: a shell beside the code, which an interrupt reaches as well."""

import os
import signal
import subprocess
import sys


def _start(command, **streams):
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    return subprocess.Popen([shell, "-c", command], stdin=subprocess.DEVNULL, process_group=0, **streams)


def _finish(process, step):
    """Does `step`; an interrupt goes to the command and all that it started in its group."""
    try:
        return step()
    except BaseException:
        _end(process)
        raise


def _end(process):
    for number, patience in ((signal.SIGINT, 2), (signal.SIGTERM, 1), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
        except OSError:
            pass
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            # Asked again: the next signal is stronger.
            continue


def run(command):
    """Runs it and says its exit status; negative is the signal that ended it."""
    inside = getattr(sys.stdout, "fileno", None)
    try:
        direct = inside is not None and inside() == 1
    except Exception:
        direct = False
    if direct:
        process = _start(command)
        return _finish(process, process.wait)
    # The code's output is being captured: the command's is as well.
    process = _start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def pump():
        for line in iter(process.stdout.readline, b""):
            sys.stdout.write(line.decode("utf-8", "backslashreplace"))
        return process.wait()

    with process.stdout:
        return _finish(process, pump)


def output(command):
    """Runs it and returns what it wrote, standard error too."""
    process = _start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with process.stdout:
        data = _finish(process, lambda: process.communicate()[0])
    return data.decode("utf-8", "backslashreplace")
'''

SOURCES['enter'] = r'''"""How a forked child becomes a process of a sandbox: into its groups and namespaces, and behind its walls.

The sandbox's user owns the sandbox's user namespace, so a child that has become that user may enter it (user_namespaces(7)),
and the namespaces that belong to it; for that the parent has CAP_SETUID and CAP_SETGID. What comes after that is what every
process of the sandbox goes through, in the same order.
"""

import ctypes
import errno
import os
import signal

_libc = ctypes.PyDLL(None, use_errno=True)

CLONE_INTO_CGROUP = 0x200000000
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_NO_NEW_PRIVS = 38
KEYCTL_JOIN_SESSION_KEYRING = 1
SECCOMP_SET_MODE_FILTER = 1
CAPABILITY_VERSION_3 = 0x20080522
# SECBIT_NOROOT, SECBIT_NO_SETUID_FIXUP, SECBIT_NO_CAP_AMBIENT_RAISE and their locks (capabilities(7)).
SECUREBITS = 0b11001111
MADV_COLLAPSE = 25
HUGE_PAGE = 2 << 20


class _CloneArguments(ctypes.Structure):
    """As clone(2) has it, up to the version with `cgroup`."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup".split())
    ]


class _Program(ctypes.Structure):
    """A `sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class Calls:
    """System calls that Python has no function for, by the numbers that the host gives."""

    def __init__(self, numbers):
        """Makes everything that a child needs, so that it allocates little."""
        self._numbers = numbers
        self._call = _libc.syscall
        self._call.restype = ctypes.c_long

    def call(self, name, *arguments):
        """One call; raises what the kernel says."""
        words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
        result = self._call(ctypes.c_long(self._numbers[name]), *words)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return result

    def clone_into(self, group):
        """A fork whose child begins in this control group. The child has one thread, and forks again before it runs anything."""
        arguments = _CloneArguments(flags=CLONE_INTO_CGROUP, exit_signal=signal.SIGCHLD, cgroup=group)
        return self.call("clone3", ctypes.byref(arguments), ctypes.sizeof(arguments))

    def clone(self):
        """A fork that Python knows nothing of: cheaper, for a child that does next to nothing before it forks or ends."""
        return self.call("clone", signal.SIGCHLD, 0, 0, 0, 0)

    def prctl(self, option, value):
        """One prctl(2)."""
        return self.call("prctl", option, value, 0, 0, 0)

    def set_filter(self, instructions):
        """Takes a filter of system calls, of which there is no way back."""
        text = ctypes.create_string_buffer(instructions, len(instructions))
        program = _Program(len(instructions) // 8, ctypes.addressof(text))
        self.call("seccomp", SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(program))

    def drop_capabilities(self):
        """None is left, and none comes back."""
        for capability in range(64):
            try:
                self.prctl(PR_CAPBSET_DROP, capability)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                break
        self.prctl(PR_SET_SECUREBITS, SECUREBITS)
        header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
        self.call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def use_huge_pages(calls):
    """Puts what has been allocated into huge pages, of which a fork copies fewer entries. A kernel that cannot, does not."""
    import gc

    for page in {id(thing) // HUGE_PAGE for thing in gc.get_objects()}:
        try:
            calls.call("madvise", page * HUGE_PAGE, HUGE_PAGE, MADV_COLLAPSE)
        except OSError:
            # It is not all of one kind.
            continue


def move_in(calls, order, fds):
    """Enters the sandbox. Only the process that belongs to it returns, as a child of the sandbox's first process."""
    import resource

    for group in fds["groups"]:
        os.write(group, b"0")
    if order["keyring"]:
        calls.call("keyctl", KEYCTL_JOIN_SESSION_KEYRING, 0)
    os.setgroups([])
    os.setresgid(order["gid"], order["gid"], order["gid"])
    os.setresuid(order["uid"], order["uid"], order["uid"])
    calls.call("setns", fds["target"], order["namespaces"])
    # The first child is in the namespace of processes, and its end makes the second one the first process's.
    child = calls.clone()
    if child:
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            pass
        os._exit(0)
    if os.fork():
        os._exit(0)
    os.setsid()
    for resource_number, value in order["rlimits"]:
        hard = resource.getrlimit(resource_number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_number, (value, value))
    if order["capabilities"]:
        calls.drop_capabilities()
    calls.prctl(PR_SET_NO_NEW_PRIVS, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate((null, fds["stdout"], fds["stderr"])):
        os.dup2(fd, number)
    control = fds["control"]
    os.closerange(3, control)
    os.closerange(control + 1, 4096)
    # Python itself ignores these two; the others were ignored on the way here.
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if order["filter"] is not None:
        calls.set_filter(order["filter"])
    # So that processes of the sandbox see it as each other; it was taken away with the change of ids.
    calls.prctl(PR_SET_DUMPABLE, 1)
    while os.getppid() != 1:
        os.sched_yield()


def settle(calls, frame, fds):
    """What the sandbox's first process does for all that it starts."""
    import resource

    for fd in fds:
        calls.call("landlock_restrict_self", fd, 0)
        os.close(fd)
    for resource_number, value in frame["rlimits"]:
        hard = resource.getrlimit(resource_number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_number, (value, value))
    os.umask(frame["umask"])
'''

SOURCES['errors'] = r'''"""Errors as the code's author reads them: the author's lines, and no frame of the kernel's."""

import os
import re
import traceback

from _belljar.bundle import plain, shorten

MAX_VALUE = 64 * 1024
MAX_TRACEBACK = 256 * 1024
# Of more frames than these, which only endless recursion has, the last ones are shown.
_MAX_FRAMES = 1200
_FRAME = re.compile(r'^(\s*(?:\| )*\s*)File "(Cell In\[\d+\])", line (\d+)(?:, in (?:<module>|<cell line: \d+>))?', re.M)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def _hidden_places():
    import IPython
    import traitlets

    return tuple(os.path.dirname(os.path.abspath(module.__file__)) + os.sep for module in (IPython, traitlets))


class Describer:
    """Says what an exception was."""

    def __init__(self):
        """Learns where the shell's own files are."""
        self._hidden = _hidden_places()

    def name(self, error):
        """The exception's type."""
        return plain(getattr(type(error), "__name__", "Exception"))[:200]

    def value(self, error):
        """The exception as text, whatever its own code makes of that."""
        try:
            return shorten(plain(str(error)), MAX_VALUE)[0]
        except Exception as other:
            return f"<its text could not be made: {type(other).__name__}>"

    def _is_hidden(self, frame):
        name = frame.filename
        return name.startswith(("<belljar ", "<decorator-gen", "<frozen runpy")) or name.startswith(self._hidden)

    def _trim(self, described, seen):
        """Takes the kernel's and the shell's frames away, and shortens what is deep."""
        if described is None or id(described) in seen or len(seen) > 50:
            return
        seen.add(id(described))
        frames = list(described.stack)
        first = next((at for at, frame in enumerate(frames) if frame.filename.startswith("Cell In[")), 0)
        # What `!` does is the kernel's, down to the last frame.
        last = next((at for at, frame in enumerate(frames) if frame.filename == "<belljar commands>"), len(frames))
        frames = [frame for frame in frames[first:last] if not self._is_hidden(frame)]
        described.stack[:] = frames
        self._trim(described.__cause__, seen)
        self._trim(described.__context__, seen)
        for inner in getattr(described, "exceptions", None) or ():
            self._trim(inner, seen)

    def traceback(self, error, tb=None):
        """The traceback as text, as Python writes it."""
        try:
            described = traceback.TracebackException(
                type(error), error, tb or error.__traceback__, compact=True, limit=-_MAX_FRAMES
            )
            self._trim(described, set())
            text = "".join(described.format())
        except Exception as other:
            return f"{self.name(error)}: {self.value(error)}\n(its traceback could not be made: {type(other).__name__})"
        text = _COLOUR.sub("", plain(text))
        text = _FRAME.sub(lambda found: f"{found[1]}{found[2]}, line {found[3]}", text)
        return shorten(text.rstrip("\n"), MAX_TRACEBACK)[0]

    def frame(self, error):
        """Name, value and traceback, as they are sent."""
        from IPython.core.error import UsageError

        name, value = self.name(error), self.value(error)
        if isinstance(error, UsageError):
            return {"name": name, "value": value, "traceback": f"{name}: {value}"}
        return {"name": name, "value": value, "traceback": self.traceback(error)}
'''

SOURCES['extras'] = r'''"""What is done for libraries that may be there: matplotlib, pandas, Pillow. Nothing is imported before the code imports it."""

import sys

CHART = "application/vnd.belljar.chart.v1+json"
TABLE = "application/vnd.belljar.table.v1+json"
BACKEND = "module://_belljar.backend"

# Figures of this execution that were shown already, by id.
_shown = {}
_formats = {"formats": None, "kwargs": {}, "applied": False}


def _loaded(module, name):
    found = sys.modules.get(module)
    value = getattr(found, name, None) if found is not None else None
    return value if isinstance(value, type) else None


def _is(obj, module, name):
    kind = _loaded(module, name)
    return kind is not None and isinstance(obj, kind)


def add(obj, data, notes):
    """Adds the chart of a figure, or the table of a data frame, to its forms."""
    if _is(obj, "matplotlib.figure", "Figure"):
        from _belljar import charts

        _add(data, notes, CHART, charts.of_figure, obj)
        # What changes in it from here on makes it stale again.
        _shown[id(obj)] = obj
        obj.stale = False
    elif _is(obj, "pandas", "DataFrame") or _is(obj, "pandas", "Series"):
        from _belljar import tables

        _add(data, notes, TABLE, tables.of_frame, obj)


def _add(data, notes, mime, make, obj):
    try:
        value = make(obj, notes)
    except Exception as error:
        notes.append(f"{mime}: it could not be made ({type(error).__name__})")
        return
    if value is not None:
        data[mime] = value


def shown():
    """The figures that this execution has shown, by id."""
    return _shown


def before(obj, formatter):
    """Makes figures pictures, once there are figures, where the code has not said how."""
    if _formats["applied"] or not _is(obj, "matplotlib.figure", "Figure"):
        return
    figure = _loaded("matplotlib.figure", "Figure")
    if not any(figure in one.type_printers for one in formatter.formatters.values()):
        apply_formats(formatter.parent)
    _formats["applied"] = True


def _shell():
    from IPython.core.getipython import get_ipython

    return get_ipython()


def set_formats(shell, formats, kwargs):
    """The formats of figures from now on."""
    _formats.update(formats=set(formats), kwargs=dict(kwargs))
    if "matplotlib.figure" in sys.modules:
        apply_formats(shell)


def apply_formats(shell):
    """Sets the formats; matplotlib is there."""
    from IPython.core.pylabtools import select_figure_formats

    select_figure_formats(shell, _formats["formats"] or {"png"}, **_formats["kwargs"])


def enable_matplotlib(gui=None):
    """`%matplotlib`: the kernel's own way to show, or one without windows."""
    import matplotlib

    if gui in (None, "auto", "inline"):
        import matplotlib.pyplot as plt

        if matplotlib.get_backend() != BACKEND:
            plt.switch_backend(BACKEND)
        return "inline", BACKEND
    if gui in ("agg", "svg", "pdf", "ps", "cairo"):
        matplotlib.use(gui)
        return gui, gui
    print(f"There are no windows here, so that {gui} is left out; figures are shown in the results.", file=sys.stderr)
    return enable_matplotlib("inline")


def begin():
    """Before an execution."""
    _shown.clear()


def end(show):
    """After an execution: figures left open are shown and closed."""
    backend = sys.modules.get("_belljar.backend")
    try:
        if backend is not None and "matplotlib.pyplot" in sys.modules:
            backend.finish(show)
    finally:
        _shown.clear()


class Hooks:
    """Watches for libraries as the code imports them. First of the finders; it finds nothing itself."""

    def __init__(self):
        """Nothing is looked for by itself: a module is, while this asks the other finders."""
        self._after = {
            "matplotlib": _matplotlib,
            "matplotlib.axes": _axes,
            "PIL.Image": _pillow,
        }

    def find_spec(self, name, path=None, target=None):
        """Asks the finders after it, and adds its step to the module's loading."""
        step = self._after.get(name)
        if step is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        loader = spec.loader
        if loader is not None and hasattr(loader, "exec_module"):
            original = loader.exec_module

            def exec_module(module):
                original(module)
                try:
                    step(module)
                except Exception as error:
                    print(f"{name} is there, but its results are not shown by themselves: {error}", file=sys.stderr)

            try:
                loader.exec_module = exec_module
            except AttributeError:
                pass
        return spec


def _matplotlib(module):
    import os

    if not os.environ.get("MPLBACKEND"):
        module.rcParams["backend"] = BACKEND
        if hasattr(module, "rcParamsOrig"):
            module.rcParamsOrig["backend"] = BACKEND


def _axes(module):
    from _belljar import charts

    charts.watch(module.Axes)


def _pillow(module):
    def show(self, title=None):
        """Shows the picture in the results."""
        from IPython.display import display

        display(self)

    module.Image.show = show
'''

SOURCES['kernel'] = r'''"""The kernel: one context of Python behind a control socket."""

import os
import sys
import threading
import time

from _belljar import extras, wire
from _belljar.bundle import Budget, plain, shorten
from _belljar.errors import Describer
from _belljar.place import Place
from _belljar.streams import flush, repair_streams

MAX_PROMPT = 4 * 1024
PROTOCOL = 1


class Kernel:
    """A shell and the state around its executions."""

    def __init__(self, shell):
        """Nothing of the guest is known yet."""
        self.shell = shell
        self.describer = Describer()
        self.shell.describer = self.describer
        self.interrupts = None
        self.wire = None
        self.pid = None
        self.current = None
        self.last = None
        self.budget = Budget()
        self.loop = None
        self.answers = False
        self._warned = False
        self._main_sent = False
        shell.sink = self.show
        shell.loop_runner = self.run_async

    # What the code does.

    def show(self, data, metadata, main, display_id, update, notes):
        """Sends what is shown, within the bounds."""
        if self.wire is None or os.getpid() != self.pid:
            return
        flush()
        fitted = self.budget.fit(data, metadata, main)
        if fitted is None:
            if not self._warned:
                self._warned = True
                print("belljar: more than 1,000 results of one execution; the others are left out", file=sys.stderr)
            return
        data, metadata, cut = fitted
        frame = {"op": "result", "id": self.last, "main": bool(main and not self._main_sent), "data": data}
        self._main_sent = self._main_sent or main
        if metadata:
            frame["metadata"] = metadata
        if display_id is not None:
            frame["display_id"] = plain(display_id)[:200]
        if update:
            frame["update"] = True
        cut = [plain(note)[:400] for note in notes[:16]] + cut
        if cut:
            frame["cut"] = cut[:32]
        self.wire.send(frame)

    def ask(self, prompt="", password=False):
        """`input()` and `getpass()`: a question to whoever started the execution."""
        prompt = shorten(plain(str(prompt)), MAX_PROMPT)[0]
        name = "getpass" if password else "input"
        if os.getpid() != self.pid:
            raise EOFError(f"{name}() works in the interpreter's own process only, not in a child of it")
        if threading.current_thread() is not threading.main_thread():
            raise EOFError(f"{name}() works in the main thread only")
        if self.current is None or not self.answers:
            raise EOFError(f"{name}() was called, but nobody answers questions of this execution; give the value in the code")
        flush()
        self.wire.send({"op": "input", "id": self.current, "prompt": prompt, "password": password})
        while True:
            frame = self.wire.receive()
            if frame.get("op") != "input" or frame.get("id") != self.current:
                continue
            if frame.get("eof"):
                raise EOFError("the question was answered with an end of input")
            return str(frame.get("value", ""))

    def run_async(self, coroutine):
        """Runs a cell with `await` in it, on the loop that lives as long as the kernel."""
        loop = self.event_loop()
        task = loop.create_task(coroutine)
        self.interrupts.task = task
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt:
            if task.done():
                raise
            task.cancel()
            return loop.run_until_complete(task)
        finally:
            self.interrupts.task = None

    def event_loop(self):
        """The loop of top-level await."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        return self.loop

    # What the guest asks for.

    def execute(self, request):
        """One execution, from `started` to `done`."""
        number = request.get("id")
        code = request.get("code")
        self.current = self.last = number
        self.budget = Budget()
        self._warned = self._main_sent = False
        self.answers = bool(request.get("input"))
        self.wire.send({"op": "started", "id": number, "count": self.shell.execution_count})
        place = Place()
        error = None
        try:
            place.enter(request.get("env"), request.get("cwd"))
            extras.begin()
            if self.loop is not None or "asyncio" in sys.modules:
                self.event_loop()
            error, described = self._run(code if isinstance(code, str) else "")
        except BaseException as other:
            error, described = other, self.describer.frame(other)
        finally:
            place.leave()
        self._finish(number, error, described)

    def _run(self, code):
        error = described = None
        try:
            try:
                self.interrupts.begin()
                repair_streams()
                error = self._cell(code)
                flush()
                extras.end(show=not self._interrupted(error))
                if error is not None:
                    described = self.describer.frame(error)
            finally:
                self.interrupts.end()
        except BaseException as other:
            while self.interrupts.running:
                try:
                    self.interrupts.end()
                except KeyboardInterrupt:
                    continue
            self._leave_child(other)
            # The first error is the code's; another came while it was being shown.
            error = error if error is not None and not isinstance(other, KeyboardInterrupt) else other
        if error is not None and described is None:
            described = self._describe_late(error)
        return error, described

    def _describe_late(self, error):
        if isinstance(error, KeyboardInterrupt):
            return {"name": "KeyboardInterrupt", "value": "", "traceback": self.describer.traceback(error)}
        return self.describer.frame(error)

    def _cell(self, code):
        shell = self.shell
        shell.soft_error = None
        try:
            result = shell.run_cell(code, store_history=True)
            error = result.error_before_exec or result.error_in_exec or shell.soft_error
        except BaseException as other:
            error = other
        self._leave_child(error)
        shell.soft_error = None
        shell.depth = shell.formatting = 0
        # The shell keeps the last error and with it all that its frames hold.
        shell.last_execution_result = None
        return error

    def _leave_child(self, error):
        """A forked child ends where the code that made it ends."""
        if os.getpid() == self.pid:
            return
        status = 0
        if isinstance(error, SystemExit):
            status = exit_status(error)
        elif error is not None:
            print(self.describer.traceback(error), file=sys.stderr)
            status = 1
        flush()
        os._exit(status)

    def _interrupted(self, error):
        if error is None or not self.interrupts.seen:
            return False
        if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "CancelledError":
            return True
        # A command that the interrupt has ended.
        return type(error).__name__ == "CalledProcessError" and getattr(error, "returncode", None) in (None, -2, 130)

    def _finish(self, number, error, described):
        flush(own=True)
        status = "ok"
        if error is not None:
            status = "error"
            if self._interrupted(error):
                status = "interrupted"
                if described["name"] != "KeyboardInterrupt":
                    lines = described["traceback"].splitlines()
                    described.update(name="KeyboardInterrupt", value="", traceback="\n".join([*lines[:-1], "KeyboardInterrupt"]))
            self.wire.send({"op": "error", "id": number, **described})
        self.current = None
        done = {"op": "done", "id": number, "status": status}
        if isinstance(error, SystemExit):
            done["exiting"] = True
        self.wire.send(done)
        if isinstance(error, SystemExit):
            self.leave(exit_status(error))

    def leave(self, status):
        """Ends the process as `exit()` does, but waits for no thread."""
        import atexit

        watchdog = threading.Thread(target=_leave_soon, args=(status,), daemon=True)
        try:
            watchdog.start()
            self.shell.atexit_operations()
        except BaseException:
            pass
        try:
            atexit._run_exitfuncs()
        except BaseException:
            pass
        flush()
        os._exit(status)

    # Life.

    def serve(self, fd):
        """Takes executions until the control socket ends; never returns."""
        self.pid = os.getpid()
        self.interrupts = wire.Interrupts()
        self.interrupts.install()
        self.wire = wire.Wire(fd, self.interrupts)
        os.register_at_fork(after_in_child=self._in_child)
        self.wire.send({"op": "ready", "protocol": PROTOCOL, "language": "python", "version": sys.version.split()[0]})
        while True:
            try:
                self._idle()
                request = self.wire.receive()
                if request.get("op") == "execute":
                    self.execute(request)
                    # What the request held is not kept until the next one.
                    request = None
            except KeyboardInterrupt:
                continue

    def _in_child(self):
        if self.pid is None or os.getpid() == self.pid:
            return
        import signal

        self.wire.forget()
        self.interrupts.running = False
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _idle(self):
        """Tasks that a cell has left go on until the next one comes."""
        loop = self.loop
        if loop is None or loop.is_closed():
            return
        import asyncio

        if not asyncio.all_tasks(loop) or self.wire.readable():
            return

        def wake():
            # Code that does not let go of the loop would keep the next execution out for ever.
            if self.wire.readable():
                raise KeyboardInterrupt

        try:
            loop.add_reader(self.wire.fileno(), loop.stop)
            self.interrupts.wake = wake
            loop.run_forever()
        except BaseException as error:
            self._leave_child(error)
            if not isinstance(error, KeyboardInterrupt):
                print(self.describer.traceback(error), file=sys.stderr)
        finally:
            self.interrupts.wake = None
            try:
                loop.remove_reader(self.wire.fileno())
            except Exception:
                self.loop = None


def _leave_soon(status):
    time.sleep(2)
    os._exit(status)


def exit_status(error):
    """The status of `SystemExit`, as Python has it."""
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    return 1
'''

SOURCES['light'] = r'''"""Imports of the shell without what only a terminal needs, which is most of IPython 8's time."""

import contextlib
import sys
import types


@contextlib.contextmanager
def light_imports():
    """Stands in for modules that the shell imports and never uses here; afterwards they can be imported as ever."""
    standins = []

    def stand_in(name, **values):
        if name not in sys.modules:
            module = types.ModuleType(name)
            vars(module).update(values)
            sys.modules[name] = module
            standins.append((name, module))

    def embed(**kwargs):
        raise RuntimeError("IPython.embed() needs a terminal, and there is none here")

    stand_in("IPython.terminal.embed", embed=embed)
    if "jedi" not in sys.modules:
        sys.modules["jedi"] = None
        standins.append(("jedi", None))
    try:
        yield
    finally:
        for name, module in standins:
            if sys.modules.get(name) is module:
                del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if vars(sys.modules.get(parent) or sys).get(child) is module and module is not None:
                delattr(sys.modules[parent], child)
'''

SOURCES['parent'] = r'''"""The parent of warm kernels: ready before any user is known, and never runs a user's code.

The host sends one message for each fork over a socket that keeps their borders: JSON, with descriptors. The child says over its
control socket that it is there, and the guest then tells it its place (kernels/PROTOCOL.md, A warm kernel).
"""

import base64
import gc
import json
import os
import select
import signal
import socket
import sys

from _belljar import enter
from _belljar.start import tell_failure
from _belljar.warm import Failed, after_fork, prepare, rehearse

MAX_ORDER = 64 * 1024
MAX_DESCRIPTORS = 16
MAX_PLACE = 16 << 20
# How long a child waits for its place before it uses the time, in seconds.
PATIENCE = 0.005


def main():
    """Never returns."""
    setup = json.loads(os.environ.pop("BELLJAR_WARM"))
    sock = socket.socket(fileno=setup["fd"])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.path.pop(0)
    sys.argv = [""]
    calls = enter.Calls(setup["calls"])
    try:
        kernel = prepare(setup["imports"])
    except Failed as error:
        sock.send(json.dumps({"failed": str(error)[:4096]}).encode())
        os._exit(1)
    sys.path.insert(0, "")
    threads = _threads(setup["status"])
    if threads != 1:
        # A lock that another thread holds would be held for ever in a child.
        sock.send(json.dumps({"failed": f"the imports have started {threads - 1} threads"}).encode())
        os._exit(1)
    enter.use_huge_pages(calls)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    sock.send(json.dumps({"version": sys.version.split()[0]}).encode())
    while True:
        data, fds, _, _ = socket.recv_fds(sock, MAX_ORDER, MAX_DESCRIPTORS)
        if not data:
            os._exit(0)
        order = json.loads(data)
        if order["filter"] is not None:
            order["filter"] = base64.b64decode(order["filter"])
        named = dict(zip(order["descriptors"], fds, strict=False))
        named["groups"] = fds[len(order["descriptors"]) :]
        group = named.get("cgroup")
        try:
            pid = calls.clone() if group is None else calls.clone_into(group)
        except OSError as error:
            _fail(named["control"], error)
            pid = -1
        if pid == 0:
            _become(kernel, calls, order, named)
        for fd in fds:
            os.close(fd)


def _threads(fd):
    """From its own status in the kernel's words; there is no /proc here."""
    text = os.pread(fd, 8192, 0).decode()
    os.close(fd)
    return int(text.split("Threads:", 1)[1].split(None, 1)[0])


def _become(kernel, calls, order, fds):
    """In the child; never returns."""
    control = fds["control"]
    try:
        enter.move_in(calls, order, fds)
        sock = socket.socket(fileno=control)
        body = json.dumps({"op": "born", "pid": os.getpid()}).encode()
        sock.sendall(len(body).to_bytes(4, "big") + body)
        if not select.select([sock], [], [], PATIENCE)[0]:
            # Nobody waits for it yet: its pages become its own now, and not with its first execution.
            rehearse(kernel, 2)
            gc.freeze()
        frame, passed = _place(sock)
        enter.settle(calls, frame, passed)
        env = dict(os.fsdecode(base64.b64decode(pair)).split("=", 1) for pair in frame["env"])
        for name in ("BELLJAR_KERNEL_FD", "BELLJAR_KERNEL_LANGUAGE"):
            env.pop(name, None)
        after_fork(env, os.fsdecode(base64.b64decode(frame["cwd"])))
        sock.detach()
    except BaseException as error:
        tell_failure(control, f"the warm interpreter could not move in: {type(error).__name__}: {error}")
    kernel.serve(control)
    os._exit(1)


def _place(sock):
    data, passed, _, _ = socket.recv_fds(sock, 4, 1)
    while len(data) < 4:
        data += _more(sock, 4 - len(data))
    length = int.from_bytes(data, "big")
    if length > MAX_PLACE:
        raise ValueError("the place is too long")
    body = b""
    while len(body) < length:
        body += _more(sock, length - len(body))
    return json.loads(body), passed


def _more(sock, length):
    data = sock.recv(length)
    if not data:
        os._exit(0)
    return data


def _fail(control, error):
    body = json.dumps({"op": "failed", "message": f"the warm interpreter could not fork: {error}"}).encode()
    try:
        socket.socket(fileno=os.dup(control)).sendall(len(body).to_bytes(4, "big") + body)
    except OSError:
        pass
'''

SOURCES['place'] = r'''"""Where an execution runs."""

import os


class Place:
    """Environment and directory of one execution."""

    def __init__(self):
        self._before = {}
        self._directory = None

    def enter(self, env, cwd):
        for name, value in (env or {}).items():
            if name not in self._before:
                self._before[name] = os.environ.get(name)
            os.environ[name] = value
        if cwd:
            try:
                self._directory = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                self._directory = None
            os.chdir(cwd)

    def leave(self):
        for name, value in self._before.items():
            try:
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            except (OSError, ValueError):
                continue
        if self._directory is not None:
            try:
                os.fchdir(self._directory)
                os.close(self._directory)
            except OSError:
                pass
'''

SOURCES['shell'] = r'''"""IPython's shell, quiet and without files: what is shown becomes frames."""

import codeop
import io
import os
import sys
import types

from _belljar.light import light_imports

with light_imports():
    from IPython.core import interactiveshell
    from IPython.core.autocall import IPyAutocall
    from IPython.core.compilerop import CachingCompiler
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.formatters import DisplayFormatter, PlainTextFormatter, catch_format_error
    from IPython.core.profiledir import ProfileDir
    from IPython.lib import pretty
    from traitlets import Any, Bool, Dict, Set, Type, Unicode, observe
    from traitlets.config import Config, Configurable

from _belljar import commands, extras
from _belljar.bundle import MAX_VALUE, size_text

# The frames from which IPython itself reports the end of a cell.
_REPORTERS = ("run_code", "run_ast_nodes", "run_cell_async", "_run_cell")


class _Store(dict):
    """IPython's database of settings, which here lives and dies with the kernel."""

    def keys(self, globpat=None):
        import fnmatch

        return [key for key in dict.keys(self) if globpat is None or fnmatch.fnmatch(key, globpat)]

    def hset(self, root, key, value):
        self[f"{root}/{key}"] = value

    def hget(self, root, key, default=None):
        return self.get(f"{root}/{key}", default)


class _NoProfile(ProfileDir):
    """A profile without a directory."""

    @observe("location")
    def _location_changed(self, change):
        pass


class _Compiler(CachingCompiler):
    """Names cells as tracebacks show them, and says of half a statement what is missing."""

    def __init__(self):
        super().__init__()
        self.flags &= ~getattr(codeop, "PyCF_ALLOW_INCOMPLETE_INPUT", 0)

    def get_code_name(self, raw_code, transformed_code, number):
        return f"Cell In[{number}]"


class _Full(Exception):
    """The text of an object is long enough."""


class _Sheet(io.StringIO):
    """Takes text up to the bound of a form."""

    room = MAX_VALUE

    def write(self, text):
        self.room -= len(text)
        if self.room < 0:
            super().write(text[: max(0, self.room + len(text))])
            raise _Full
        return super().write(text)


class _PlainText(PlainTextFormatter):
    """An object's text, no longer than it is sent."""

    @catch_format_error
    def __call__(self, obj):
        if type(obj) in (str, bytes, bytearray) and len(obj) > MAX_VALUE:
            third = MAX_VALUE // 4
            return f"{obj[: 2 * third]!r}\n… {size_text(len(obj) - 3 * third)} left out …\n{obj[-third:]!r}"
        if not self.pprint:
            return repr(obj)
        sheet = _Sheet()
        printer = pretty.RepresentationPrinter(
            sheet,
            self.verbose,
            self.max_width,
            self.newline,
            max_seq_length=self.max_seq_length,
            singleton_pprinters=self.singleton_printers,
            type_pprinters=self.type_printers,
            deferred_pprinters=self.deferred_printers,
        )
        try:
            printer.pretty(obj)
            printer.flush()
        except _Full:
            return sheet.getvalue() + "\n… the rest is left out …"
        return sheet.getvalue()


class _Formatter(DisplayFormatter):
    """Forms of an object: IPython's, and a chart or table where there is one."""

    def format(self, obj, include=None, exclude=None):
        shell = self.parent
        shell.formatting += 1
        shell.format_error = None
        try:
            extras.before(obj, self)
            data, metadata = super().format(obj, include=include, exclude=exclude)
            if not data and shell.format_error is None:
                return data, metadata
            if "text/plain" not in data and shell.format_error is not None:
                data["text/plain"] = f"<{type(obj).__name__} object, whose text could not be made: {shell.format_error}>"
            if not include:
                extras.add(obj, data, shell.notes)
            return data, metadata
        finally:
            shell.formatting -= 1


class _Hook(DisplayHook):
    """The value of the last expression, as a frame."""

    def __call__(self, result=None):
        if isinstance(result, _Leave):
            result()
        super().__call__(result)

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        self.shell.emit(format_dict, md_dict, main=True)

    def log_output(self, format_dict):
        pass

    def finish_displayhook(self):
        self._is_active = False


class _Publisher(DisplayPublisher):
    """What code displays, as frames."""

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
        self.shell.emit(data, metadata, display_id=(transient or {}).get("display_id"), update=update)

    def clear_output(self, wait=False):
        pass


class InlineBackend(Configurable):
    """The settings of `%config InlineBackend`, as notebooks have them."""

    figure_formats = Set({"png"}, help="Formats of shown figures: png, retina, jpeg, svg, pdf.").tag(config=True)
    figure_format = Unicode(help="The one format of shown figures.").tag(config=True)
    print_figure_kwargs = Dict({"bbox_inches": "tight"}, help="Handed to the figure's print_figure.").tag(config=True)
    rc = Dict({}, help="Settings of matplotlib while figures are shown.").tag(config=True)
    close_figures = Bool(True, help="Close figures at the end of the cell.").tag(config=True)

    @observe("figure_format")
    def _format_changed(self, change):
        if change["new"]:
            self.figure_formats = {change["new"]}

    @observe("figure_formats", "print_figure_kwargs")
    def _formats_changed(self, change):
        extras.set_formats(self.parent, self.figure_formats, self.print_figure_kwargs)


class _Leave(IPyAutocall):
    """`exit` and `quit`: with or without brackets, and with a status."""

    rewrite = False

    def __call__(self, code=None):
        raise SystemExit(code)

    def __repr__(self):
        return "exit() ends the context's interpreter"


def _warn(message, *args, **kwargs):
    """IPython's warnings, but for its advice on how to leave."""
    import warnings

    if not str(message).startswith("To exit:"):
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        warnings.warn(message, *args, **kwargs)


class Shell(interactiveshell.InteractiveShell):
    """IPython's shell for the kernel."""

    displayhook_class = Type(_Hook)
    display_pub_class = Type(_Publisher)
    compiler_class = Type(_Compiler)
    # Who takes what is shown: set by the kernel.
    sink = Any()
    formatting = 0
    format_error = None
    depth = 0
    soft_error = None
    describer = None

    def __init__(self, *args, **kwargs):
        self.notes = []
        self.__dict__["_store"] = _Store()
        super().__init__(*args, **kwargs)
        self.configurables.append(InlineBackend(parent=self))
        for name in ("exit", "quit"):
            self.user_ns[name] = self.user_ns_hidden[name] = _Leave(self)

    db = property(lambda self: self.__dict__["_store"], lambda self, value: None)

    def init_ipython_dir(self, ipython_dir):
        pass

    def init_profile_dir(self, profile_dir):
        self.profile_dir = _NoProfile(location=os.path.join(os.sep, "nonexistent"))

    @observe("ipython_dir")
    def _ipython_dir_changed(self, change):
        pass

    def init_virtualenv(self):
        pass

    def init_logstart(self):
        pass

    def init_display_formatter(self):
        self.display_formatter = _Formatter(parent=self)
        self.display_formatter.formatters["text/plain"] = _PlainText(parent=self.display_formatter)
        self.configurables.append(self.display_formatter)

    def init_completer(self):
        """Completions cost much to set up and are never asked for here; whoever does gets them."""

    @property
    def Completer(self):
        if "_completer" not in self.__dict__:
            self.__dict__["_completer"] = None
            with light_imports():
                super().init_completer()
        return self.__dict__["_completer"]

    @Completer.setter
    def Completer(self, value):
        self.__dict__["_completer"] = value

    def emit(self, data, metadata=None, main=False, display_id=None, update=False):
        """Sends what is shown."""
        notes, self.notes = self.notes, []
        if self.sink is not None:
            self.sink(data, metadata, main, display_id, update, notes)

    def run_cell(self, *args, **kwargs):
        self.depth += 1
        try:
            return super().run_cell(*args, **kwargs)
        finally:
            self.depth -= 1

    def showtraceback(self, exc_tuple=None, *args, **kwargs):
        self._report(exc_tuple, sys._getframe(1).f_code)

    def _report(self, exc_tuple, caller):
        """Keeps the error of a cell, which is sent at its end; writes others to standard error."""
        try:
            error = self._get_exc_info(exc_tuple)[1]
        except ValueError:
            print("No traceback available to show.", file=sys.stderr)
            return
        if self.formatting:
            self.format_error = f"{type(error).__name__}: {self.describer.value(error)[:2000]}"
        if self.depth == 1 and not self.formatting and caller.co_filename == interactiveshell.__file__:
            if caller.co_name not in _REPORTERS:
                self.soft_error = error
            return
        print(self.describer.traceback(error), file=sys.stderr)

    def showsyntaxerror(self, filename=None, *args, **kwargs):
        self._report(None, sys._getframe(1).f_code)

    def showindentationerror(self):
        self._report(None, sys._getframe(1).f_code)

    def _format_exception_for_storage(self, exception, *args, **kwargs):
        """No history is kept, so that nothing is formatted twice."""
        return {"ename": type(exception).__name__, "evalue": "", "traceback": []}

    def enable_gui(self, gui=None):
        if gui not in (None, "inline", "agg"):
            print(f"There are no windows here, so that {gui} is left out.", file=sys.stderr)

    def enable_matplotlib(self, gui=None):
        """`%matplotlib`: figures are shown in the results, which they are without it."""
        return extras.enable_matplotlib(gui)

    def ask_exit(self):
        raise SystemExit(None)

    def system(self, cmd):
        """`!command`: it writes where the code writes."""
        self.user_ns["_exit_code"] = commands.run(self.var_expand(cmd, depth=1))

    system_piped = system_raw = system

    def getoutput(self, cmd, split=True, depth=0):
        """`x = !command`: what it wrote, by line."""
        from IPython.utils.text import LSString, SList

        text = commands.output(self.var_expand(cmd, depth=depth + 1))
        return SList(text.splitlines()) if split else LSString(text)


def make_shell():
    """The one shell of the process, without history, colours, banner or files."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.banner1 = ""
    config.InteractiveShell.autoindent = False
    config.InteractiveShell.enable_tip = False
    config.InteractiveShell.term_title = False
    config.Completer.use_jedi = False
    interactiveshell.warn = _warn
    if hasattr(interactiveshell, "PickleShareDB"):
        interactiveshell.PickleShareDB = lambda path: None
    module = types.ModuleType("__main__", doc="The code of the context.")
    with light_imports():
        return Shell.instance(config=config, user_module=module)
'''

SOURCES['start'] = r'''"""A plain start."""

import os
import sys

from _belljar.bundle import plain
from _belljar.warm import Failed, prepare


def tell_failure(fd, message):
    """Says that the kernel cannot work."""
    import socket

    try:
        sock = socket.socket(fileno=fd)
        import json

        body = json.dumps({"op": "failed", "message": plain(message)[:16000]}).encode()
        sock.sendall(len(body).to_bytes(4, "big") + body)
    except OSError:
        pass
    os._exit(1)


def close_source():
    """Closes the descriptor that this file was read from."""
    import re

    found = re.fullmatch(r"/(?:proc/self|dev)/fd/(\d+)", sys.argv[0] if sys.argv else "")
    if found and int(found[1]) > 3:
        try:
            os.close(int(found[1]))
        except OSError:
            pass


def _no_input():
    """Code reads an end of input, not what is left of this file, which came by that way."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null != 0:
        os.close(null)


def main():
    """A plain start."""
    fd = int(os.environ.pop("BELLJAR_KERNEL_FD", "3"))
    os.environ.pop("BELLJAR_KERNEL_LANGUAGE", None)
    os.set_inheritable(fd, False)
    close_source()
    _no_input()
    # What lies in the code's own directory is not taken for a part of Python while the kernel starts.
    place = sys.path.pop(0) if sys.path and not getattr(sys.flags, "safe_path", False) else None
    sys.argv = [""]
    try:
        kernel = prepare([], to_fork=False)
    except Failed as error:
        tell_failure(fd, str(error))
    except BaseException as error:
        tell_failure(fd, f"the Python kernel cannot start: {type(error).__name__}: {error}")
    if place is not None:
        sys.path.insert(0, "")
    kernel.serve(fd)
'''

SOURCES['streams'] = r'''"""Standard output and error of the code."""

import io
import sys

# The streams that the kernel has made: flushing them runs no code of the user's.
_own_streams = []


def flush(own=False):
    """Everything that the code has printed is in the pipes; `own` leaves streams out that the code has made."""
    streams = _own_streams if own else [sys.stdout, sys.stderr, *_own_streams]
    for stream in streams:
        try:
            stream.flush()
        except Exception:
            continue
    ctypes = sys.modules.get("ctypes")
    if ctypes is not None:
        try:
            ctypes.pythonapi.fflush(None)
        except Exception:
            return


# What Python itself has opened: it closes the descriptors when it goes, so that it stays.
_first = []


def _make(name):
    raw = io.FileIO({"stdout": 1, "stderr": 2}[name], "w", closefd=False)
    raw.name = f"<{name}>"
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


def prepare_streams():
    """Output line by line, in UTF-8, whatever the characters; code that closes a stream does not close the descriptor."""
    _own_streams.clear()
    for name in ("stdout", "stderr"):
        before = getattr(sys, name)
        if before is not None:
            before.flush()
            _first.append(before)
        stream = _make(name)
        _own_streams.append(stream)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def repair_streams():
    """Puts own streams back where the code has left nothing that can be written to."""
    for at, name in enumerate(("stdout", "stderr")):
        if _own_streams[at].closed:
            _own_streams[at] = _make(name)
            setattr(sys, f"__{name}__", _own_streams[at])
        stream = getattr(sys, name, None)
        if not callable(getattr(stream, "write", None)) or getattr(stream, "closed", False) is True:
            setattr(sys, name, _own_streams[at])
'''

SOURCES['tables'] = r'''"""Data frames as data."""

import datetime
import math

MAX_ROWS = 1_000
MAX_COLUMNS = 100
MAX_CELL = 8 * 1024
# Bytes of a table, roughly: below the bound of a form, whatever JSON makes longer.
MAX_TABLE = 3 * 1024 * 1024


def of_frame(frame, notes):
    """The table of a data frame or a series."""
    import pandas

    if isinstance(frame, pandas.Series):
        name = frame.name
        frame = frame.to_frame(name=0 if name is None else name)
        names = ["" if name is None else _name(name)]
    else:
        names = [_name(name) for name in frame.columns[:MAX_COLUMNS]]
    row_count, column_count = frame.shape
    part = frame.iloc[:MAX_ROWS, :MAX_COLUMNS]
    columns, types = [], []
    for at in range(part.shape[1]):
        column = part.iloc[:, at]
        types.append(_type(column.dtype, column))
        columns.append(_values(column))
    rows = [list(row) for row in zip(*columns)] if columns else [[] for _ in range(len(part))]
    index = _index(part.index, row_count)
    kept = _fit(rows)
    if index is not None:
        index["values"] = index["values"][:kept]
    said = []
    if kept < row_count:
        said.append(f"{kept:,} of {row_count:,} rows")
    if column_count > MAX_COLUMNS:
        said.append(f"{MAX_COLUMNS} of {column_count:,} columns")
    if said:
        notes.append(f"application/vnd.belljar.table.v1+json: the first {' and '.join(said)}")
    return {
        "columns": [{"name": name, "type": kind} for name, kind in zip(names, types)],
        "rows": rows[:kept],
        "index": index,
        "row_count": row_count,
        "truncated": bool(said),
    }


def _name(name):
    if isinstance(name, tuple):
        return ", ".join(_name(part) for part in name)
    return str(name)[:1000]


def _type(dtype, values):
    import pandas.api.types as is_a

    for test, name in (
        (is_a.is_bool_dtype, "boolean"),
        (is_a.is_integer_dtype, "integer"),
        (is_a.is_float_dtype, "number"),
        (is_a.is_datetime64_any_dtype, "datetime"),
        (is_a.is_timedelta64_dtype, "duration"),
    ):
        if test(dtype):
            return name
    if type(dtype).__name__ == "PeriodDtype":
        return "datetime"
    if type(dtype).__name__ == "CategoricalDtype":
        return _type(dtype.categories.dtype, dtype.categories)
    kinds = {"missing" if _missing(value) else _kind(value) for value in values}
    kinds.discard("missing")
    return kinds.pop() if len(kinds) == 1 else "other" if kinds else "string" if getattr(dtype, "kind", "O") != "O" else "other"


def _kind(value):
    for kind, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (datetime.datetime, "datetime"),
        (datetime.date, "datetime"),
        (datetime.timedelta, "duration"),
        (str, "string"),
    ):
        if isinstance(value, kind):
            return name
    return "other"


def _missing(value):
    if value is None:
        return True
    try:
        return bool(value != value)
    except Exception:
        return type(value).__name__ == "NAType"


def _values(column):
    return [_cell(value) for value in column.tolist()]


def _cell(value):
    """A cell as JSON has it."""
    if value is None or isinstance(value, (bool, str)):
        return value if not isinstance(value, str) or len(value) <= MAX_CELL else value[:MAX_CELL] + "…"
    if isinstance(value, int):
        return int(value) if value.bit_length() <= 64 else str(value)[:MAX_CELL]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if _missing(value):
        return None
    if hasattr(value, "to_timestamp"):
        value = value.to_timestamp()
    if isinstance(value, datetime.timedelta):
        return value.isoformat() if hasattr(value, "isoformat") else f"PT{value.total_seconds():g}S"
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return _cell(value.item())
    text = str(value)
    return text if len(text) <= MAX_CELL else text[:MAX_CELL] + "…"


def _index(index, row_count):
    """The rows' own names; nothing when they are only counted."""
    if type(index).__name__ == "RangeIndex" and index.name is None and index.start == 0 and index.step == 1:
        return None
    if index.nlevels > 1:
        values = [[_cell(part) for part in value] for value in index.tolist()]
        return {"name": ", ".join("" if name is None else _name(name) for name in index.names), "type": "other", "values": values}
    values = index.tolist()
    name = None if index.name is None else _name(index.name)
    return {"name": name, "type": _type(index.dtype, values), "values": [_cell(value) for value in values]}


def _fit(rows):
    used = 0
    for at, row in enumerate(rows):
        used += 2 + sum(len(value) * 2 + 3 if isinstance(value, str) else 20 for value in row)
        if used > MAX_TABLE:
            return at
    return len(rows)
'''

SOURCES['warm'] = r'''"""What is done before any user is known, and what a forked kernel does first."""

import os
import sys
import time

from _belljar import extras
from _belljar.kernel import Kernel
from _belljar.streams import prepare_streams


class Failed(Exception):
    """The kernel cannot work: what is missing, and what to do."""


def prepare(imports=(), to_fork=True):
    """All that can be done before any user is known; returns the kernel. Afterwards the process has one thread."""
    prepare_streams()
    try:
        from _belljar.shell import make_shell
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("IPython", "traitlets"):
            raise
        raise Failed(
            f"IPython is missing in {sys.executable} ({error}): install it with `apt-get install python3-ipython` "
            "or `python3 -m pip install ipython`"
        ) from error
    shell = make_shell()
    kernel = Kernel(shell)
    sys.meta_path.insert(0, extras.Hooks())
    _questions(kernel)
    for name in imports:
        import importlib

        try:
            importlib.import_module(name)
        except Exception as error:
            raise Failed(f"the module {name} cannot be imported: {type(error).__name__}: {error}") from error
    if to_fork:
        rehearse(kernel)
        _settle(shell)
    return kernel


def _settle(shell):
    """Touches what the first execution would make, and keeps the collector's hands off all of it."""
    # What a child imports and sets up on its way.
    import base64  # noqa: F401
    import fcntl  # noqa: F401
    import gc
    import random  # noqa: F401
    import resource  # noqa: F401
    import select  # noqa: F401

    shell.run_cell("_ = f'{1 + 1}'\nasync def _():\n    pass\ndel _", silent=True)
    if "ssl" in sys.modules:
        # OpenSSL's generators are made with their first use.
        sys.modules["ssl"].RAND_bytes(1)
        sys.modules["ssl"].RAND_add(os.urandom(64), 64.0)
    if hasattr(time, "tzset"):
        time.tzset()
    shell.user_ns["_"] = ""
    if "numpy" in sys.modules:
        import numpy.random  # noqa: F401
    if "matplotlib.pyplot" in sys.modules:
        from _belljar import backend, charts  # noqa: F401
    if "pandas" in sys.modules:
        from _belljar import tables  # noqa: F401
    gc.collect()
    gc.freeze()


class _Nowhere:
    """A control socket that leads nowhere."""

    def send(self, frame):
        """Makes the frame, as a real one does."""
        import json

        json.dumps(frame, ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)

    def readable(self):
        return True


# One of each kind: a value, output, an error, a definition, a loop.
_REHEARSAL = (
    "2 ** 64",
    "print(f'{1 + 1}')",
    "def _rehearsed(number=1):\n    return [one for one in range(number)]\n_rehearsed()",
    "import os, sys, json\nfor _rehearsed in range(2):\n    pass\n{'a': 1}",
    "1 / 0",
)


def rehearse(kernel, count=None):
    """Runs a few cells of the kernel's own, so that what comes later finds made what its first execution would make."""
    from _belljar import wire

    out, err = os.dup(1), os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)
    kernel.pid = os.getpid()
    kernel.interrupts = wire.Interrupts()
    kernel.wire = _Nowhere()
    try:
        for code in (_REHEARSAL * 2)[:count]:
            kernel.execute({"id": 0, "code": code, "env": {}})
    finally:
        for number, kept in ((1, out), (2, err)):
            os.dup2(kept, number)
            os.close(kept)
        os.close(null)
        if kernel.loop is not None:
            # Its descriptors would not be a child's own.
            import asyncio

            kernel.loop.close()
            asyncio.set_event_loop(None)
        kernel.pid = kernel.wire = kernel.interrupts = kernel.last = kernel.loop = None
        kernel.shell.reset(new_session=True)
        kernel.shell.user_ns.pop("_rehearsed", None)
        # It is there in a new shell, and not after its reset.
        kernel.shell.user_ns["_"] = ""


def _questions(kernel):
    import builtins
    import getpass

    def input(prompt="", /):
        return kernel.ask(prompt)

    def ask_password(prompt="Password: ", stream=None, **_kwargs):
        return kernel.ask(prompt, password=True)

    builtins.input = input
    getpass.getpass = ask_password
    kernel.shell.raw_input_original = input


def after_fork(env=None, cwd=None):
    """In a child of a prepared process, before any code: nothing random is the parent's, and the place is the context's."""
    import random

    random.seed()
    random_numpy = sys.modules.get("numpy.random")
    if random_numpy is not None:
        random_numpy.seed()
    uuid = sys.modules.get("uuid")
    if uuid is not None:
        uuid._node = None
        uuid._last_timestamp = None
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile._name_sequence = None
        tempfile.tempdir = None
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        # OpenSSL sees a fork by the process id, which in another namespace may be the same.
        ssl.RAND_add(os.urandom(64), 64.0)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
        if hasattr(time, "tzset"):
            time.tzset()
    if cwd is not None:
        os.chdir(cwd)
'''

SOURCES['wire'] = r'''"""Frames over the control socket, and what a signal may do meanwhile."""

import json
import os
import select
import signal
import socket
import threading

MAX_FRAME = 32 * 1024 * 1024


class Interrupts:
    """What SIGINT does: it interrupts the code that runs, and nothing else.

    The handler runs between two steps of the main thread. Where the kernel must not be broken off it holds a shield; the
    interrupt then comes when the last shield is put down.
    """

    def __init__(self):
        """Takes the signal; nothing runs yet."""
        self.pid = os.getpid()
        self.running = False
        self.seen = False
        self.wake = None
        self.task = None
        self._shields = 0
        self._pending = False
        self._cancelled = False

    def install(self):
        """Makes SIGINT this object's, whatever code made of it."""
        signal.signal(signal.SIGINT, self._handle)

    def begin(self):
        """From here on the signal interrupts."""
        self.install()
        self.seen = self._pending = self._cancelled = False
        self.running = True

    def end(self):
        """From here on the signal does nothing."""
        self.running = False
        self.task = None
        self._pending = False
        self.install()

    def _handle(self, _number, frame):
        if os.getpid() != self.pid:
            raise KeyboardInterrupt
        if not self.running:
            if self.wake is not None:
                self.wake()
            return
        self.seen = True
        if self._shields:
            self._pending = True
            return
        if self.task is not None and not self._cancelled and _waits(frame):
            self._cancelled = True
            self.task.cancel()
            # The loop waits on; this wakes it.
            self.task.get_loop().call_soon_threadsafe(int)
            return
        raise KeyboardInterrupt

    def __enter__(self):
        """Holds the interrupt back, in the main thread; elsewhere it never comes."""
        if threading.current_thread() is threading.main_thread():
            self._shields += 1
        return self

    def __exit__(self, *_exc):
        """Lets the interrupt through that came meanwhile."""
        if threading.current_thread() is threading.main_thread():
            self._shields -= 1
            if not self._shields and self._pending:
                self._pending = False
                if self.running:
                    raise KeyboardInterrupt


def _waits(frame):
    """Whether the event loop waits for something to happen, and no code runs."""
    back = frame.f_back
    return back is not None and back.f_code.co_name == "_run_once" and back.f_code.co_filename.endswith("base_events.py")


class Wire:
    """The control socket: one reader, which is the main thread, and any number of writers."""

    def __init__(self, fd, interrupts):
        """Moves the socket to a number above 9 that no child inherits."""
        import fcntl

        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
        os.close(fd)
        self._pid = os.getpid()
        self._socket = socket.socket(fileno=moved)
        self._socket.setblocking(True)
        self._identity = self._look()
        self._lock = threading.Lock()
        self._interrupts = interrupts
        self._buffer = bytearray()

    def fileno(self):
        """The descriptor's number."""
        return self._socket.fileno()

    def _look(self):
        found = os.fstat(self._socket.fileno())
        return found.st_dev, found.st_ino

    def forget(self):
        """In a forked child: this copy of the socket is closed, and nothing is written again."""
        self._lock = threading.Lock()
        try:
            if self._look() == self._identity:
                self._socket.close()
            else:
                self._socket.detach()
        except (OSError, ValueError):
            pass

    def send(self, frame):
        """Writes one frame, whole. Ends the process when the guest is gone."""
        if os.getpid() != self._pid:
            return
        body = json.dumps(frame, ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False)
        self.send_text(body)

    def send_text(self, body):
        """Writes one frame whose JSON is made already."""
        if os.getpid() != self._pid:
            return
        data = body.encode("utf-8", "backslashreplace")
        data = len(data).to_bytes(4, "big") + data
        with self._interrupts, self._lock:
            try:
                if self._look() != self._identity:
                    os._exit(1)
                self._socket.sendall(data)
            except (OSError, ValueError):
                # Closed by the guest, or by the code: there is nobody to speak with any more.
                os._exit(1)

    def readable(self):
        """Whether something has come."""
        return bool(self._buffer) or bool(_poll(self._socket.fileno(), 0))

    def receive(self):
        """The next frame. Ends the process at the end of the stream."""
        while True:
            frame = self._take()
            if frame is not None:
                return frame
            try:
                # Only the waiting may be interrupted: what was read is never lost.
                _poll(self._socket.fileno(), None)
                with self._interrupts:
                    chunk = self._socket.recv(1 << 20)
                    if self._look() != self._identity:
                        chunk = b""
                    self._buffer += chunk
            except (OSError, ValueError):
                chunk = b""
            if not chunk:
                os._exit(0)

    def _take(self):
        with self._interrupts:
            if len(self._buffer) < 4:
                return None
            length = int.from_bytes(self._buffer[:4], "big")
            if length > MAX_FRAME:
                os._exit(1)
            if len(self._buffer) < 4 + length:
                return None
            body = bytes(self._buffer[4 : 4 + length])
            del self._buffer[: 4 + length]
        try:
            frame = json.loads(body)
        except ValueError:
            os._exit(1)
        return frame if isinstance(frame, dict) else {}


def _poll(fd, timeout):
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    events = poll.poll(timeout)
    if any(event & select.POLLNVAL for _, event in events):
        raise OSError("the control socket is closed")
    return events
'''


class _Modules:
    """Finds the kernel's own modules, which are compiled when they are needed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        package, _, module = name.partition(".")
        if package != "_belljar" or (module and module not in SOURCES):
            return None
        from importlib.machinery import ModuleSpec

        spec = ModuleSpec(name, _Modules, is_package=not module)
        spec.origin = f"<belljar {module}>"
        return spec

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        name = module.__name__.partition(".")[2]
        if name:
            exec(compile(SOURCES[name], f"<belljar {name}>", "exec", dont_inherit=True), module.__dict__)

    @staticmethod
    def get_source(name):
        return SOURCES.get(name.partition(".")[2], "")


sys.meta_path.insert(0, _Modules)

if __name__ == "__main__" and not globals().get("BELLJAR_WARM"):
    # The shell puts the code's own module in this one's place; this keeps it alive.
    _Modules.first = sys.modules["__main__"]
    import os

    if "BELLJAR_WARM" in os.environ:
        from _belljar.parent import main
    else:
        from _belljar.start import main

    main()
