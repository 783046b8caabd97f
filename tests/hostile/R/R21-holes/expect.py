import os
import tempfile
import time

import host

MIB = 1 << 20
# Last, because it may take all memory if nothing stops it.
TERABYTE = """
import os, probe
file = os.open("huge", os.O_CREAT | os.O_RDWR, 0o600)
probe.say("fallocate 1 TiB", probe.outcome("fallocate", file, 0, 0, 1 << 40))
"""
GROWS = """
import os, time
with open("grows", "wb") as file:
    file.truncate(1 << 20)
if os.fork() == 0:
    end = time.monotonic() + 2
    while time.monotonic() < end:
        os.truncate("grows", 1 << 40)
        os.truncate("grows", 1 << 20)
    os._exit(0)
"""

with tempfile.TemporaryDirectory() as place:
    out = os.path.join(place, "endless")
    holes = os.path.join(place, "holes")
    begin = time.monotonic()
    done = host.run("program.py", flags=["-o", f"endless:{out}", "-o", f"holes:{holes}"])
    took = time.monotonic() - begin
    host.relay(done)
    sizes = {change["path"]: change["size"] for change in done.result["files"]}
    is_list = sizes.get("endless", 0) >= (1 << 63) - 1 or "endless" in sizes
    host.say("the list of changes", "lengths only" if is_list and took < 5 else f"{sizes} after {took:.1f} s")
    is_refused = not os.path.exists(out) and "at most" in done.stderr and done.status == 125
    host.say("brought out", "refused, and nothing on the host" if is_refused else f"{done.status}, {done.stderr}")
    with open(holes, "rb") as file:
        data = file.read()
    is_whole = data == b"begin" + bytes(60 * MIB - 8) + b"end"
    taken = os.stat(holes).st_blocks * 512
    host.say("brought out within the limit", "with its holes" if is_whole and taken < MIB else f"{len(data)} bytes, {taken} taken")
    del data
    grown = os.path.join(place, "grows")
    host.run(code=GROWS, language="python", flags=["-o", f"grows:{grown}"])
    size = os.path.getsize(grown) if os.path.exists(grown) else 0
    rest = [name for name in os.listdir(place) if name not in ("holes", "grows")]
    host.say("grows on its way", "within the limit" if size <= 64 * MIB and not rest else f"{size} bytes, {rest}")
host.relay(host.run(code=TERABYTE, language="python"))
