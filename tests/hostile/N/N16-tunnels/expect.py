import host

OUTSIDE = "203.0.113.7"

host.own_network(OUTSIDE)
listener = host.Listener()
host.relay(host.run("program.py", str(listener.port), OUTSIDE))
host.say("connections that arrived", str(listener.connections))
host.say("datagrams that arrived", str(listener.datagrams))
