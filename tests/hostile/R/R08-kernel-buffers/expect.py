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


before, most = socket_memory(), 0
for name in ["pipes", "Unix sockets", "datagrams", "TCP", "UDP"]:
    attack = host.spawn("program.py", name, json_result=True)
    while not host.wait_for(lambda: attack.poll() is not None, seconds=0.02):
        most = max(most, socket_memory())
    done = host.finish(attack)
    if done.kind == "exited":
        host.relay(done)
    else:
        host.say(name, done.kind)
grown = (most - before) >> 20
host.say("memory of IP sockets on the machine", "hardly more" if grown <= 64 else f"{grown} MiB more")
