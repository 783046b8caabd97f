import os
import subprocess

import host

work = host.scratch()
host.write(work, "secret", content="secret")
# Descriptors that a careless caller leaves open when it starts belljar, at low and at high numbers.
directory = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
numbers = [10, 64, 200, 900]
for number in numbers:
    os.dup2(directory, number, inheritable=True)
argv = host.command("program.py", *[str(number) for number in numbers])
done = subprocess.run(argv, capture_output=True, check=False, pass_fds=numbers, cwd=work)
host.relay(host.Run(done.returncode, done.stdout, done.stderr))
source = host.write(work, "source", content="planted")
done = host.run(code="true", language="sh", flags=["-f", f"{source}:/proc/self/fd/3"])
host.say("put into /proc/self/fd", "refused" if done.status == 125 else f"{done}")
done = host.run(code="true", language="sh", flags=["--mount", f"{work}:/proc/self/fd/7"])
host.say("a mount on /proc/self/fd", "refused" if done.status in (2, 125) else f"{done}")
