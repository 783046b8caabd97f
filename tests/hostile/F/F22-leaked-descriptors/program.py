import os
import sys

import probe


def open_ones():
    # The descriptor that lists them is open meanwhile.
    return [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}") or int(name) < 3]


numbers = sorted(number for number in open_ones() if number < 3 or os.readlink(f"/proc/self/fd/{number}") != f"/proc/{os.getpid()}/fd")
probe.say("descriptors", " ".join(map(str, numbers)))
leads = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
known = all(lead.startswith(("pipe:", "socket:", "/dev/null", "/dev/pts")) for lead in leads)
probe.say("what 0 to 2 are", "no file of the host" if known else " ".join(leads))


def first_error(attempt):
    answers = set()
    for number in map(int, sys.argv[1:]):
        try:
            attempt(number)
            answers.add("ok")
        except OSError as error:
            answers.add(probe.name_of(error.errno))
    return " ".join(sorted(answers))


probe.say("inherited directory", first_error(os.fstat))
probe.say("fchdir", first_error(os.fchdir))
probe.say("openat", first_error(lambda number: os.open("secret", os.O_RDONLY, dir_fd=number)))
probe.say("working directory", os.getcwd())
os.chdir("../" * 20)
same = os.stat(".").st_ino == os.stat("/").st_ino and os.path.isdir("home/user") and not os.path.isdir("root/.ssh")
probe.say("upwards from it", "the sandbox's root" if same and os.getcwd() == "/" else os.getcwd())
probe.errno("descriptors of the guest", lambda: os.listdir("/proc/1/fd"))
returned, error = probe.raw("pidfd_open", 1, 0)
if returned == -1:
    probe.say("pidfd_getfd of the guest", probe.name_of(error))
else:
    probe.syscall("pidfd_getfd of the guest", "pidfd_getfd", returned, 3, 0)


def of_child():
    os.closerange(3, 4096)
    return os.popen("for f in /proc/self/fd/*; do echo ${f##*/}; done").read()


probe.say("descriptors of a child", " ".join(sorted(set(os.popen("ls /proc/self/fd").read().split()) & {"0", "1", "2", *sys.argv[1:]})))
