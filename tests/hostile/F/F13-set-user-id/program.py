import ctypes
import glob
import os
import stat
import struct
import subprocess

import probe

probe.say("no new privileges", probe.status("NoNewPrivs"))
kinds = {probe.status(f"Cap{name}") for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")}
probe.say("capabilities", " ".join(sorted(kinds)) + " ×5")
with open("/proc/self/mountinfo") as lines:
    without = [line.split()[4] for line in lines if "nosuid" not in line.split()[5].split(",")]
probe.say("mounts without nosuid", ", ".join(without) or "none")

gained = []
for path in glob.glob("/usr/bin/*") + glob.glob("/usr/sbin/*"):
    try:
        mode = os.stat(path).st_mode
    except OSError:
        continue
    if not stat.S_ISREG(mode) or not mode & (stat.S_ISUID | stat.S_ISGID):
        continue
    # Its ids are visible while it runs, whatever it does.
    child = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with open(f"/proc/{child.pid}/status") as lines:
            ids = {word for line in lines if line.startswith(("Uid:", "Gid:")) for word in line.split()[1:]}
        if ids - {"1000"}:
            gained.append(path)
    except OSError:
        pass
    child.kill()
    child.wait()
probe.say("the system's programs", ", ".join(gained) or "no gain")

for place in ("own", "/m/own"):
    with open(place, "w") as file:
        file.write("own")
    os.chmod(place, 0o755)


def outcome_of(attempt):
    try:
        attempt()
        return "ok"
    except OSError as error:
        return probe.name_of(error.errno)


def twice(name, attempt):
    """Tries it at home and on the host's mount, with the same answer."""
    answers = [outcome_of(lambda: attempt("")), outcome_of(lambda: attempt("/m/"))]
    probe.say(name, answers[0] if answers[0] == answers[1] else " and ".join(answers))


twice("chmod u+s", lambda at: os.chmod(at + "own", 0o4755))
twice("chmod g+s", lambda at: os.chmod(at + "own", 0o2755))
twice("fchmod u+s", lambda at: os.fchmod(os.open(at + "own", os.O_RDWR), 0o4755))


def fchmodat2(at):
    returned, error = probe.raw(452, -100, ctypes.c_char_p((at + "own").encode()), 0o4755, 0)
    if returned == -1:
        raise OSError(error, "")


twice("fchmodat2 u+s", fchmodat2)
twice("create u+s", lambda at: os.open(at + "made", os.O_CREAT | os.O_WRONLY, 0o6755))
twice("mknod u+s", lambda at: os.mknod(at + "node", stat.S_IFREG | 0o4755))


def openat2(at):
    how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o4755, 0)
    returned, error = probe.raw("openat2", -100, ctypes.c_char_p((at + "made2").encode()), ctypes.c_char_p(how), 24)
    if returned == -1:
        raise OSError(error, "")


twice("openat2 u+s", openat2)
try:
    os.mkdir("/m/directory", 0o2777)
    os.chmod("/m/directory", 0o2777)
    probe.say("a directory with g+s", "has it")
except OSError as error:
    bit = os.stat("/m/directory").st_mode & stat.S_ISGID
    probe.say("a directory with g+s", "has it" if bit else probe.name_of(error.errno))
capability = struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0, 0)
twice("security.capability", lambda at: os.setxattr(at + "own", "security.capability", capability))
mode = os.stat("id").st_mode & (stat.S_ISUID | stat.S_ISGID)
says = subprocess.run(["./id", "-u"], capture_output=True, text=True).stdout.strip()
probe.say("a program put in with u+s", f"{'the bit' if mode else 'no such bit'}, {'no gain' if says == '1000' else says}")
probe.errno("setuid 0", lambda: os.setuid(0))
