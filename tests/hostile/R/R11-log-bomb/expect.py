import errno
import json
import os

import host

# Records of the kernel's log, from now on.
log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
os.lseek(log, 0, os.SEEK_END)
done = host.run("program.py")
host.relay(done)
records = 0
kills = False
while True:
    try:
        text = os.read(log, 16384).decode(errors="replace").partition(";")[2]
        # Others that use the machine mount file systems, and have processes killed for memory, with a long report each.
        kills = kills or "invoked oom-killer" in text
        if not (kills or text.startswith(("EXT4-fs", "loop", "squashfs"))):
            records += 1
        kills = kills and "Killed process" not in text
    except BlockingIOError:
        break
    except OSError as error:
        # Overwritten before it was read: there were many.
        if error.errno != errno.EPIPE:
            raise
        records += 10_000
# The kernel logs at most ten crashes in five seconds, of two lines each, and others may crash as well.
host.say("kernel log", "hardly longer" if records < 150 else f"{records} records")
host.say("standard error of belljar", "short" if len(done.stderr) < 200 else f"{len(done.stderr)} characters")
host.say("result", "short" if len(json.dumps(done.result)) < 8192 else f"{len(json.dumps(done.result))} characters")
