import host
import internet


def answer(lines):
    """The answer to TRACE has the request in its body, as Apache httpd sends it by default."""
    body = "\r\n".join(lines) if not lines[0].startswith("GET") else "ok"
    return f"HTTP/1.1 200 OK\r\nContent-Type: message/http\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


world = internet.Host(answer)
host.relay(host.run("program.py", internet.NAME, internet.SECRET, flags=world.flags))
host.say("requests that arrived", str(len(world.requests)))
