import os
import time

import host

work = host.scratch()
shared = os.path.join(work, "shared")
os.mkdir(shared)
host.write(shared, "neighbour", content="N" * (4 << 20))
mount = ["--mount", f"{shared}:/m:rw"]
changer = host.spawn("changer.py", "/m", flags=[*mount, "--timeout", "38s"], stderr=None)
changer.stdout.readline()
longest = 0.0
out_ends, out_bytes, sizes, in_ends, in_said = set(), set(), set(), set(), set()


def timed(**options):
    global longest
    begin = time.monotonic()
    done = host.run(**options)
    longest = max(longest, time.monotonic() - begin)
    return done


for number in range(15):
    targets = [f"{work}/out{count}" for count in range(6)]
    outs = [flag for target in targets for flag in ("-o", f"/m/file:{target}")]
    done = timed(code="true", language="sh", flags=[*mount, *outs])
    out_ends.add(done.status)
    for target in targets:
        if os.path.exists(target):
            with open(target, "rb") as file:
                content = file.read()
            out_bytes |= set(content)
            sizes.add(len(content))
            os.unlink(target)
CODE = "import sys\ntry:\n  print(sorted(set(open('in', 'rb').read())))\nexcept OSError as e: print('none')"
for number in range(15):
    done = timed(code=CODE, language="python", flags=["-f", f"{shared}/file:in"])
    in_ends.add(done.status)
    # A path is resolved once, when the run begins: if it was the link then, all bytes are the neighbour's.
    if done.status == 0 and set(eval(done.output)) != {ord("N")}:
        in_said |= set(eval(done.output))
# The only bytes that it ever contains: As, and the zeros of holes.
allowed = {0, ord("A")}
host.say("ends of bringing it out", "0 or 125" if out_ends <= {0, 125} else out_ends)
host.say("what came out", "bytes of the file alone" if out_bytes <= allowed else out_bytes)
host.say("ends of putting it in", "0 or 125" if in_ends <= {0, 125} else in_ends)
host.say("what went in", "bytes of the file alone" if in_said <= allowed else in_said)

done = timed(code="echo RAN", language="sh", flags=["--disk", "16m", "-f", f"{shared}/growing:in"])
host.say("a file that grows without end", "ended" if done.status in (0, 125) else f"{done}")
changer.stdin.close()
changer.wait(10)
host.say("the changes", "went on" if len(sizes) > 3 else f"did not: {sizes}")
host.say("longest", "below 5 s" if longest < 5 else f"{longest:.1f} s")
