"""Forks a sandbox to try two changes to the same files, and keeps the one that works."""

from belljar import CommandExitException, Sandbox


def main() -> None:
    with Sandbox.create(timeout=120) as base:
        base.files.write("check.sh", 'test "$(cat answer)" = 42')
        for fork, answer in zip(base.fork(count=2), ["41", "42"]):
            with fork:
                fork.files.write("answer", answer)
                try:
                    fork.commands.run("sh check.sh")
                    print(f"{answer} works")
                except CommandExitException as error:
                    print(f"{answer} does not: {error.error}")


if __name__ == "__main__":
    main()
