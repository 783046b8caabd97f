import os
import shutil
import stat

import probe

LIMIT, MOST = 1000, 1500


def until_it_fails(name, make, limit=LIMIT, most=MOST):
    made, answer = 0, "ok"
    try:
        while made < most:
            make(made)
            made += 1
    except OSError as error:
        answer = probe.name_of(error.errno)
    if answer == "EOPNOTSUPP":
        probe.say(name, answer)
    else:
        probe.say(name, f"{answer} within the limit" if made <= limit else f"{answer} after {made}")


def fresh(place="."):
    path = os.path.join(place, "many")
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    return path + "/"


def make_file(place):
    return lambda index: os.close(os.open(f"{place}{index}", os.O_CREAT | os.O_WRONLY, 0o600))


for name, place in [("files at home", "."), ("files in /tmp", "/tmp"), ("files in /dev/shm", "/dev/shm")]:
    until_it_fails(name, make_file(fresh(place)))
place = fresh()
until_it_fails("directories", lambda index: os.mkdir(f"{place}{index}"))
place = fresh()
open("one", "wb").close()
until_it_fails("links", lambda index: os.link("one", f"{place}{index}"))
place = fresh()
until_it_fails("symbolic links", lambda index: os.symlink("x" * 200, f"{place}{index}"))
place = fresh()
kinds = [stat.S_IFIFO, stat.S_IFSOCK]
until_it_fails("sockets and pipes", lambda index: os.mknod(f"{place}{index}", kinds[index % 2] | 0o600))
shutil.rmtree(place)


def without_names():
    """Creates files held only by descriptors, in several processes, because each may have only so many."""
    held, answer, ready = 0, "ok", os.pipe()
    for _ in range(3):
        if os.fork() == 0:
            made, error = 0, 0
            files = []
            try:
                while made < 500:
                    files.append(os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600))
                    made += 1
            except OSError as failure:
                error = failure.errno
            os.write(ready[1], f"{made} {error}\n".encode())
            os.read(stay[0], 1)
            os._exit(0)
    lines = b""
    while lines.count(b"\n") < 3:
        lines += os.read(ready[0], 100)
    os.write(stay[1], b"xxx")
    for _ in range(3):
        os.wait()
    for line in lines.decode().splitlines():
        made, error = map(int, line.split())
        held += made
        answer = probe.name_of(error) if error else answer
    return f"{answer} within the limit" if held <= LIMIT else f"{answer} after {held}"


stay = os.pipe()
probe.say("files without names", without_names())
# Values count as inodes, one for each KiB.
until_it_fails("attributes", lambda index: os.setxattr("one", f"user.a{index}", bytes(32 << 10)), limit=40, most=60)
os.remove("one")
make_file(fresh())(0)
probe.say("afterwards", "ok")
