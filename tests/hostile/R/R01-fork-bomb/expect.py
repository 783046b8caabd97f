import time

import host

with host.Neighbour() as neighbour:
    quiet = host.percentile(neighbour.latencies(300), 0.99)
    attack = host.spawn("program.py", json_result=True)
    loud = host.percentile(neighbour.latencies(20_000, until=lambda: attack.poll() is not None), 0.99)
    host.relay(host.finish(attack))
# A short wait for a processor is harmless; a queue is not.
slower = loud > max(2 * quiet, 0.05)
host.say("slowest answers of the neighbour", f"{loud * 1000:.1f} ms, before {quiet * 1000:.1f} ms" if slower else "as before")

# The bomb is still asleep when belljar is terminated.
code = "import os, time\nfor _ in range(8):\n  try: os.fork()\n  except OSError: pass\nprint(flush=True)\ntime.sleep(3)"
attack = host.spawn(code=code, language="python")
attack.stdout.readline()
begin = time.monotonic()
attack.terminate()
host.finish(attack)
took = time.monotonic() - begin
host.say("the end after the bomb", "within a second" if took < 1 else f"after {took:.1f} s")
