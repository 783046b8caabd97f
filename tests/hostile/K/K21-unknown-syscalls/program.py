import probe

answers = {probe.outcome(number, 0, 0, 0, 0, 0, 0) for number in range(470, 1024)}
probe.say("470 to 1023", " and ".join(sorted(answers)))
probe.syscall("minus one", -1)
probe.syscall("2^32 - 1", 2**32 - 1)
probe.syscall("2^31", 2**31)
probe.syscall("known but left out", "statmount", 0, 0, 0, 0)
probe.say("still alive", "ok" if probe.raw("getpid")[0] > 0 else "no")
