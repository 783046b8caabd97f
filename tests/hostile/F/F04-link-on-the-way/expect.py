import os

import host

work = host.scratch(0o777)
public = os.environ["CANARY_PUBLIC"]
directory = os.path.dirname(public)


def bring(name, setup, inside):
    target = os.path.join(work, "target")
    done = host.run(code=setup, language="sh", flags=["-o", f"{inside}:{target}"])
    came = host.read(target)
    if came is not None:
        os.unlink(target)
    if came is None and done.status == 125 and "was not created" in done.stderr:
        host.say(name, "not there")
    elif came is not None:
        host.say(name, "came, of the sandbox" if came == "own\n" else "came")
    else:
        host.say(name, f"{done}")


bring("bring by a link to the host's directory", f"ln -s '{directory}' d", "d/public")
bring("bring by a link to the old root", f"ln -s '/old-root{directory}' d", "d/public")
bring("bring by a link to the root", "ln -s / d", f"d{public}")
bring("bring by a link upwards", f"ln -s {'../' * 30} d", f"d{public}")
bring("bring by two links", f"ln -s e d; ln -s '{directory}' e", "d/public")
bring("bring by a link within the sandbox", "mkdir e; echo own > e/public; ln -s e d", "d/public")

shared, other = os.path.join(work, "shared"), os.path.join(work, "other")
for made in (shared, other):
    os.mkdir(made)
    os.chmod(made, 0o777)
source = host.write(work, "source", content="planted")
mount = ["--mount", f"{shared}:/m:rw"]
for name, leads_to in [("/etc", "/etc"), ("the host's directory", other), ("the old root", "/old-root" + other)]:
    host.run(code=f"rm -f /m/d; ln -s '{leads_to}' /m/d", language="sh", flags=mount)
    done = host.run(code="true", language="sh", flags=[*mount, "-f", f"{source}:/m/d/planted"])
    host.say(f"put by a link to {name}", "refused" if done.status == 125 else f"status {done.status}")
clean = not os.path.lexists("/etc/planted") and not os.path.lexists(os.path.join(work, "d"))
host.say("host", "as it was" if clean else "changed")
