import os
import subprocess

import host

work = host.scratch()
marker = os.path.join(work, "executed")
desk = os.path.join(work, "desk")
os.mkdir(desk)
SCRIPT = f"#!/bin/sh\ntouch {marker}\n"
PYTHON = f"open({marker!r}, 'w')\n"
FILES = {
    ".git/hooks/pre-commit": SCRIPT, ".git/hooks/post-checkout": SCRIPT, ".git/config": f"[core]\n\tfsmonitor = touch {marker}\n",
    ".gitattributes": "* filter=x\n", ".bashrc": SCRIPT, ".profile": SCRIPT, ".envrc": SCRIPT, ".mcp.json": "{}",
    ".claude/settings.json": "{}", ".vscode/tasks.json": "{}", "pip.conf": "[global]\nindex-url = http://127.0.0.1:1/\n",
    "sitecustomize.py": PYTHON, "usercustomize.py": PYTHON, "json.py": PYTHON, "os.py": PYTHON, "conftest.py": PYTHON,
    "Makefile": f"all:\n\ttouch {marker}\n", "python3": SCRIPT, "sh": SCRIPT, "env": SCRIPT, "newuidmap": SCRIPT,
    "belljar.toml": "engine = \"none\"\n", ".belljar/policy.toml": "read = [\"/\"]\n", ".config/belljar/policy.toml": "read = [\"/\"]\n",
    ".config/belljar/spec.toml": "engine = \"none\"\n", "policy.toml": "write = [\"/etc\"]\n", "spec.toml": "engine = \"none\"\n",
}
plant = "import os\n"
for name, content in FILES.items():
    plant += f"os.makedirs(os.path.dirname({name!r}) or '.', exist_ok=True)\n"
    plant += f"open('x/' * 0 + {name!r}, 'w').write({content!r}); os.chmod({name!r}, 0o777)\n"
outs = []
for name in FILES:
    os.makedirs(os.path.join(desk, os.path.dirname(name)), exist_ok=True)
    outs += ["-o", f"{name}:{desk}/{name}"]
done = host.run(code=plant, language="python", flags=outs)
came = [name for name, content in FILES.items() if host.read(desk, name) == content]
host.say("planted files", "came out" if len(came) == len(FILES) else f"{done}")
modes = [name for name in came if os.stat(os.path.join(desk, name)).st_mode & 0o7111]
host.say("their modes", ", ".join(modes) or "no execution")

# Simulates a user who makes them executable, and works there with a careless search path.
for name in came:
    os.chmod(os.path.join(desk, name), 0o755)
env = {"HOME": desk, "XDG_CONFIG_HOME": f"{desk}/.config", "PATH": f"{desk}:{os.environ['PATH']}", "PYTHONPATH": ""}


def there(name, argv, good):
    done = subprocess.run(argv, cwd=desk, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if os.path.exists(marker):
        os.unlink(marker)
        host.say(name, "something was executed")
    else:
        host.say(name, good if done.returncode == 0 else f"{done}")
    return done


nothing = "nothing of it was executed"
there("belljar run there", host.command(code="print(1)", language="python"), nothing)
there("belljar doctor there", [host.BELLJAR, "doctor"], nothing)
there("belljar languages there", [host.BELLJAR, "languages"], nothing)
script = os.path.join(desk, ".bashrc")
done = subprocess.run([host.BELLJAR, "run", "--quiet", *host.FLAGS, "-l", "sh", script], cwd=desk, env={**os.environ, **env}, capture_output=True, text=True, check=False)
host.say("belljar run of a planted script", "ran on the host" if os.path.exists(marker) else "ran inside" if "touch" in done.stderr else f"{done}")
argv = [host.BELLJAR, "run", "--quiet", *host.FLAGS, "--mount", "/etc:/m:ro", "-l", "sh", "-c", "true"]
done = subprocess.run(argv, cwd=desk, env={**os.environ, **env}, capture_output=True, text=True, check=False)
host.say("a planted policy", "is not used" if done.returncode == 125 and "forbidden" in done.stderr else f"{done}")
done = subprocess.run(host.command(code="true", language="sh"), cwd=desk, env={**os.environ, **env}, capture_output=True, text=True, check=False)
host.say("a planted spec", "is not used" if '"engine":"local"' in done.stdout else f"{done}")
