import host


def state():
    """Returns the modules, the kernel's taint, and the program that loads modules."""
    found = []
    for path in ("/proc/modules", "/proc/sys/kernel/tainted", "/proc/sys/kernel/modprobe"):
        try:
            with open(path, encoding="ascii") as file:
                # Without the reference counts, which change by themselves.
                found.append([line.split()[0] for line in file if line.strip()])
        except FileNotFoundError:
            found.append([])
    return found


before = state()
host.relay(host.run("program.py"))
host.say("modules of the host", "unchanged" if state() == before else "changed")
