"""Extracts text from HTML with the library's parser."""

from html import escape, unescape
from html.parser import HTMLParser


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.text = [], []

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.links.append(dict(attributes).get("href"))

    def handle_data(self, data):
        self.text.append(data)


parser = Links()
parser.feed('<p>See <a href="/a?b=1&amp;c=2">this</a> &amp; <a>that</a></p>')
assert parser.links == ["/a?b=1&c=2", None]
assert "".join(parser.text) == "See this & that"
assert unescape(escape("<\"&'>")) == "<\"&'>" and escape("<b>") == "&lt;b&gt;"
