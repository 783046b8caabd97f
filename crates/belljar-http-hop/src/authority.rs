//! Host and port of a request.

use http::uri::Authority;

/// Splits a host and its optional port, as in the header `Host`. Returns `None` for anything that parsers read differently: user
/// names, and ports in a form other than decimal without sign and leading zeros. An empty port is none (RFC 3986, 3.2.3).
pub fn split_authority(text: &str) -> Option<(String, Option<u16>)> {
    let authority: Authority = text.parse().ok()?;
    let host = authority.host();
    // With a user name, the text does not begin with the host.
    let port = match authority.as_str().strip_prefix(host)? {
        "" | ":" => None,
        rest => {
            let digits = rest.strip_prefix(':')?;
            let port: u16 = digits.parse().ok()?;
            Some(port).filter(|port| port.to_string() == digits)?.into()
        }
    };
    Some((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_one_form() {
        let host = |port| Some(("x.example".to_owned(), port));
        for (text, expected) in [
            ("x.example", host(None)),
            ("x.example:", host(None)),
            ("x.example:80", host(Some(80))),
            ("x.example:+80", None),
            ("x.example:080", None),
            ("x.example:-1", None),
            ("x.example:65536", None),
            ("x.example:8 0", None),
            ("a@x.example", None),
            ("a:b@x.example:80", None),
            ("x.example@x.example", None),
            ("", None),
        ] {
            assert_eq!(split_authority(text), expected, "{text:?}");
        }
    }
}
