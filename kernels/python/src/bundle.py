"""Size limits of results: what is sent of each representation, and notes on the rest."""

import base64
import binascii
import json
import math

MAX_VALUE = 8 * 1024 * 1024
MAX_RESULTS = 1000
MAX_TOTAL = 24 * 1024 * 1024
# Part of the total that is reserved for the last expression's value.
RESERVED = 1024 * 1024
MAX_METADATA = 64 * 1024
MAX_FORMS = 32
MAX_CUT = 16
_SHORTENED = ("text/plain", "text/markdown")


def size_text(count):
    """Formats a number of bytes for people."""
    if count >= 1024 * 1024:
        return f"{count / (1024 * 1024):.1f} MiB"
    return f"{count / 1024:.0f} KiB" if count >= 1024 else f"{count} bytes"


def plain(text):
    """Returns the text without lone surrogates, which UTF-8 cannot encode."""
    text = str.__str__(text) if isinstance(text, str) else str(text)
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shorten(text, limit):
    """Shortens a text to head and tail of at most `limit` bytes; also returns whether anything was omitted."""
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


class Shortened(str):
    """The text of an object that was too long."""


class TooLarge(Exception):
    """A representation that cannot be sent."""


def is_json(mime):
    """Reports whether the value of a MIME type is JSON."""
    return mime == "application/json" or mime.endswith("+json")


def is_text(mime):
    """Reports whether the value of a MIME type is a plain string."""
    return mime.startswith("text/") or mime in ("application/javascript", "image/svg+xml")


def clean_json(value, depth=0, budget=None):
    """Converts a value to JSON: no NaN, no other types; or raises."""
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
            raise TooLarge("contains an integer that is too large")
        return int(value)
    if isinstance(value, (list, tuple)):
        return [clean_json(item, depth + 1, budget) for item in value]
    if isinstance(value, dict):
        return {plain(key): clean_json(item, depth + 1, budget) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return clean_json(value.tolist(), depth + 1, budget)
    raise TooLarge(f"not JSON: contains a {type(value).__name__}")


def _value(mime, value, limit):
    """Returns the value as sent, its size, and whether it was shortened."""
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
            raise TooLarge(f"expected text, not {type(value).__name__}")
        short = False
        if mime in _SHORTENED:
            value, short = shorten(value, limit)
        value = plain(value)
        size = len(json.dumps(value, ensure_ascii=False).encode("utf-8"))
        if size > limit and mime in _SHORTENED:
            # Escaping in JSON makes the text longer.
            value, short = shorten(value, limit // 6)
            size = len(json.dumps(value, ensure_ascii=False).encode("utf-8"))
        if size > limit:
            raise TooLarge(f"{size_text(size)} are more than the {size_text(limit)} of one form")
        return value, size, short
    if isinstance(value, str):
        value = _binary(mime, value)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TooLarge(f"expected bytes, not {type(value).__name__}")
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
        raise TooLarge("invalid base64") from None


class Budget:
    """Remaining size limit for the results of one execution."""

    def __init__(self):
        """Starts with the full limit."""
        self.count = 0
        self.used = 0

    def fit(self, data, metadata, main):
        """Returns representations, metadata and notes as sent; None if no more results are sent."""
        self.count += 1
        if self.count > MAX_RESULTS:
            return None
        cut = []
        sent = {}
        # Text first: it is kept when space runs out.
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
                cut.append("a form was left out: invalid MIME type")
                continue
            if len(sent) >= MAX_FORMS:
                cut.append(f"{mime}: more than {MAX_FORMS} forms of one result")
                break
            mime = str(mime)
            was_short = isinstance(value, Shortened)
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
                cut.append(f"{mime}: could not be read ({type(error).__name__})")
                continue
            if short or was_short:
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
        cut.append(f"metadata: {error}" if isinstance(error, TooLarge) else "metadata: could not be read")
        return {}
    return {key: value for key, value in clean.items() if "/" not in key or key in sent}
