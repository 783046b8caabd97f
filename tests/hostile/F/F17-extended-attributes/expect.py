import os
import stat

import host

work = host.scratch()
shared = os.path.join(work, "shared")
os.mkdir(shared)
target = os.path.join(work, "target")
done = host.run("program.py", flags=["--mount", f"{shared}:/m:rw", "-o", f"own:{target}", "-o", f"whiteout:{target}2"])
host.relay(done)
trusted = [name for name in os.listxattr(f"{shared}/own") if not name.startswith("user.")]
host.say("attributes that the host trusts", ", ".join(trusted) or "none")
host.say("attributes of a file that came out", ", ".join(os.listxattr(target)) or "none")
host.say("a whiteout that came out", "came" if os.path.lexists(target + "2") else "none")
kinds = {"file" if stat.S_ISREG(os.lstat(f"{shared}/{name}").st_mode) else name for name in os.listdir(shared)}
host.say("kinds of files on the mount", ", ".join(sorted(kinds)))
