import json
import os
import time

import host

begin = time.monotonic()
done = host.run("program.py", "10000", flags=["--memory", "256m"])
elapsed = time.monotonic() - begin
host.relay(done)
host.say("the run", "ended well" if done.status == 0 else f"{done}")
host.say("the result", "is bounded" if done.result and len(json.dumps(done.result)) < 1 << 20 else "is not bounded")
work = host.scratch()
done = host.run(code="true", language="sh", flags=["-o", "d/" * 2500 + f"x:{work}/x"])
host.say("bring by a path of 5,000 bytes", "refused" if done.status == 125 and not os.listdir(work) else f"{done}")
host.say("time", "below 10 s" if elapsed < 10 else f"{elapsed:.1f} s")
done = host.run("program.py", "10000", flags=["--inodes", "2000"])
said = done.output.strip()
host.say("levels with 2,000 inodes", "ENOSPC before 2,000" if said.startswith("ENOSPC") and int(said.split()[-1]) < 2000 else said)
