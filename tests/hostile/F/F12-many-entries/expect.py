import resource
import time

import host

PROGRAM = """
import errno, os, sys
made = 0
try:
    for made in range(int(sys.argv[1])):
        os.close(os.open("f%d" % made, os.O_CREAT | os.O_WRONLY))
    print("made", made + 1)
except OSError as error:
    print(errno.errorcode[error.errno], made)
"""
begin = time.monotonic()
done = host.run(None, "70000", code=PROGRAM, language="python", flags=["--memory", "1g"])
said = done.output.split()
host.say("files with the default", "ENOSPC below 65,536" if said[0] == "ENOSPC" and int(said[1]) < 65536 else f"{done}"[:300])
done = host.run(None, "150000", code=PROGRAM, language="python", flags=["--memory", "1g", "--inodes", "200000"])
host.say("files with 200,000 inodes", done.output.split()[-1])
result = done.result
cut = result["files_truncated"] and len(result["files"]) <= 10_000
host.say("the list", "is cut off, and says so" if cut else f"{len(result['files'])} files, {result['files_truncated']}")
elapsed = time.monotonic() - begin
most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
host.say("belljar's memory", "below 256 MiB" if most < 256 else f"{most} MiB")
host.say("time", "below 20 s" if elapsed < 20 else f"{elapsed:.1f} s")
