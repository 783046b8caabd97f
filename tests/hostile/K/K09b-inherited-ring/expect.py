import ctypes
import os
import subprocess

import host

SETUP = 425
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(SETUP, 8, ctypes.create_string_buffer(120))
if ring < 0:
    host.skip(f"this kernel does not provide io_uring: {os.strerror(ctypes.get_errno())}")
# At a number above those that belljar uses itself.
inherited = os.dup2(ring, 77, inheritable=True)
done = subprocess.run(host.command("program.py"), pass_fds=[inherited], capture_output=True, check=False)
host.relay(host.Run(done.returncode, done.stdout, done.stderr))
host.say("ring on the host afterwards", "usable" if libc.syscall(SETUP + 1, ring, 0, 0, 0, 0, 0) == 0 else "gone")
