import host


def judge(done, share):
    """Compares the CPU time used with the limit. On a busy machine it is less."""
    used = done.result["cpu_ms"] / done.result["wall_ms"]
    # Besides 5 %: the rest of a time slice, and a period of 100 ms that began before.
    return "as limited" if 0.01 < used <= 1.05 * share + 0.02 + 50 / done.result["wall_ms"] else f"{used:.2f}"


with host.Neighbour() as neighbour:
    quiet = host.percentile(neighbour.latencies(300), 0.99)
    attack = host.spawn("program.py", "spin", flags=["--cpus", "0.5"], json_result=True)
    loud = host.percentile(neighbour.latencies(50_000, until=lambda: attack.poll() is not None), 0.99)
    done = host.finish(attack)
host.say("half a processor", judge(done, 0.5))
host.say("a twentieth", judge(host.run("program.py", "spin", flags=["--cpus", "0.05"], timeout=60), 0.05))
slower = loud > max(2 * quiet, 0.05)
host.say("slowest answers of the neighbour", f"{loud * 1000:.1f} ms, before {quiet * 1000:.1f} ms" if slower else "as before")
host.relay(host.run("program.py", "ask"))
