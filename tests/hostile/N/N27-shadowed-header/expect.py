import host
import internet

world = internet.Host(lambda _: b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
host.relay(host.run("program.py", internet.NAME, flags=world.flags))
fields = [line.partition(": ") for line in world.requests[0][1:]]
# As WSGI (PEP 3333) passes headers to a program.
values = sorted(value for name, _, value in fields if name.upper().replace("-", "_") == "X_TEAM")
options = [option.strip() for name, _, value in fields if name.lower() == "connection" for option in value.split(",")]
host.say("variable of the program there", ",".join(values))
host.say("names in Connection", ",".join(options) or "none")
