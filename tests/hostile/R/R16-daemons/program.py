import ctypes
import os
import signal
import sys
import time

reader, writer = os.pipe()
for kind in range(6):
    if os.fork() == 0:
        os.setsid()
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        if os.fork() == 0:
            os.setsid()
            PR_SET_NAME, PR_SET_PDEATHSIG = 15, 1
            ctypes.CDLL(None).prctl(PR_SET_NAME, b"kworker/0:1", 0, 0, 0)
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
            os.write(writer, b"x")
            if kind % 2:
                os.closerange(0, 256)
            os.chdir("/")
            end = time.monotonic() + 30
            while time.monotonic() < end:
                time.sleep(1)
        os._exit(0)
ready = b""
while len(ready) < 6:
    ready += os.read(reader, 6)
os.write(1, b"six daemons\n")
if len(sys.argv) > 1:
    time.sleep(15)
