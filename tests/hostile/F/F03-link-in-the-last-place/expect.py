import os

import host

work = host.scratch(0o777)
shared = os.path.join(work, "shared")
os.mkdir(shared)
os.chmod(shared, 0o777)
mount = ["--mount", f"{shared}:/m:rw"]
public = os.environ["CANARY_PUBLIC"]


def refusal(done):
    if done.status != 125:
        return f"{done}"
    return "refused: a symbolic link" if "is a symbolic link" in done.stderr else "refused"


links = {
    "a link to the host": public,
    "a link to a file of the sandbox": "/etc/hostname",
    "a link to itself": "x",
    "a link to a link": "y",
    "a link to the old root": "/old-root" + public,
}
for name, leads_to in links.items():
    target = os.path.join(work, "target")
    code = f"ln -s '{leads_to}' x; ln -s /etc/hostname y"
    done = host.run(code=code, language="sh", flags=["-o", f"x:{target}"])
    host.say(f"bring {name}", refusal(done) if not os.path.lexists(target) else "came")
target = os.path.join(work, "honest")
host.run(code="echo honest > x", language="sh", flags=["-o", f"x:{target}"])
host.say("bring an honest file", "came" if host.read(target) == "honest\n" else "did not come")

# Links from an earlier run, in a directory that the next run shares.
victims = os.path.join(work, "victims")
os.mkdir(victims)
os.chmod(victims, 0o777)
victim = host.write(victims, "file", content="as it was", mode=0o666)
source = host.write(work, "source", content="planted")
for name, leads_to in [("the host", victim), ("the old root", "/old-root" + victim)]:
    host.run(code=f"rm -f /m/link; ln -s '{leads_to}' /m/link", language="sh", flags=mount)
    host.run(code="true", language="sh", flags=[*mount, "-f", f"{source}:/m/link"])
    kept = host.read(victim) == "as it was" and os.listdir(victims) == ["file"]
    host.say(f"put through a link to {name}", "the host's file as it was" if kept else "the host's file was written")
host.run(code="rm -f /m/link; ln -s /etc/passwd /m/link", language="sh", flags=mount)
done = host.run(code="true", language="sh", flags=[*mount, "-f", f"{source}:/m/link"])
host.say("put through a link to /etc/passwd", "refused" if done.status == 125 else f"{done}")

# The host uses the same directory afterwards.
host.run(code=f"rm -f /m/link; ln -s '{public}' /m/link", language="sh", flags=mount)
done = host.run(code="cat in/link", language="sh", flags=["-f", f"{shared}:in"])
# It is copied in as a link, and resolved inside the sandbox.
went_in = done.status == 1 and not done.output
host.say("put a link of the host's directory", "leads nowhere" if went_in else f"{done}")
done = host.run(code="echo planted > x", language="sh", flags=["-o", f"x:{shared}/link"])
host.say("bring to a link on the host", refusal(done))
