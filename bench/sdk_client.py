#!/usr/bin/env python3
"""Measures executions through the Python SDK, for service.py.

Usage: BELLJAR_API_URL=… BELLJAR_API_KEY=… sdk_client.py SANDBOX, with a Python that has the SDK. For each number on standard input,
one per line, it runs /bin/true that many times, and prints the times in seconds as a JSON list.
"""

import json
import sys
import time

from belljar import Sandbox


def main():
    sandbox = Sandbox.connect(sys.argv[1])
    for line in sys.stdin:
        taken = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            sandbox.commands.run(["/bin/true"])
            taken.append(time.perf_counter() - begin)
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
