import os

import host

work = host.scratch()
shared, readable = os.path.join(work, "shared"), os.path.join(work, "readable")
for made in (shared, readable):
    os.mkdir(made)
os.chown(shared, 12345, 12345)
private = host.write(shared, "private", content="of root", mode=0o600)
host.write(readable, "file", content="for reading")
mounts = ["--mount", f"{shared}:/m:rw", "--mount", f"{readable}:/r:ro"]
done = host.run("program.py", os.environ["CANARY_PUBLIC"], flags=mounts)
host.relay(done)
target = os.path.join(work, "target")
done = host.run(code="true", language="sh", flags=[*mounts, "-o", f"/m/private:{target}"])
came = os.path.exists(target)
host.say("bring another owner's private file", "came" if came else "refused" if done.status == 125 else f"{done}")
host.say("links of the private file", os.stat(private).st_nlink)
