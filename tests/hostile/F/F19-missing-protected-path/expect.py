import os

import host

work = host.scratch()
home, data = os.path.join(work, "homes/ann"), os.path.join(work, "data")
for made in (home, data, os.path.join(data, "open")):
    os.makedirs(made)
    os.chmod(made, 0o777)
env = {"HOME": home}
policy = host.write(work, "policy.toml", content=f'write = ["{data}"]\nforbidden = ["{data}/private", "{data}/dangling"]\n')
link = os.path.join(work, "link")
os.symlink(home, link)
os.symlink(os.path.join(data, "nowhere"), os.path.join(data, "dangling"))
ATTACK = "mkdir -p /m/.ssh /m/ann/.ssh /m/private; echo key > /m/.ssh/authorized_keys; echo key > /m/ann/.ssh/authorized_keys; echo RAN"


def attempt(name, source, *flags, code=ATTACK):
    done = host.run(code=code, language="sh", flags=["--mount", f"{source}:/m:rw", *flags], env=env)
    # An invalid value is a usage error (2), a refusal by the policy a failure (125).
    if done.status in (2, 125) and "RAN" not in done.output:
        host.say(name, "refused")
    else:
        host.say(name, "mounted" if "RAN" in done.output else f"{done}")


attempt("home without .ssh", home)
attempt("home's parent", os.path.dirname(home))
attempt("home by a link", link)
attempt("home as /", "/", "--timeout", "5s")
attempt("a forbidden path of a policy", f"{data}/private", "--policy", policy)
attempt("what holds a forbidden path of a policy", data, "--policy", policy)
attempt("a forbidden path that is a dangling link", f"{data}/dangling", "--policy", policy)
attempt("beside the forbidden path", f"{data}/open", "--policy", policy, code="echo RAN > /m/x; cat /m/x")
host.say(".ssh made meanwhile", "made" if os.path.lexists(f"{home}/.ssh") else "not made")
attempt("a missing source", f"{data}/missing")
left = sorted(os.listdir(data)) == ["dangling", "open"] and os.listdir(home) == [] and os.listdir(f"{data}/open") == ["x"]
host.say("host", "as it was" if left else "changed")
