"""Follows a background command: its streamed output, and its end."""

import sys

from belljar import Sandbox


def main() -> int:
    with Sandbox.create(timeout=120) as sbx:
        build = sbx.commands.run("for step in fetch compile link; do echo $step; sleep 0.2; done", background=True)
        for output in build:
            print(output.stdout or output.stderr, end="", flush=True)
        result = build.wait(check=False)
        print("done:", result.error or "all is well")
        return result.exit_code or 0


if __name__ == "__main__":
    sys.exit(main())
