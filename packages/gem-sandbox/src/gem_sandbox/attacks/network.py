"""Attacks through sockets."""

from __future__ import annotations

NETWORK = {
    "connect to the host and to the world": """
import socket
for host, port in [("127.0.0.1", {port}), ("localhost", {port}), ("169.254.169.254", 80)]:
    attempt(host, lambda: socket.create_connection((host, port), 1))
udp = lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
attempt("udp", lambda: udp().sendto(b"x", ("127.0.0.1", {port})))
""",
    "listen": """
import socket
def listen():
    server = socket.socket(); server.bind(("0.0.0.0", 0)); server.listen(); return server
attempt("listen", listen)
""",
    "resolve names": """
import socket
attempt("name", lambda: socket.getaddrinfo("example.com", 80))
""",
    "reach sockets that are no network": """
import socket
def connect(family, address, kind=socket.SOCK_STREAM):
    link = socket.socket(family, kind); link.settimeout(1); link.connect(address); return link
attempt("abstract", lambda: connect(socket.AF_UNIX, "\\0{word}"))
for path in ["/run/systemd/private", "/var/run/docker.sock", "/run/dbus/system_bus_socket"]:
    attempt(path, lambda: connect(socket.AF_UNIX, path))
attempt("vsock", lambda: connect(40, (2, 1024)))
attempt("netlink", lambda: socket.socket(16, socket.SOCK_RAW, 0))
attempt("packet", lambda: socket.socket(17, socket.SOCK_RAW, 0))
left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
attempt("bind of a pair", lambda: left.bind("\\0name") is None)
attempt("sendto from a pair", lambda: left.sendto(b"x", "\\0{word}"))
""",
}
