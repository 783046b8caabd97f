import host

# Metadata addresses of clouds: AWS, GCP, Azure and others; AWS's time and names; ECS; Alibaba; Azure; Oracle.
ADDRESSES = ["169.254.169.254", "169.254.169.123", "169.254.169.253", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"]

# Here the host itself has these addresses, so packets that leave a sandbox arrive, and go no further.
host.own_network(*ADDRESSES)
listener = host.Listener()
host.relay(host.run("program.py", str(listener.port), *ADDRESSES))
host.say("connections that arrived", str(listener.connections))
host.say("datagrams that arrived", str(listener.datagrams))
