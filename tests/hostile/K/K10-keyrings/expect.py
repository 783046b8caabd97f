import subprocess
import sys

import host

SECRET = "belljar-key-4f1d83a6"
argv = [sys.executable, host.path("plant.py"), SECRET, *host.command("program.py")]
done = subprocess.run(argv, capture_output=True, timeout=host.BUDGET, check=False)
if done.returncode == 77:
    host.skip("this kernel has no keyrings")
host.relay(host.Run(done.returncode, done.stdout, done.stderr))
