"""Attacks on the files of the user and of the system."""

from __future__ import annotations

FILES = {
    "read the user's and the system's files": """
import glob, os
for path in ["{secret}", "/etc/passwd", "/etc/shadow", "/etc/hostname", "{home}/.bashrc"]:
    attempt(path, lambda: open(path).read(1) or None)
for pattern in ["{home}/*", "{home}/../*", "/var/*", "/run/*", "/mnt/*", "/srv/*"]:
    attempt(pattern, lambda: glob.glob(pattern) or None)
""",
    "read files through links and parents": """
import os
for number, target in enumerate(["{secret}", "/proc/1/root{secret}", "/proc/self/root{secret}",
                                 "/proc/1/cwd/../../../..{secret}", "../" * 20 + "{secret}"]):
    attempt(target, lambda: open(target).read(1))
    def follow():
        os.symlink(target, f"/tmp/link{number}")
        return open(f"/tmp/link{number}").read(1)
    attempt("link to " + target, follow)
    def hard():
        os.link(target, f"/tmp/hard{number}")
        return open(f"/tmp/hard{number}").read(1)
    attempt("hard link", hard)
""",
    "write outside the temporary folder": """
import json, os, sys
folders = {os.path.dirname(json.__file__), *sys.path, "/", "/etc", "/usr", "/usr/lib", "/dev",
           "/sandbox", "/sandbox/inside", "/python", "/packages", "/packages/numpy", "/empty",
           "/dev/fd", "/proc", os.path.dirname(os.__file__) + "/site-packages", "{home}"}
for folder in folders - {""}:
    if not folder.startswith("/tmp"):
        attempt("file in " + folder, lambda: open(folder + "/sitecustomize.py", "w").write("x"))
for name in ["json", "os"]:
    attempt("module " + name, lambda: open(sys.modules[name].__file__, "a").write("#"))
attempt("chmod", lambda: os.chmod("/usr", 0o777) is None)
attempt("remove", lambda: os.rename("/usr", "/usr2") is None)
""",
    "open devices": """
import os, stat
for name in "mem kmem kmsg sda vda nvme0n1 kvm fuse vsock net/tun ptmx".split():
    attempt(name, lambda: os.open("/dev/" + name, os.O_RDONLY))
for kind, number in ((stat.S_IFCHR, (1, 1)), (stat.S_IFBLK, (254, 0)), (stat.S_IFBLK, (8, 0))):
    def make():
        os.mknod("/tmp/node", kind | 0o600, os.makedev(*number))
        return os.open("/tmp/node", os.O_RDONLY)
    attempt(f"node {kind} {number}", make)
""",
    "use descriptors that were left open": """
import os
for descriptor in range(3, 4096):
    attempt(f"descriptor {descriptor}", lambda: os.fstat(descriptor))
""",
    "read the user's environment": """
import glob, os
attempt("variable", lambda: [name for name in os.environ if "{word}" in os.environ[name]] or None)
for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/task/*/environ"):
    attempt(path, lambda: b"{word}" in open(path, "rb").read())
""",
    "become root through setuid programs": """
import os, stat, subprocess
for folder in ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/local/bin"]:
    for top, folders, names in os.walk(folder):
        folders[:] = folders[:5]
        for name in names[:300]:
            path = os.path.join(top, name)
            if os.path.isfile(path) and os.stat(path).st_mode & stat.S_ISUID:
                run = lambda: subprocess.run([path], capture_output=True, timeout=1, input=b"")
                attempt(path, lambda: run().returncode == 0 and "ran")
for uid in (0, 1, 1000):
    attempt(f"setuid {uid}", lambda: os.setuid(uid) is None)
""",
    "get at modules through the object graph": """
import gc
def classes():
    seen = [object]
    for kind in seen:
        seen.extend(sub for sub in type.__subclasses__(kind) if sub not in seen)
        if len(seen) > 5000: break
    return seen
for kind in classes():
    scope = getattr(getattr(kind, "__init__", None), "__globals__", {})
    for name in ("sys", "os", "linecache", "io"):
        module = scope.get(name)
        opener = getattr(getattr(module, "modules", {}).get("io", module), "open", None)
        if opener:
            attempt("object graph", lambda: opener("{secret}").read(1))
attempt("loader", lambda: __loader__.get_data("{secret}"))
def printed():
    printer = type(license)("", "", ["{secret}"], [""])
    printer._Printer__setup()
    return any(printer._Printer__lines) or None
attempt("license", printed)
""",
    "escape from a restricted interpreter without imports": """
for text in ["open('{secret}').read()", "__import__('os').listdir('{home}')",
             "__builtins__['open']('{secret}').read()", "(lambda: 0).__globals__['__builtins__']"
             ".open('{secret}').read()", "[].__class__.__base__.__subclasses__()[0]"
             ".__init__.__globals__['os'].listdir('{home}')",
             "print.__self__.open('{secret}').read()",
             "(lambda f: f.__code__.replace(co_code=b'x'))(lambda: 0) and open('{secret}').read()",
             "help.__class__.__call__.__globals__['sys'].modules['os'].listdir('{home}')"]:
    attempt(text, lambda: eval(text))
""",
}
