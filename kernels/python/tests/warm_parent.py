"""A prepared parent that forks kernels, as for a warm start, for the tests.

Usage: warm_parent.py KERNEL FD MODULES…; it reads one line of JSON for each fork: {"env": {…}, "cwd": "…"}, with the control socket
passed along, and writes the child's process id.
"""

import json
import os
import socket
import sys


def main():
    source, fd, *modules = sys.argv[1:]
    del sys.path[0]
    with open(source) as file:
        exec(compile(file.read(), "<belljar kernel file>", "exec"), {"__name__": "_belljar_file"})
    from _belljar import enter
    from _belljar import warm as k
    from _belljar.start import report_failure

    sys.argv = [""]
    kernel = k.prepare(modules)
    sys.path.insert(0, "")
    # The number of madvise(2), which the host sends otherwise.
    enter.use_huge_pages(enter.Calls({"madvise": {"x86_64": 28, "aarch64": 233}[os.uname().machine]}))
    # Created once before the forks, so that a child that is not reseeded is detected.
    sock = socket.socket(fileno=int(fd))
    sock.sendall(json.dumps({"threads": os.listdir("/proc/self/task"), "modules": sorted(sys.modules)}).encode() + b"\n")
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 1)
        if not data:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            sock.close()
            try:
                k.reseed()
                k.settle(**json.loads(data))
                k.check_packages()
            except k.Failed as error:
                report_failure(fds[0], str(error))
            kernel.connect(fds[0])
            kernel.serve()
        os.close(fds[0])
        sock.sendall(b"%d\n" % pid)


if __name__ == "__main__":
    main()
