import os
import signal
import time

import host

MARK = f"daemon-{os.getpid()}-{time.monotonic_ns()}"
FLAGS = ["--env", f"MARK={MARK}"]


def daemons():
    """Counts the processes on the host with the mark in their environment."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                count += f"MARK={MARK}".encode() in file.read().split(b"\0")
        except OSError:
            pass
    return count


begin = time.monotonic()
done = host.run("program.py", flags=FLAGS)
took = time.monotonic() - begin
rest = daemons()
assert done.output == "six daemons\n", done
host.say("ended", f"{done.kind}, {done.status}, " + ("at once" if took < 3 else f"after {took:.1f} s"))
host.say("daemons when the run was over", rest)


def interrupted(number):
    process = host.spawn("program.py", "stay", flags=FLAGS)
    process.stdout.readline()
    assert daemons() >= 6, "the daemons are not seen from here, so their absence would prove nothing"
    process.send_signal(number)
    process.wait(10)
    process.stdout.close()
    # A killed belljar cannot wait for the end of its sandbox.
    seconds = 0 if number == signal.SIGTERM else 3
    return 0 if host.wait_for(lambda: daemons() == 0, seconds) else daemons()


host.say("after a signal to belljar", interrupted(signal.SIGTERM))
host.say("after belljar was killed", interrupted(signal.SIGKILL))
