import host


def state():
    """Modules, whether the kernel is tainted, and what it runs to get modules."""
    found = []
    for path in ("/proc/modules", "/proc/sys/kernel/tainted", "/proc/sys/kernel/modprobe"):
        try:
            with open(path, encoding="ascii") as file:
                # Without the counts, which change by themselves.
                found.append([line.split()[0] for line in file if line.strip()])
        except FileNotFoundError:
            found.append([])
    return found


before = state()
host.relay(host.run("program.py"))
host.say("modules of the host", "unchanged" if state() == before else "changed")
