"""Data frames as data."""

import datetime
import math

MAX_ROWS = 1_000
MAX_COLUMNS = 100
MAX_CELL = 8 * 1024
# Approximate maximum size of a table in bytes: below the limit of a representation, even after JSON escaping.
MAX_TABLE = 3 * 1024 * 1024


def of_frame(frame, notes):
    """Returns the table of a data frame or a series."""
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
    omitted = []
    if kept < row_count:
        omitted.append(f"{kept:,} of {row_count:,} rows")
    if column_count > MAX_COLUMNS:
        omitted.append(f"{MAX_COLUMNS} of {column_count:,} columns")
    if omitted:
        notes.append(f"application/vnd.belljar.table.v1+json: the first {' and '.join(omitted)}")
    return {
        "columns": [{"name": name, "type": kind} for name, kind in zip(names, types)],
        "rows": rows[:kept],
        "index": index,
        "row_count": row_count,
        "truncated": bool(omitted),
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
    """Converts a cell to JSON."""
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
    """Returns the rows' names; None if they are only numbered."""
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
