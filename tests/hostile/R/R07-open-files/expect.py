import host


def open_files():
    with open("/proc/sys/fs/file-nr", encoding="ascii") as file:
        return int(file.read().split()[0])


before, most = open_files(), 0
attack = host.spawn("program.py", json_result=True)
while not host.wait_for(lambda: attack.poll() is not None, seconds=0.02):
    most = max(most, open_files())
host.relay(host.finish(attack))
# 32 processes with 256 each, and some for Belljar and other programs.
grown = most - before
host.say("files of the host", "as many as the limits allow" if grown < 32 * 256 + 1500 else f"{grown} more")
