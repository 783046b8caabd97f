"""Creates a sandbox, runs a command in it, and ends it."""

from belljar import Sandbox


def main() -> None:
    with Sandbox.create(timeout=60) as sbx:
        sbx.files.write("hello.py", "import os\nprint('hello from', os.uname().nodename)\n")
        print(sbx.commands.run("python3 hello.py").stdout, end="")


if __name__ == "__main__":
    main()
