import host

# Private networks, that of carriers, link-local, one as the host's public address, one as Docker's bridge, one as the
# neighbours' network, one for documentation as the rest of the world, broadcast's network.
ADDRESSES = [
    "10.0.0.1", "172.16.0.1", "172.17.0.1", "172.31.255.254", "192.168.0.1", "192.168.1.254", "100.64.0.1", "169.254.1.1",
    "203.0.113.7", "198.18.0.1", "8.8.8.8", "1.1.1.1",
]

# Here the host has these addresses itself, so whatever gets out of a sandbox arrives, and goes no further.
host.own_network(*ADDRESSES)
listener = host.Listener()
host.relay(host.run("program.py", str(listener.port), *ADDRESSES))
host.say("connections that arrived", str(listener.connections))
host.say("datagrams that arrived", str(listener.datagrams))
