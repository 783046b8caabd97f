import sys

import probe

# Instances of inotify are counted for each user; 128 are usual.
count = 0
while count < 900:
    number, error = probe.raw("inotify_init1", 0)
    if number == -1:
        break
    count += 1
print(count, flush=True)
if sys.argv[1] == "hold":
    sys.stdin.readline()
