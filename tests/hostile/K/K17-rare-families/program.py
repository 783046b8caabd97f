import probe

FAMILIES = {
    "AX25": 3, "IPX": 4, "APPLETALK": 5, "NETROM": 6, "BRIDGE": 7, "ATMPVC": 8, "X25": 9, "INET6": 10, "ROSE": 11, "KEY": 15,
    "SECURITY": 14, "ECONET": 19, "ATMSVC": 20, "RDS": 21, "IRDA": 23, "PPPOX": 24, "WANPIPE": 25, "LLC": 26, "IB": 27, "MPLS": 28,
    "CAN": 29, "TIPC": 30, "BLUETOOTH": 31, "IUCV": 32, "RXRPC": 33, "ISDN": 34, "PHONET": 35, "IEEE802154": 36, "CAIF": 37,
    "ALG": 38, "NFC": 39, "VSOCK": 40, "KCM": 41, "QIPCRTR": 42, "SMC": 43, "XDP": 44, "MCTP": 45, "none": 46, "unspecified": 0,
}
KINDS = {"stream": 1, "datagram": 2, "raw": 3, "rdm": 4, "seqpacket": 5, "dccp": 6, "packet": 10, "none": 15}

for name, family in FAMILIES.items():
    if name != "INET6" and not probe.is_filtered():
        probe.say(name, "not tried")
        continue
    answers = {kind: probe.outcome("socket", family, number, 0) for kind, number in KINDS.items()}
    probe.say(name, probe.together(answers))
PROTOCOLS = {"SCTP": (1, 132), "SCTP seqpacket": (5, 132), "MPTCP": (1, 262), "SMC": (1, 256), "DCCP": (6, 33), "UDPLITE": (2, 136), "L2TP": (2, 115)}
for name, (kind, protocol) in PROTOCOLS.items():
    is_tried = name == "MPTCP" or probe.is_filtered()
    probe.say(f"IPv4 {name}", probe.outcome("socket", 2, kind, protocol) if is_tried else "not tried")
if not probe.is_filtered():
    raise SystemExit
every = range(0, 263)
probe.say("IPv4 streams", probe.together({number: probe.outcome("socket", 2, 1, number) for number in every if number not in (0, 6)}))
probe.say("IPv4 datagrams", probe.together({number: probe.outcome("socket", 2, 2, number) for number in every if number not in (0, 1, 17)}))
probe.say("families from 46 on", probe.together({number: probe.outcome("socket", number, 2, 0) for number in (*range(46, 300), 2**31, 2**32 - 1)}))
# The kernel uses only the low half of the register.
high = {f"{family}": probe.outcome("socket", family | 1 << 32, 1, 0) for family in FAMILIES.values()}
probe.say("with a bit above", probe.together(high))
