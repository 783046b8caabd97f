import os
import signal
import time

import probe

LIMIT = 64


def hoard():
    """Creates children that end without being waited for."""
    made = 0
    try:
        while made < 150:
            if os.fork() == 0:
                os._exit(0)
            made += 1
    except OSError as error:
        answer = probe.name_of(error.errno)
        return f"{answer} within the limit" if made < LIMIT else f"{answer} after {made}"
    return "ok"


def orphans():
    """Counts the children of the first process besides this program: zombies, and those about to become zombies."""
    own = (os.getpid(), os.getppid())
    count = 0
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in own:
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as file:
                count += file.read().rsplit(") ", 1)[1].split()[1] == "1"
        except OSError:
            pass
    return count


def forks(wanted):
    """Starts that many processes at once."""
    children = []
    try:
        for _ in range(wanted):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
        return "ok"
    except OSError as error:
        return f"{probe.name_of(error.errno)} after {len(children)}"
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def settle():
    """Waits until no orphans are left, and returns their number. One that has not ended yet still occupies the process table."""
    deadline = time.monotonic() + 5
    while (count := orphans()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return count


probe.say("children that nobody waits for", probe.in_child(hoard))
settle()
made, deadline = 0, time.monotonic() + 10
while made < 3000 and time.monotonic() < deadline:
    # A child that leaves thirty orphans behind, which end at once.
    pid = os.fork()
    if pid == 0:
        left = 0
        while left < 30:
            try:
                if os.fork() == 0:
                    os._exit(0)
                left += 1
            except BlockingIOError:
                # The first process is still reaping.
                time.sleep(0.001)
        os._exit(0)
    os.waitpid(pid, 0)
    made += 30
probe.say("orphans", made)
probe.say("zombies of the first process", settle())
probe.say("processes afterwards", forks(LIMIT - 4))
probe.errno("kill the first process", lambda: os.kill(1, signal.SIGKILL))
probe.errno("stop the first process", lambda: os.kill(1, signal.SIGSTOP))
probe.errno("its children's signal", lambda: os.kill(1, signal.SIGCHLD))
probe.errno("a real-time signal", lambda: os.kill(1, signal.SIGRTMIN))


def everybody():
    os.setsid()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(-1, signal.SIGUSR1)
    return "ok"


signal.signal(signal.SIGUSR1, signal.SIG_IGN)
probe.say("everybody", probe.in_child(everybody))
