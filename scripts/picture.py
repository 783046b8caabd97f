#!/usr/bin/env python3
"""Draws the terminal picture of README.md from what the commands really print.

usage: picture.py --belljar PROGRAM [--check] PICTURE.svg

Each command runs on a terminal of its own, in the directory `examples`. With --check, the picture must be the one that would be drawn.
"""

from __future__ import annotations

import argparse
import html
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import textwrap
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Dict, List, Tuple

ROOT = Path(__file__).resolve().parent.parent

COMMANDS = [
    "belljar run -c 'print(2**64)'",
    "belljar run -f sales.csv sum.py sales.csv",
    "belljar run -l sh -c 'id -un; cat /etc/shadow'",
    "belljar run -c 'x = \"a\" * 10**10'",
    "belljar run -l sh -c 'curl -sS https://example.org'",
]

# Size of the terminal, in characters.
COLUMNS, ROWS = 100, 40

# Size of a character and of the margin, in pixels.
WIDTH, HEIGHT, MARGIN = 8.4, 19, 16

# Foreground colours by their SGR code (ECMA-48, 8.3.117), and those of the picture.
COLOURS = {31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea", 90: "#8b949e"}
TEXT, PROMPT, GROUND = "#e6edf3", "#7ee787", "#0d1117"

SGR = re.compile(r"\x1b\[([0-9;]*)m")
# Other sequences: what moves the cursor, erases, or asks the terminal something.
OTHER = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78]")

# A piece of a line: its text, and how it looks.
Piece = Tuple[str, str]


def on_terminal(command: str, program: Path, home: str) -> str:
    """Runs a command on a terminal, and returns what it wrote."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {
        "PATH": f"{program.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "BELLJAR_HOME": f"{home}/belljar",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    if "BELLJAR_LIMITS" in os.environ:
        environment["BELLJAR_LIMITS"] = os.environ["BELLJAR_LIMITS"]
    process = subprocess.Popen(
        ["sh", "-c", command],
        cwd=ROOT / "examples",
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            # Nothing has it open any more (EIO).
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    process.wait()
    return written.decode()


def shown(written: str) -> List[str]:
    """Returns the lines as a terminal shows them in the end; a line that moved is gone."""
    lines = []
    for line in OTHER.sub("", written).replace("\r\n", "\n").split("\n"):
        lines.append(line.rsplit("\r", 1)[-1])
    while lines and not SGR.sub("", lines[-1]).strip():
        lines.pop()
    return lines


def pieces(line: str) -> List[Piece]:
    """Splits a line where its look changes."""
    found: List[Piece] = []
    style: Dict[str, str] = {}
    position = 0
    for match in [*SGR.finditer(line), None]:
        end = match.start() if match else len(line)
        if end > position:
            found.append((line[position:end], "".join(f' {name}="{value}"' for name, value in style.items())))
        if match is None:
            break
        position = match.end()
        for code in (int(code or 0) for code in match.group(1).split(";")):
            if code == 0:
                style = {}
            elif code == 1:
                style["font-weight"] = "bold"
            elif code == 2:
                style["fill"] = COLOURS[90]
            elif code == 22:
                style.pop("font-weight", None)
            elif code == 39:
                style.pop("fill", None)
            elif code in COLOURS:
                style["fill"] = COLOURS[code]
    return found


def folded(line: List[Piece]) -> List[List[Piece]]:
    """Breaks a line that is wider than the terminal, between words."""
    text = "".join(part for part, _ in line)
    if len(text) <= COLUMNS:
        return [line]
    lines, used = [], 0
    for row in textwrap.wrap(text, COLUMNS, drop_whitespace=False, break_on_hyphens=False):
        begin, used = used, used + len(row)
        lines.append(cut(line, begin, used))
    return lines


def cut(line: List[Piece], begin: int, end: int) -> List[Piece]:
    """Returns the characters of a line from `begin` to `end`."""
    found, position = [], 0
    for text, style in line:
        part = text[max(begin - position, 0) : max(end - position, 0)]
        if part:
            found.append((part, style))
        position += len(text)
    return found


def draw(lines: List[List[Piece]]) -> str:
    """Returns the picture."""
    width, height = round(COLUMNS * WIDTH + 2 * MARGIN), len(lines) * HEIGHT + 2 * MARGIN
    rows = []
    for number, line in enumerate(lines):
        spans = "".join(f"<tspan{style}>{html.escape(text, quote=False)}</tspan>" for text, style in line)
        rows.append(f'<text x="{MARGIN}" y="{MARGIN + HEIGHT * number + 14}" xml:space="preserve">{spans}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">\n'
        "<title>Commands of Belljar in a terminal, and what they print</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="{GROUND}"/>\n'
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14" fill="{TEXT}">\n'
        + "\n".join(rows)
        + "\n</g>\n</svg>\n"
    )


def main() -> None:
    """Draws or checks the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--belljar", type=Path, required=True, help="the program, with the others beside it")
    parser.add_argument("--check", action="store_true", help="compare the picture with what would be drawn")
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    lines: List[List[Piece]] = []
    with tempfile.TemporaryDirectory() as home:
        for command in COMMANDS:
            if lines:
                lines.append([])
            lines.append([("$ ", f' fill="{PROMPT}"'), (command, ' font-weight="bold"')])
            for line in shown(on_terminal(command, args.belljar.resolve(), home)):
                lines.extend(folded(pieces(line)))
    picture = draw(lines)
    if not args.check:
        args.picture.write_text(picture, encoding="utf-8")
    elif args.picture.read_text(encoding="utf-8") != picture:
        print(picture)
        sys.exit(f"{args.picture} is not what would be drawn; draw it anew: scripts/picture.py --belljar PROGRAM {args.picture}")


if __name__ == "__main__":
    main()
