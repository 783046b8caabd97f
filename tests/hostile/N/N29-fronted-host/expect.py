import host
import internet

SPEC = f"""[network]
allow = ["{internet.NAME}"]
tls = {{ "{internet.NAME}" = "terminate" }}
"""
world = internet.Host(lambda _: b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", SPEC)
host.relay(host.run("program.py", internet.NAME, flags=world.flags))
fields = [line.partition(": ") for lines in world.requests for line in lines]
host.say("hosts that were asked for", ",".join(sorted({value for name, _, value in fields if name.lower() == "host"})))
