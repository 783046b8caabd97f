import base64
import urllib.parse

import host
import internet


def answer(lines):
    """Returns the secret that came with the request in each part of the answer."""
    secret = next(line for line in lines if line.lower().startswith("authorization: ")).split(" ")[-1]
    forms = [secret, "Basic " + base64.b64encode(f"me:{secret}".encode()).decode(), urllib.parse.quote(secret, safe="")]
    head = [f"HTTP/1.1 200 {secret}", "Connection: close", "Transfer-Encoding: chunked", "Trailer: X-Trailer", f"{secret}: 1"]
    head += [f"X-Form: {form}" for form in forms]
    return "\r\n".join([*head, "", "2", "ok", "0", *(f"X-Trailer: {form}" for form in forms), "", ""]).encode()


world = internet.Host(answer)
host.relay(host.run("program.py", internet.NAME, internet.SECRET, flags=world.flags))
