import base64
import json
import os
import subprocess

import host

NAMES = [
    b"new\nline", b"\x01control\x1b[31m", b"invalid \xff\xfe utf-8", "\u202ertl".encode(), b"-rf", b"--json", b"n" * 255,
    b"trailing space ", b"trailing.dot.", b" leading", b"*?[a]", b"back\\slash", b"quo'te\"s", b"$(id)`id`", b"..x", b"...",
    "ü".encode(), "u\u0308".encode(), b"\xc0\xae\xc0\xae", b"%2e%2e", b"~", b"#", b"CON", b"\r", b"\t",
]
WRITE = f"""
import os
for number, name in enumerate({NAMES!r}):
    with open(name, "wb") as file:
        file.write(b"content %d" % number)
"""
work = host.scratch()
result = json.loads(subprocess.run(host.command(code=WRITE, language="python"), capture_output=True, check=False).stdout)
listed = {}
for entry in result["files"]:
    path = entry["path"]
    listed[base64.b64decode(path) if entry["path_encoding"] == "base64" else path.encode()] = entry["size"]
wanted = {name: len(b"content %d" % number) for number, name in enumerate(NAMES)}
wrong = sorted(name for name in set(listed) | set(wanted) if listed.get(name) != wanted.get(name))
host.say("names in the result", "exact" if not wrong else repr(wrong))

# Each is copied out to a numbered path, and under its own name. The last colon ends the name.
outs = []
for number, name in enumerate(NAMES):
    outs.append(b"-o" + name + b":" + os.fsencode(f"{work}/{number}"))
own = os.path.join(work, "own")
os.mkdir(own)
for name in NAMES:
    outs.append(b"-o./" + name + b":" + os.fsencode(own) + b"/")
done = subprocess.run([*host.command(code=WRITE, language="python", flags=outs)], capture_output=True, check=False)
contents = [b"content %d" % number for number in range(len(NAMES))]


def read(*parts):
    try:
        with open(os.path.join(*parts), "rb") as file:
            return file.read()
    except OSError as error:
        return error
came = [read(work, str(number)) for number in range(len(NAMES))]
came_own = [read(os.fsencode(own), name) for name in NAMES]
exact = came == contents and came_own == contents and sorted(os.listdir(os.fsencode(own))) == sorted(NAMES)
host.say("files that came out", "exact" if exact else f"{done.stderr!r} {came!r} {came_own!r}")

code = "import os; print(sorted((name, open(name,'rb').read()) for name in os.listdir(b'.') if name not in (b'probe.py', b'main.py')))"
flags = [flag for name in NAMES for flag in (b"-f", os.fsencode(own) + b"/" + name + b":")]
done = subprocess.run(host.command(code=code, language="python", flags=flags), capture_output=True, check=False)
expected = str(sorted(zip(NAMES, contents)))
text = json.loads(done.stdout)["stdout"]["data"].strip() if done.stdout else done.stderr.decode(errors="replace")
host.say("files that went in", "exact" if text == expected else text)


def clean(data):
    return all(byte >= 32 or byte == 10 for byte in data) and b"\xe2\x80\xae" not in data

bad = []
for name in NAMES:
    argv = host.command(code="true", language="sh", flags=[b"-o", b"missing" + name + b":" + os.fsencode(work) + b"/x"], json_result=False)
    done = subprocess.run(argv, capture_output=True, check=False)
    if done.returncode != 125 or not clean(done.stderr) or done.stderr.count(b"\n") != 1:
        bad.append((name, done.stderr))
    if len(bad) > 3:
        break
host.say("a name that is missing", "no control character" if not bad else repr(bad))
argv = host.command(code="true", language="sh", flags=[b"-o", b"n" * 256 + b":" + os.fsencode(work) + b"/x"])
host.say("a name of 256 bytes", "refused" if subprocess.run(argv, capture_output=True, check=False).returncode == 125 else "not refused")
argv = host.command(code="import os\nfor n in %r: os.symlink('x', n)" % (NAMES,), language="python",
                    flags=[b"-o" + name + b":" + os.fsencode(f"{work}/y{number}") for number, name in enumerate(NAMES)], json_result=False)
done = subprocess.run(argv, capture_output=True, check=False)
host.say("output for people", "no control character" if clean(done.stderr) and done.returncode == 125 else repr(done.stderr))
