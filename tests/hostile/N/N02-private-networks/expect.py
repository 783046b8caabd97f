import host

# Private networks (one is Docker's bridge), carriers, link-local, documentation, benchmarks, public addresses.
ADDRESSES = [
    "10.0.0.1", "172.16.0.1", "172.17.0.1", "172.31.255.254", "192.168.0.1", "192.168.1.254", "100.64.0.1", "169.254.1.1",
    "203.0.113.7", "198.18.0.1", "8.8.8.8", "1.1.1.1",
]

# Here the host itself has these addresses, so packets that leave a sandbox arrive, and go no further.
host.own_network(*ADDRESSES)
listener = host.Listener()
host.relay(host.run("program.py", str(listener.port), *ADDRESSES))
host.say("connections that arrived", str(listener.connections))
host.say("datagrams that arrived", str(listener.datagrams))
