import host

PUBLIC, PRIVATE = "203.0.113.7", "10.0.0.1"

host.own_network(PUBLIC, PRIVATE)
listener = host.Listener()
host.relay(host.run("program.py", str(listener.port), PUBLIC, PRIVATE))
host.say("connections that arrived", str(listener.connections))
host.say("datagrams that arrived", str(listener.datagrams))
