import os
import sys

import probe

# In pieces, each of which gets the existing tree at its bottom: the kernel checks deeper paths more slowly.
PIECE = 250
home = os.getcwd()
levels = 0
try:
    while levels < int(sys.argv[1]):
        os.chdir(home)
        os.mkdir("next")
        os.chdir("next")
        levels += 1
        for _ in range(PIECE - 1):
            os.mkdir("a-directory")
            os.chdir("a-directory")
            levels += 1
        if os.path.exists(home + "/tree"):
            os.rename(home + "/tree", "a-directory")
        os.rename(home + "/next", home + "/tree")
    probe.say("levels", levels)
except OSError as error:
    print(probe.name_of(error.errno), levels)
