import host

SHARE = 0.2

with host.Neighbour() as neighbour:
    quiet = host.percentile(neighbour.latencies(300), 0.99)
    attack = host.spawn("program.py", "spin", flags=["--cpus", str(SHARE)], json_result=True)
    loud = host.percentile(neighbour.latencies(50_000, until=lambda: attack.poll() is not None), 0.99)
    done = host.finish(attack)
share = done.result["cpu_ms"] / done.result["wall_ms"]
# Beside 5 %, a slice of 5 ms on each processor for each period of 100 ms, and a period that was begun before. On a busy
# machine it gets less.
is_held = 0.02 < share <= 1.05 * SHARE + 0.05 + 50 / done.result["wall_ms"]
host.say("share of a processor", "as limited" if is_held else f"{share:.2f}")
slower = loud > max(2 * quiet, 0.05)
host.say("slowest answers of the neighbour", f"{loud * 1000:.1f} ms, before {quiet * 1000:.1f} ms" if slower else "as before")
host.relay(host.run("program.py", "ask"))
