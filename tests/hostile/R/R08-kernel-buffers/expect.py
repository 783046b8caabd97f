import os

import host

PAGE = os.sysconf("SC_PAGE_SIZE")


def socket_memory():
    """Returns the memory of TCP and UDP on the whole machine, in bytes."""
    total = 0
    with open("/proc/net/sockstat", encoding="ascii") as lines:
        for line in lines:
            words = line.split()
            if words[0] in ("TCP:", "UDP:"):
                total += int(words[words.index("mem") + 1]) * PAGE
    return total


def attack(name):
    """Returns by how many MiB an attack makes that memory grow at most."""
    before = most = socket_memory()
    running = host.spawn("program.py", name, json_result=True)
    while not host.wait_for(lambda: running.poll() is not None, seconds=0.02):
        most = max(most, socket_memory())
    done = host.finish(running)
    if done.kind == "exited":
        host.relay(done)
    else:
        host.say(name, done.kind)
    return (most - before) >> 20


def judge(grown, bound):
    return "hardly more" if grown <= bound else f"{grown} MiB more"


accepted = [attack(name) for name in ["pipes", "Unix sockets", "datagrams", "TCP", "UDP"]]
attack("remembered")
host.say("memory of IP sockets on the machine", judge(max(accepted), 64))
for name in ["unaccepted", "unaccepted, large buffers", "unaccepted, low-water mark"]:
    host.say(f"memory, {name}", judge(attack(name), 64))
# The limit itself, and what others on the machine hold meanwhile.
host.say("memory, unaccepted, exchanged", judge(attack("unaccepted, exchanged"), 128))
# Some more are made until they are counted.
host.say("memory, unaccepted, many", judge(attack("unaccepted, many"), 256))
