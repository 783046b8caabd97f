import sys

import probe

# Inotify instances are counted for each user; the usual limit is 128.
count = 0
while count < 900:
    number, error = probe.raw("inotify_init1", 0)
    if number == -1:
        break
    count += 1
print(count, flush=True)
if sys.argv[1] == "hold":
    sys.stdin.readline()
