import host
import internet

SPEC = """[network]
mode = "open"
deny = ["evil.example", "*.evil.example"]
"""
world = internet.Host(lambda _: b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", SPEC)
host.relay(host.run("program.py", internet.ADDRESS, flags=world.flags))
host.say("requests that arrived", str(len(world.requests)))
