import os
import stat

import host

work = host.scratch()
shared, other = os.path.join(work, "shared"), os.path.join(work, "other")
os.mkdir(other)
victim = host.write(work, "victim", content="as it was")


def fresh():
    for name in os.listdir(other):
        os.unlink(os.path.join(other, name))
    host.write(victim, content="as it was")
    host.run(code="rm -rf /m/* /m/.[!.]*", language="sh", flags=mount) if os.path.isdir(shared) else os.mkdir(shared)
    os.chmod(shared, 0o777)
    sub = os.path.join(shared, "sub")
    os.mkdir(sub)
    os.chmod(sub, 0o777)


mount = ["--mount", f"{shared}:/m:rw"]


went_through = []


def through():
    if os.listdir(other) or host.read(victim) != "as it was":
        went_through.append(True)
        return "through the link"
    return "not through the link"


fresh()
host.run(code=f"echo evil > x; mv /m/sub /m/old; ln -s '{other}' /m/sub", language="sh",
         flags=[*mount, "-o", f"x:{shared}/sub/x"])
host.say("bring out below it", through())
os.unlink(os.path.join(shared, "sub"))
fresh()
host.run(code=f"echo evil > x; mv /m/sub /m/old; ln -s '{other}' /m/sub", language="sh",
         flags=[*mount, "-o", f"x:{shared}/sub/"])
host.say("bring out into it", through())
os.unlink(os.path.join(shared, "sub"))
fresh()
host.run(code=f"echo evil > x; ln -s '{victim}' /m/sub/x; for n in 0 1 2 3; do ln -s '{victim}' /m/sub/.x.$n; done",
         language="sh", flags=[*mount, "-o", f"x:{shared}/sub/x"])
host.say("bring out over a link", through())
fresh()
code = "echo evil > x; : > /m/sub/x; chmod 777 /m/sub/x; chmod u+s /m/sub/x; chmod g+s /m/sub/x; true"
host.run(code=code, language="sh", flags=[*mount, "-o", f"x:{shared}/sub/x"])
try:
    mode = os.lstat(os.path.join(shared, "sub/x")).st_mode
    host.say("bring out over a set-user-ID file", "it has the bit" if mode & (stat.S_ISUID | stat.S_ISGID) else "no such bit")
except FileNotFoundError:
    host.say("bring out over a set-user-ID file", "the file is not there")

# The log directory is created when the first stream is long; then a link is planted at the path of the second.
fresh()
code = """
import os, sys, time
os.write(1, b"o" * 9000)
for _ in range(500):
    made = [name for name in os.listdir("/m") if name not in ("sub", "old")]
    if made:
        break
    time.sleep(0.01)
for name in made:
    os.rename("/m/" + name, "/m/old")
    os.mkdir("/m/" + name)
    for place in ("/m/" + name, "/m/old"):
        try:
            os.symlink(%r, place + "/run.stderr")
        except OSError:
            pass
os.write(2, b"evil" * 9000)
print("logged" if made else "no log")
""" % victim
done = host.run(code=code, language="python", flags=[*mount, "--log-dir", shared, "--output", "4k"])
host.say("log below it", through() if "logged" in done.output else f"{done}")
host.say("victims", "written" if went_through else "as they were")
