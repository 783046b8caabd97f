import os

import host

ROUNDS, OUT_ROUNDS, OUTS = 200, 60, 24
work = host.scratch(0o777)
shared = os.path.join(work, "shared")
os.mkdir(shared)
os.chmod(shared, 0o777)
public = os.environ["CANARY_PUBLIC"]
token = host.read(public)
# The link's target: it contains a file of the same name, and only the host's root may write to it.
secret = os.path.join(work, "secret")
os.mkdir(secret)
host.write(secret, "public", content=token)
mount = ["--mount", f"{shared}:/m:rw"]
racer = host.spawn("racer.py", "/m", secret, flags=[*mount, "--timeout", "38s"], stderr=None)
racer.stdout.readline()

# The host reads a directory that a sandbox is changing.
leaked_in, went_in, refused_in = 0, 0, 0
for number in range(ROUNDS):
    done = host.run(code="cat in/d/public in/d/d/public", language="sh", flags=["-f", f"{shared}/tree:in"])
    leaked_in += token in done.output
    went_in += "harmless" in done.output
    refused_in += done.status == 125
    if number >= 60 and went_in and refused_in:
        break

# A second sandbox resolves paths in the same directory while the first one races.
outs = [flag for number in range(OUTS) for flag in ("-o", f"/m/tree/d/public:{work}/out{number}")]
leaked_out, came, missing = 0, 0, 0
for round in range(OUT_ROUNDS):
    done = host.run(code="true", language="sh", flags=[*mount, *outs])
    missing += done.stderr.count("was not created")
    for number in range(OUTS):
        content = host.read(work, f"out{number}")
        if content is not None:
            os.unlink(os.path.join(work, f"out{number}"))
            came += 1
            leaked_out += token in content
    # The paths of one run are resolved within a moment, in which the racer may not have had a processor.
    if round >= 7 and came and missing:
        break

racer.stdin.close()
racer.wait(10)
raced = went_in and refused_in and came and missing
host.say("the race", "was run" if raced else f"did not come to be: {went_in} {refused_in} {came} {missing}")
host.say("files of the host that went in", leaked_in or "none")
host.say("files of the host that came out", leaked_out or "none")
host.say("the directory outside", "as it was" if os.listdir(secret) == ["public"] else "changed")
