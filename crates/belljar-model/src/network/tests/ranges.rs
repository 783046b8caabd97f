use std::net::IpAddr;

use super::*;

fn range_of(address: &str) -> Option<String> {
    always_denied(address.parse::<IpAddr>().unwrap()).map(ToString::to_string)
}

#[test]
fn non_public_addresses_are_always_denied() {
    let cases = [
        ("0.0.0.0", "0.0.0.0/8"),
        ("0.255.255.255", "0.0.0.0/8"),
        ("10.0.0.0", "10.0.0.0/8"),
        ("10.255.255.255", "10.0.0.0/8"),
        ("100.64.0.0", "100.64.0.0/10"),
        ("100.100.100.200", "100.100.100.200/32"),
        ("100.127.255.255", "100.64.0.0/10"),
        ("127.0.0.1", "127.0.0.0/8"),
        ("168.63.129.16", "168.63.129.16/32"),
        ("169.254.169.254", "169.254.0.0/16"),
        ("172.16.0.0", "172.16.0.0/12"),
        ("172.31.255.255", "172.16.0.0/12"),
        ("192.0.0.1", "192.0.0.0/24"),
        ("192.0.2.1", "192.0.2.0/24"),
        ("192.168.255.255", "192.168.0.0/16"),
        ("198.18.0.0", "198.18.0.0/15"),
        ("198.19.255.255", "198.18.0.0/15"),
        ("198.51.100.7", "198.51.100.0/24"),
        ("203.0.113.7", "203.0.113.0/24"),
        ("224.0.0.1", "224.0.0.0/3"),
        ("255.255.255.255", "224.0.0.0/3"),
        ("::", "::/96"),
        ("::1", "::/96"),
        ("fd00:ec2::254", "fc00::/7"),
        ("fc00::", "fc00::/7"),
        ("fe80::1", "fe80::/10"),
        ("febf::1", "fe80::/10"),
        ("fec0::1", "fec0::/10"),
        ("ff02::1", "ff00::/8"),
        ("100::1", "100::/64"),
        ("2001::1", "2001::/32"),
        ("2001:db8::1", "2001:db8::/32"),
        ("64:ff9b:1::1", "64:ff9b:1::/48"),
        // The range of an embedded IPv4 address is the better reason.
        ("::ffff:127.0.0.1", "127.0.0.0/8"),
        ("::ffff:169.254.169.254", "169.254.0.0/16"),
        ("::127.0.0.1", "127.0.0.0/8"),
        ("::8.8.8.8", "::/96"),
        ("64:ff9b::10.0.0.1", "10.0.0.0/8"),
        ("64:ff9b::8.8.8.8", "64:ff9b::/96"),
        ("2002:7f00:1::", "127.0.0.0/8"),
        ("2002:808:808::1", "2002::/16"),
    ];
    for (address, range) in cases {
        assert_eq!(range_of(address).as_deref(), Some(range), "{address}");
    }
}

#[test]
fn neighbours_of_denied_ranges_are_public() {
    let public = [
        "1.0.0.0",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "168.63.129.15",
        "168.63.129.17",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "191.255.255.255",
        "192.0.1.0",
        "192.0.3.0",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "198.51.99.255",
        "198.51.101.0",
        "203.0.112.255",
        "203.0.114.0",
        "223.255.255.255",
        "8.8.8.8",
        "::ffff:8.8.8.8",
        "2001:4860:4860::8888",
        "2606:4700::1111",
        "2003::1",
        "2001:db9::1",
        "2001:1::1",
    ];
    for address in public {
        assert_eq!(range_of(address), None, "{address}");
    }
}

#[test]
fn each_denied_range_names_its_purpose_and_source() {
    for range in &ALWAYS_DENIED {
        assert!(!range.purpose().is_empty() && !range.source().is_empty(), "{range}");
        if let Ok(cidr) = range.to_string().parse::<Cidr>() {
            assert_eq!(cidr.to_string(), range.to_string());
        } else {
            assert!(range.to_string().contains("::"), "{range}");
        }
    }
}

#[test]
fn metadata_services_are_denied_by_name() {
    for denied in
        ["metadata.google.internal", "Metadata.Google.Internal.", "x.metadata.goog", "instance-data"]
    {
        assert!(always_denied_name(&name(denied)), "{denied}");
    }
    for other in ["google.internal", "metadata.example", "notmetadata.goog", "goog"] {
        assert!(!always_denied_name(&name(other)), "{other}");
    }
}
