"""Tells which addresses are in which networks."""

import ipaddress


def smallest(address, networks):
    address = ipaddress.ip_address(address)
    found = [one for one in map(ipaddress.ip_network, networks) if address in one]
    return str(max(found, key=lambda one: one.prefixlen, default=None))


NETWORKS = ["10.0.0.0/8", "10.1.0.0/16", "192.168.0.0/24"]
assert smallest("10.1.2.3", NETWORKS) == "10.1.0.0/16"
assert smallest("10.2.2.3", NETWORKS) == "10.0.0.0/8"
assert smallest("8.8.8.8", NETWORKS) == "None"
halves = list(ipaddress.ip_network("192.0.2.0/24").subnets(prefixlen_diff=2))
assert len(halves) == 4 and str(halves[-1]) == "192.0.2.192/26"
assert ipaddress.ip_address("::1").is_loopback
