import os

import host

work = host.scratch()
target = os.path.join(work, "target")
public = os.environ["CANARY_PUBLIC"]


def bring(setup, inside, env=None):
    done = host.run(code=setup, language="sh", flags=["-o", f"{inside}:{target}"], env=env)
    came = host.read(target)
    if came is not None:
        os.unlink(target)
    return done, came


def answer(done, came):
    if came is not None:
        return "came"
    if done.status != 125:
        return f"{done}"
    return "not there" if "was not created" in done.stderr else "refused"


for link, rest in [
    ("/proc/self/root", public), ("/proc/1/root", public), ("/proc/self/cwd", f"/{'../' * 30}{public}"),
    ("/proc/1/cwd", f"/{'../' * 30}{public}"), ("/proc/thread-self/root", public),
    ("/proc/self/root/old-root", public),
]:
    # -o refuses .., so the link contains it.
    directory, name = os.path.split(link + rest)
    host.say(link, answer(*bring(f"ln -s '{directory}' d", f"d/{name}")))
for link in ["/proc/self/fd/0", "/proc/self/fd/3", "/proc/self/exe"]:
    host.say(link, answer(*bring(f"ln -s {link} x", "x")))

# The guest reads these: only the host's flags can reach its own entries, and they contain no secret of the host.
secret = "secret-of-the-host"
done, came = bring("ln -s /proc/self d", "d/environ", env={"BELLJAR_SECRET": secret, "AWS_SECRET_ACCESS_KEY": secret})
host.say("a link to /proc/self", "a secret came" if secret in (came or "") else "holds nothing of the host")
leads = []
for number in range(3, 24):
    done, came = bring(f"ln -s /proc/self/fd d", f"d/{number}")
    if came is not None:
        leads.append(number)
host.say("descriptors of the guest", f"{leads} came" if leads else "lead to no file of the host")
