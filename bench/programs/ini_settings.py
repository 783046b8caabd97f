"""Reads settings with defaults and references."""

import configparser
import io

TEXT = """
[DEFAULT]
root = /srv
[web]
path = %(root)s/www
port = 8080
debug = yes
[db]
root = /data
path = %(root)s/db
"""

settings = configparser.ConfigParser()
settings.read_string(TEXT)
assert settings.sections() == ["web", "db"]
assert settings["web"]["path"] == "/srv/www" and settings["db"]["path"] == "/data/db"
assert settings.getint("web", "port") == 8080 and settings.getboolean("web", "debug") is True
assert settings.get("web", "missing", fallback="none") == "none"
out = io.StringIO()
settings.write(out)
again = configparser.ConfigParser()
again.read_string(out.getvalue())
assert again == settings
