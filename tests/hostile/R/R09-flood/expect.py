import os
import tempfile
import time

import host

CODE = """
import os
line = b"y\\n" * 32768
if os.fork() == 0:
    while True: os.write(2, line)
os.write(1, b"the very beginning\\n")
while True: os.write(1, line)
"""
MIB = 1 << 20


def most_memory(pid):
    """Returns the peak memory of a process, in bytes; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as lines:
            return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def flood(code, *flags):
    """Runs the code, and returns the result and the peak memory of Belljar's process."""
    with tempfile.TemporaryFile() as out:
        process = host.spawn(code=code, language="python", flags=flags, json_result=True, stdout=out)
        most = 0
        while not host.wait_for(lambda: process.poll() is not None, seconds=0.01):
            most = max(most, most_memory(process.pid))
        out.seek(0)
        return host.Run(process.returncode, out.read(), process.stderr.read()), most


_, idle = flood("import time; time.sleep(0.3)", "--output", "1m")
with tempfile.TemporaryDirectory() as logs:
    done, most = flood(CODE, "--output", "1m", "--timeout", "800ms", "--log-dir", logs, "--log", "3m")
    sizes = [os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(logs) for name in names]
host.say("ended", done.kind)
for name in ["stdout", "stderr"]:
    stream = done.result[name]
    kept = len(stream["data"].encode())
    is_short = stream["truncated"] and kept <= MIB and stream["bytes"] - stream["omitted_bytes"] == kept
    host.say(f"kept of {name}", "head and tail" if is_short else f"{kept} of {stream['bytes']}")
assert done.result["stdout"]["data"].startswith("the very beginning\n")
grown = (most - idle) / MIB
# A MiB is kept twice, once more as text, and some MiB are in flight.
host.say("memory of the host's process", "hardly more" if 0 < grown < 24 else f"{grown:.1f} MiB more")
_, larger = flood(CODE, "--output", "8m", "--timeout", "800ms")
host.say("with a larger --output", "more" if larger - most > 6 * MIB else f"{(larger - most) / MIB:.1f} MiB more")
host.say("log on the host", "within --log" if sizes and max(sizes) <= 3 * MIB else str(sizes))

# Nothing is read: the pipe fills, then the buffers, and then the program blocks.
process = host.spawn(code="import os\nwhile True: os.write(1, bytes(65536))", language="python", flags=["--timeout", "5s"])
time.sleep(0.7)
first = most_memory(process.pid)
time.sleep(0.5)
second = most_memory(process.pid)
# The kernel counts pages for each processor by itself, so that a peak that it tells may be some pages lower later (proc(5)).
grown = (second - first) / MIB
process.terminate()
host.finish(process)
host.say("without a reader", "the program waits" if abs(grown) < 1 and first - idle < 24 * MIB else f"{grown:.1f} MiB more")
