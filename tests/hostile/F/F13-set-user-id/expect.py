import os
import shutil
import stat

import host

work = host.scratch()
shared = os.path.join(work, "shared")
os.mkdir(shared)
program = os.path.join(work, "id")
shutil.copy("/usr/bin/id", program)
os.chmod(program, 0o6755)
done = host.run("program.py", flags=["--mount", f"{shared}:/m:rw", "-f", f"{program}:id"])
host.relay(done)
bits = [name for name in os.listdir(shared) if os.lstat(f"{shared}/{name}").st_mode & (stat.S_ISUID | stat.S_ISGID)]
host.say("on the host's mount", f"{', '.join(sorted(bits))}" if bits else "no such bit")
