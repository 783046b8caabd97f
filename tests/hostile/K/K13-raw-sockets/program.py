import probe

INET, PACKET = 2, 17
DGRAM, RAW, OLD_PACKET = 2, 3, 10
ICMP, TCP, UDP, ANY = 1, 6, 17, 255
ALL_FRAMES = 0x0300
CLOEXEC_NONBLOCK = 0o2000000 | 0o4000


def socket(name, *args):
    probe.syscall(name, "socket", *args)


socket("packet, raw", PACKET, RAW, ALL_FRAMES)
socket("packet, datagram", PACKET, DGRAM, ALL_FRAMES)
socket("packet, no protocol", PACKET, RAW, 0)
socket("packet, the old way", INET, OLD_PACKET, ALL_FRAMES)
socket("raw ICMP", INET, RAW, ICMP)
socket("raw TCP", INET, RAW, TCP)
socket("raw UDP", INET, RAW, UDP)
socket("raw IP", INET, RAW, ANY)
socket("raw ICMP, flags", INET, RAW | CLOEXEC_NONBLOCK, ICMP)
socket("ping", INET, DGRAM, ICMP)
socket("ping, high bits", INET | 1 << 32, DGRAM | 1 << 32, ICMP | 1 << 32)
socket("raw IPv6", 10, RAW, 58)
socket("ping IPv6", 10, DGRAM, 58)
socket("raw of no such kind", INET, RAW, 300)
