import os
import pty
import select

import host

with open(os.path.join(host.LIB, "probe.py"), encoding="utf-8") as file:
    PROBE = file.read()
with open(host.path("program.py"), encoding="utf-8") as file:
    PROGRAM = file.read()


def on_a_terminal(name, argv):
    """Runs a command on a controlling terminal, as an operator would, and prints its probes and what was typed into the terminal."""
    pid, master = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    said = b""
    try:
        while piece := os.read(master, 4096):
            said += piece
    except OSError:
        # All processes have closed the other end.
        pass
    os.waitpid(pid, 0)
    for line in said.decode(errors="replace").replace("\r\n", "\n").splitlines():
        # A terminal echoes what is typed into it, so that is seen here.
        if ": " in line or "typed-by-the-sandbox" in line:
            print(f"{name}, {line}", flush=True)
    os.close(master)


on_a_terminal("run", host.command("program.py", json_result=False))
inline = f"import sys, types\nprobe = types.ModuleType('probe')\nexec({PROBE!r}, probe.__dict__)\nsys.modules['probe'] = probe\n{PROGRAM}"
on_a_terminal("shell", [host.BELLJAR, "shell", "--quiet", *host.FLAGS, "--", "python3", "-c", inline])


def left_in_the_terminal():
    """Runs the program on a terminal that stays open, and checks its input afterwards."""
    master, slave = os.openpty()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.login_tty(slave) if hasattr(os, "login_tty") else [os.dup2(slave, fd) for fd in (0, 1, 2)]
        argv = host.command("program.py", json_result=False)
        os.execv(argv[0], argv)
    said = b""
    while b"end: " not in said and select.select([master], [], [], host.BUDGET)[0]:
        said += os.read(master, 4096)
    os.waitpid(pid, 0)
    typed = select.select([slave], [], [], 0)[0]
    return "something" if typed or b"typed-by-the-sandbox" in said else "nothing"


host.say("typed into the operator's terminal", left_in_the_terminal())
