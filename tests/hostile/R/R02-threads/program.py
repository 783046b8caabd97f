import ctypes
import os
import sys

import probe

LIMIT, MOST = 64, 400
libc = probe.libc
# Each thread runs libc's own sleep, with the seconds as its argument.
sleep = ctypes.cast(libc.sleep, ctypes.c_void_p)
error, made = 0, 1
while made < MOST and error == 0:
    thread = ctypes.c_ulong()
    error = libc.pthread_create(ctypes.byref(thread), None, sleep, ctypes.c_void_p(2))
    made += error == 0
probe.say("pthread_create", probe.name_of(error) if error else "ok")
probe.say("threads at once", "within the limit" if made <= LIMIT else made)


def fork():
    if os.fork() == 0:
        os._exit(0)


probe.errno("a fork beside them", fork)
sys.stdout.flush()
os._exit(3)
