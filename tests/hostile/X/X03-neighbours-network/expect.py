import host

CODE = """
import select, socket, sys
tcp, udp = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
tcp.bind(("0.0.0.0", 0))
tcp.listen(8)
udp.bind(("127.0.0.1", tcp.getsockname()[1]))
print(tcp.getsockname()[1], flush=True)
sys.stdin.readline()
print(len(select.select([tcp, udp], [], [], 0)[0]), flush=True)
"""
neighbour = host.spawn(code=CODE, language="python")
port = neighbour.stdout.readline().decode().strip()
host.relay(host.run("program.py", port))
count = neighbour.communicate(b"\n", timeout=10)[0].decode().strip()
host.say("neighbour", "was not connected to" if count == "0" else f"was connected to: {count}")
