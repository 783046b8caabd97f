import host

# This memory belongs to no process, so the kernel may kill any of them: each has its own sandbox.
for name in ["memfd", "System V shared memory", "POSIX shared memory", "shared mapping", "file in /tmp", "file at home"]:
    host.say(name, host.run("program.py", name).kind)
host.relay(host.run("program.py"))
