"""Splits URLs, and joins them."""

from urllib.parse import parse_qs, quote, unquote, urlencode, urljoin, urlsplit, urlunsplit


def with_query(url, **changes):
    parts = urlsplit(url)
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    query.update(changes)
    return urlunsplit(parts._replace(query=urlencode(sorted(query.items()))))


url = "https://user@example.org:8443/a/b%20c?x=1&y=two#end"
parts = urlsplit(url)
assert (parts.hostname, parts.port, parts.username, parts.fragment) == ("example.org", 8443, "user", "end")
assert with_query(url, x="9", z="a b") == "https://user@example.org:8443/a/b%20c?x=9&y=two&z=a+b#end"
assert urljoin("https://example.org/a/b/c", "../d?e") == "https://example.org/a/d?e"
assert unquote(quote("ü/&?", safe="")) == "ü/&?" and quote("ü") == "%C3%BC"
