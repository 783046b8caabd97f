import ctypes
import os
import resource
import signal
import socket
import stat
import subprocess
import sys

import probe

what, key, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
CREATE, REMOVE = 0o1000, 0


def look():
    """Prints everything that could distinguish two runs, except times and the run's own name."""
    for variable, value in sorted(os.environ.items()):
        if variable != "BELLJAR_SANDBOX":
            print("environment", variable, value)
    for top in ["/home", "/tmp", "/dev", "/run", "/var", "/etc"]:
        for directory, _, names in sorted(os.walk(top)):
            for entry in sorted(names):
                path = os.path.join(directory, entry)
                status = os.lstat(path)
                # The size of directories depends on the file system.
                size = status.st_size if stat.S_ISREG(status.st_mode) else 0
                if path.startswith("/etc/") and os.path.ismount(path):
                    continue
                print("file", path, oct(status.st_mode), status.st_uid, status.st_gid, status.st_nlink, size)
    print("processes", sorted(int(pid) - os.getpid() for pid in os.listdir("/proc") if pid.isdigit() and int(pid) > 1))
    print("pid", os.getpid())
    for kind in ["tcp", "udp", "unix", "tcp6", "udp6", "raw"]:
        try:
            with open(f"/proc/net/{kind}") as lines:
                print("sockets", kind, len(lines.readlines()))
        except OSError:
            pass
    for kind in ["shm", "sem", "msg"]:
        try:
            with open(f"/proc/sysvipc/{kind}") as lines:
                print("sysv", kind, lines.read())
        except OSError as error:
            print("sysv", kind, error)
    for keyring in (-1, -2, -3, -4, -5):
        print("keyring", keyring, probe.outcome("keyctl", 6, keyring, 0, 0))
    found, _ = probe.raw("shmget", key, 4096, 0)
    print("shared memory", found if found == -1 else "there")
    for limit in range(16):
        print("limit", limit, resource.getrlimit(limit))
    print("mask", oct(os.umask(0)), "priority", os.getpriority(os.PRIO_PROCESS, 0), "policy", os.sched_getscheduler(0))
    print("signals", [signal.getsignal(number) for number in (1, 2, 15)], signal.pthread_sigmask(signal.SIG_BLOCK, []))
    with open("/proc/self/status") as lines:
        print("".join(line for line in lines if line.startswith(("Sig", "Shd", "Cap", "Seccomp:", "NoNewPrivs", "Groups", "Uid"))))
    with open("/proc/self/mountinfo") as lines:
        # Without the ids of the mounts and of the file systems.
        print("mounts", sorted(" ".join(line.split()[3:6]) for line in lines))
    for place in ["/home/user", "/tmp", "/dev/shm"]:
        status = os.statvfs(place)
        print("disk", place, status.f_blocks, status.f_files, status.f_files - status.f_ffree)
    print("host", socket.gethostname(), os.getcwd(), os.getsid(0) == os.getpid())
    for path in ["/proc/self/oom_score_adj", "/proc/self/timerslack_ns", "/proc/self/personality", "/proc/self/loginuid"]:
        try:
            with open(path) as file:
                print(path, file.read().strip())
        except OSError as error:
            print(path, error.errno)


def leave():
    for place in ["/home/user", "/tmp", "/dev/shm"]:
        for made in [name, ".bashrc", ".bash_history", ".profile", "sitecustomize.py", ".cache"]:
            with open(f"{place}/{made}", "w") as file:
                file.write(name)
        os.symlink("/etc/passwd", f"{place}/link")
        os.mkdir(f"{place}/directory")
        os.utime(place, (1, 1))
        os.chmod(place, 0o1770 if place != "/home/user" else 0o700)
    os.environ[name] = name
    os.umask(0)
    shared, _ = probe.raw("shmget", key, 4096, CREATE | 0o666)
    probe.raw("add_key", ctypes.c_char_p(b"user"), ctypes.c_char_p(name.encode()), ctypes.c_char_p(b"x"), 1, -4)
    sockets = []
    for port in range(20000, 20020):
        made = socket.socket()
        made.bind(("0.0.0.0", port))
        made.listen()
        sockets.append(made)
    made = socket.socket(socket.AF_UNIX)
    made.bind("\0" + name)
    os.setpriority(os.PRIO_PROCESS, 0, 10)
    # A process that ignores signals, in its own session.
    code = "import os,signal,time\nos.setsid()\nfor n in range(1, 32):\n  try: signal.signal(n, signal.SIG_IGN)\n  except (OSError, ValueError): pass\ntime.sleep(30)"
    subprocess.Popen([sys.executable, "-c", code, name], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print("left everything" if shared != -1 else "left nothing", flush=True)


def tidy():
    found, _ = probe.raw("shmget", key, 4096, 0)
    if found != -1:
        probe.libc.shmctl(found, REMOVE, None)


{"look": look, "leave": leave, "tidy": tidy}[what]()
