import os

import host

work = host.scratch()
source = host.write(work, "source", content="planted")
host_files = ["/etc/passwd", "/etc/x", "/x", "/planted", "/usr/bin/planted", "/home/x", "/proc/sys/kernel/hostname"]
before = [host.read(name) for name in host_files]


def refusal(done):
    if done.status != 125 or "RAN" in done.output:
        return None
    return "refused before anything ran" if "invalid destination" in done.stderr else "refused before the program ran"


def put(inside):
    # The program looks for the name exactly as given.
    code = f"echo RAN; cd /home/user; [ -f '{inside}' ] && grep -q planted '{inside}' && echo there"
    done = host.run(code=code, language="sh", flags=["-f", f"{source}:{inside}"])
    answer = refusal(done)
    host.say(f"put {inside}", answer or ("a plain name" if "there" in done.output else f"{done}"))


for name in ["../x", "a/../../x", "..", "./../x", "/tmp/../etc/x", "/"]:
    put(name)
for name in ["%2e%2e/x", "..%2fx", "..\\x", "...//x", "./././x", "．．/x"]:
    put(name)
for name in ["/etc/passwd", "/usr/bin/planted", "/proc/sys/kernel/hostname", "//planted", "/tmp/x"]:
    put(name)


def bring(name, inside):
    target = os.path.join(work, "target")
    done = host.run(code="echo RAN", language="sh", flags=["-o", f"{inside}:{target}"])
    came = host.read(target)
    if came is not None:
        os.unlink(target)
        accounts = {line.split(":")[0] for line in came.splitlines()}
        host.say(name, "of the sandbox" if accounts == {"root", "user", "nobody"} else came)
    elif done.status == 125 and "was not created" in done.stderr:
        host.say(name, "not there")
    else:
        host.say(name, refusal(done) or f"{done}")


for name in ["../x", "/etc/../etc/shadow", "%2e%2e/x", "/etc/passwd"]:
    bring(f"bring {name}", name)
bring("bring canary", os.environ["CANARY_PUBLIC"])
host.say("host", "as it was" if [host.read(name) for name in host_files] == before else "changed")
