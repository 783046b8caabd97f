import base64
import json
import os
import pty
import subprocess
import tempfile

import host

ESCAPES = b"\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b31m\xc2\x9b31m\x08\x0d\x7f"


def code_for(data, then=""):
    return f"import os\ndata = {data!r}\nwhile data: data = data[os.write(1, data):]\n{then}"


def has_escapes(text, line_ends=b"\n"):
    """Reports whether a terminal would interpret any of it: C0 and DEL, and C1 encoded in UTF-8."""
    controls = [byte for byte in text if (byte < 32 or byte == 127) and byte not in line_ends]
    c1 = any(0x80 <= ord(letter) < 0xA0 for letter in text.decode(errors="replace"))
    return bool(controls) or c1


def stream(done, name="stdout"):
    found = done.result[name]
    data = base64.b64decode(found["data"]) if found["encoding"] == "base64" else found["data"].encode()
    return found["encoding"], data


# Bytes.
every = bytes(range(256)) * 64
encoding, data = stream(host.run(code=code_for(every), language="python"))
host.say("every byte", f"{encoding}, {'exact' if data == every else 'changed'}")
text = "NUL \0, escape \x1b]0;owned\x07, C1 \x9b, bidi \u202e, noncharacter \uffff, \U0001f514\r\n".encode()
encoding, data = stream(host.run(code=code_for(text), language="python"))
host.say("text with NUL and escapes", f"{encoding}, {'exact' if data == text else 'changed'}")
line = "import os\nfor _ in range(64): os.write(1, b'x' * (1 << 20))"
done = host.run(code=line, language="python", flags=["--output", "64k"])
found = done.result["stdout"]
is_whole = done.kind == "exited" and found["bytes"] == 64 << 20 and found["omitted_bytes"] == (64 << 20) - (64 << 10)
host.say("a line without end", "head and tail" if is_whole and found["truncated"] else str(done)[:200])
cut = host.run(code="import os\nos.write(1, b'x' + '\u20ac'.encode() * 10000)", language="python", flags=["--output", "4k"])
found = cut.result["stdout"]
is_whole = found["encoding"] == "utf-8" and set(found["data"]) == {"x", "\u20ac"}
host.say("a character cut in two", "whole characters" if is_whole else found["encoding"])

# The JSON itself, as a terminal receives it.
argv = host.command(code=code_for(ESCAPES + text, "open('\\x1b]0;name\\x07', 'w')"), language="python")
raw = subprocess.run(argv, capture_output=True, check=False)
host.say("escapes in the JSON", "some" if has_escapes(raw.stdout) or raw.stderr else "none")
argv = host.command(code=code_for(text), language="python", flags=["--events"], json_result=False)
raw = subprocess.run(argv, capture_output=True, check=False)
lines = [json.loads(line) for line in raw.stdout.splitlines()]
result = lines[-1]
is_exact = all(found["data"].encode() == text for found in (result["stdout"], next(line for line in lines if line["event"] == "stdout")))
host.say("events", ("escapes" if has_escapes(raw.stdout) else "no escapes") + (", exact" if is_exact else ", changed"))


def on_terminal(argv, cwd):
    """Runs a command, and returns what it writes to a terminal by standard error."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(argv, stdin=follower, stdout=subprocess.DEVNULL, stderr=follower, cwd=cwd)
    os.close(follower)
    said = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        said += piece
    process.wait()
    os.close(leader)
    return said


def orders(said):
    """Reports whether there are escapes other than the terminal's line ends and Belljar's colours."""
    plain = said.replace(b"\r\n", b"\n")
    for colour in [b"\x1b[0m", b"\x1b[1m", b"\x1b[31m", b"\x1b[1;31m", b"\x1b[2m", b"\x1b[33m", b"\x1b[36m", b"\x1b[32m"]:
        plain = plain.replace(colour, b"")
    return has_escapes(plain)


bell = [host.BELLJAR, "run", *host.FLAGS]
weird = "\x1b]0;owned\x07\x9b2J\x1b[2J"
with tempfile.TemporaryDirectory() as place:
    # Errors for which Belljar has hints, with escapes in them.
    printed = [
        f"ModuleNotFoundError: No module named '{weird}'", f"OSError: [Errno 28] No space left on device: '{weird}'",
        f"OSError: [Errno 24] Too many open files: '{weird}'", f"sh: {weird}: command not found",
    ]
    bad = []
    for line in printed:
        # To a stream that is used only for Belljar's hints.
        code = f"import sys\nsys.stderr.write({line + chr(10)!r})\nsys.exit(1)"
        done = host.run(code=code, language="python")
        if has_escapes((done.result["hint"] or "").encode()):
            bad.append(line)
    host.say("messages about what code printed", f"escapes after {bad!r}" if bad else "no escapes")
    script = os.path.join(place, f"{weird}.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write("open('out', 'w')")
    tries = {
        "a script that is missing": [*bell, f"missing{weird}.py"],
        "a script in no language": [*bell, f"script.{weird}"],
        "a language": [*bell, "-l", weird, "-c", "1"],
        "a file to put in": [*bell, "-f", weird, "-l", "sh", "-c", "exit 1"],
        "a file to bring out": [*bell, "-o", f"gone{weird}", "-l", "sh", "-c", "exit 0"],
        "no file to bring out": [*bell, "-o", weird, "-l", "python", "-c", f"import os; os.mkdir({weird!r})"],
        "a fifo to bring out": [*bell, "-o", weird, "-l", "python", "-c", f"import os; os.mkfifo({weird!r})"],
        "a link to bring out": [*bell, "-o", weird, "-l", "python", "-c", f"import os; os.symlink('/etc/passwd', {weird!r})"],
        "a long name": [*bell, "-o", weird, "--disk", "1m", "-l", "python", "-c", f"open({weird!r}, 'w').truncate(1 << 40)"],
        "an environment": [*bell, "--env", f"{weird}=1", "-l", "sh", "-c", "exit 0"],
        "a mount": [*bell, "--mount", f"/{weird}:/{weird}", "-l", "sh", "-c", "exit 0"],
        "a host name": [*bell, "--hostname", weird, "-l", "sh", "-c", "exit 0"],
        "a size": [*bell, "--memory", weird, "-l", "sh", "-c", "exit 0"],
        "a log": [*bell, "--log-dir", f"{place}/none{weird}", "--output", "4k", "-l", "sh", "-c", "head -c 100000 /dev/zero"],
        "a spec": [*bell, "--spec", f"{weird}.toml", "-l", "sh", "-c", "exit 0"],
        "the time": [*bell, "--timeout", "200ms", script],
        "a program that is killed": [*bell, script.replace(".py", ".none")],
    }
    bad = [name for name, argv in tries.items() if orders(on_terminal(argv, place))]
    host.say("messages about names", f"escapes about {', '.join(bad)}" if bad else "no escapes")

# The program's own output is passed on unchanged, as in ssh.
raw = subprocess.run(host.command(code=code_for(ESCAPES), language="python", json_result=False), capture_output=True, check=False)
host.say("what the program writes itself", "passed on to the byte" if raw.stdout == ESCAPES else repr(raw.stdout))
