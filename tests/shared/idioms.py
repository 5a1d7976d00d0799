"""Programs as people write them, each with its input: what an executor runs as `python3` does.

Three numbers and their sum are the task of most: the input is `INPUT`, and what matters is how the
program reads it, how it writes `6`, and how it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

INPUT = "3\n1 2 3\n"
_READ = "n = int(input()); s = sum(map(int, input().split()))\n"


@dataclass(frozen=True)
class Idiom:
    """A program, and what is special about it."""

    name: str
    program: str
    stdin: str = INPUT
    ends: bool = False
    """Whether it writes only when the interpreter ends, which in a session is not yet."""


def _reads(*bodies: tuple[str, str]) -> list[Idiom]:
    return [Idiom(name, _READ + body) for name, body in bodies]


def _ends(*bodies: tuple[str, str]) -> list[Idiom]:
    return [Idiom(name, _READ + body, ends=True) for name, body in bodies]


INPUTS = [
    Idiom(name, program)
    for name, program in [
        ("input", "input(); print(sum(map(int, input().split())))"),
        ("input with a prompt", "n = input('how many? '); print(n, input('which? '))"),
        ("input at the end", "input(); input()\ntry: input()\nexcept EOFError: print('end')"),
        ("input beyond the end", "input(); input(); print(6); input()"),
        ("readline", "import sys\ninput = sys.stdin.readline\nn = int(input())\nprint(input())"),
        ("readlines", "import sys\nprint(sys.stdin.readlines())"),
        ("read", "import sys\nn, *a = map(int, sys.stdin.read().split())\nprint(sum(a))"),
        ("lines", "import sys\nfor line in sys.stdin: print(line.strip())"),
        ("buffer", "import sys\nn, *a = map(int, sys.stdin.buffer.read().split())\nprint(sum(a))"),
        ("buffered lines", "import sys\nr = sys.stdin.buffer.readline\nr(); print(r())"),
        ("open(0)", "n, *a = map(int, open(0).read().split())\nprint(sum(a))"),
        ("open(0, 'rb')", "print(*open(0, 'rb'))"),
        ("open('/dev/stdin')", "with open('/dev/stdin') as file: print(file.read().split())"),
        ("os.read", "import os\nprint(os.read(0, 100).split())"),
        ("os.read to the end", "import os\nprint(os.read(0, os.fstat(0).st_size))"),
        ("os.fdopen(0)", "import os\nprint(os.fdopen(0).readline())"),
        ("fileinput", "import fileinput\nfor line in fileinput.input(): print(line.rstrip())"),
        ("mmap", "import mmap\nm = mmap.mmap(0, 0, access=mmap.ACCESS_READ)\nprint(m.readline())"),
        ("mixed readers", "import sys, os\nprint(input())\nprint(sys.stdin.read(), os.read(0, 9))"),
        ("seek", "import sys\nsys.stdin.read(); sys.stdin.seek(0); print(input())"),
        ("iter(input, '')", "print(next(iter(input, '')))"),
        ("select", "import select\nprint(select.select([0], [], [], 0)[0])"),
        ("stdin closed", "import sys\nsys.stdin.close()\ntry: input()\nexcept ValueError: print(6)"),
        ("stdin replaced", "import io, sys\nsys.stdin = io.StringIO('7 8')\nprint(input())"),
        ("stdin deleted", "import sys\ndel sys.stdin\ninput()"),
        ("redirected", "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as f:\n"
                       "    print(6)\nprint(f.getvalue())"),
        (
            "BytesIO",
            "import io, os, sys\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\n"
            "input(); print(sum(map(int, input().split())))",
        ),
        (
            "IOBase streams",
            "import os, sys\nfrom io import BytesIO, IOBase\n"
            "class FastIO(IOBase):\n"
            "    newlines = 0\n"
            "    def __init__(self, file):\n"
            "        self._fd = file.fileno()\n"
            "        self.buffer = BytesIO()\n"
            "        self.writable = 'x' in file.mode or 'r' not in file.mode\n"
            "        self.write = self.buffer.write if self.writable else None\n"
            "    def readline(self):\n"
            "        while self.newlines == 0:\n"
            "            b = os.read(self._fd, max(os.fstat(self._fd).st_size, 8192))\n"
            "            self.newlines = b.count(b'\\n') + (not b)\n"
            "            ptr = self.buffer.tell()\n"
            "            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)\n"
            "        self.newlines -= 1\n"
            "        return self.buffer.readline()\n"
            "    def flush(self):\n"
            "        if self.writable:\n"
            "            os.write(self._fd, self.buffer.getvalue())\n"
            "            self.buffer.truncate(0), self.buffer.seek(0)\n"
            "class IOWrapper(IOBase):\n"
            "    def __init__(self, file):\n"
            "        self.buffer = FastIO(file)\n"
            "        self.flush = self.buffer.flush\n"
            "        self.writable = self.buffer.writable\n"
            "        self.write = lambda s: self.buffer.write(s.encode('ascii'))\n"
            "        self.read = lambda: self.buffer.read().decode('ascii')\n"
            "        self.readline = lambda: self.buffer.readline().decode('ascii')\n"
            "sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)\n"
            "input = lambda: sys.stdin.readline().rstrip('\\r\\n')\n"
            "input(); print(sum(map(int, input().split())))",
        ),
        ("async reader", "import asyncio\nasync def main():\n"
                         "    print(await asyncio.to_thread(input))\nasyncio.run(main())"),
    ]
]  # fmt: skip
INPUTS += [
    Idiom("no input", "print(input())", ""),
    Idiom("no last newline", "print(repr(input()), repr(input()))", "1\n2"),
    Idiom("carriage returns", "print(repr(input()), repr(input()))", "1\r\n2\r\n"),
    Idiom("carriage returns in bytes", "import sys\nprint(sys.stdin.buffer.read())", "1\r\n2\r\n"),
    Idiom("no ASCII", "s = input(); print(len(s), s[::-1])", "日本é\n"),
    Idiom("no ASCII in bytes", "import sys\nprint(sys.stdin.buffer.read())", "日本é\n"),
    Idiom("form feeds", "import sys\nprint(sys.stdin.read().splitlines())", "a\x0cb\x1c\n"),
    Idiom("NUL", "print(repr(input()))", "a\0b\n"),
]

OUTPUTS = _reads(
    ("print", "print(s)"),
    ("print with flush", "print(s, flush=True)"),
    ("print without an end", "print(s, end='')"),
    ("print to stderr", "import sys\nprint('debug', file=sys.stderr); print(s)"),
    ("print to nothing", "print(s, file=None)"),
    ("sys.stdout.write", "import sys\nsys.stdout.write(str(s) + '\\n')"),
    ("sys.stdout.writelines", "import sys\nsys.stdout.writelines([f'{s}', '\\n'])"),
    ("sys.stdout.buffer.write", "import sys\nsys.stdout.buffer.write(b'%d\\n' % s)"),
    ("text, then bytes", "import sys\nprint('a'); sys.stdout.buffer.write(b'b\\n'); print('c')"),
    ("flushed text, then bytes", "import sys\nprint('a', flush=True)\nsys.stdout.buffer.write(b'b')"),
    ("os.write", "import os\nprint('last'); os.write(1, b'first\\n')"),
    ("sys.__stdout__", "import sys\nprint(s, file=sys.__stdout__)"),
    ("reconfigure", "import sys\nsys.stdout.reconfigure(line_buffering=True); print(s)"),
    ("reconfigure encoding", "import sys\nsys.stdout.reconfigure(encoding='latin-1'); print('é')"),
    ("encoding error", "import sys\nsys.stdout.reconfigure(encoding='ascii'); print('a'); print('é')"),
    ("surrogate", "print('\\udc80')"),
    ("lone surrogate", "print('a'); print('\\ud800')"),
    ("no ASCII", "print('日本é')"),
    ("other newlines", "print('a\\r\\nb\\rc')"),
    ("detach", "import sys\nout = sys.stdout.detach(); out.write(b'%d' % s); out.flush()"),
    ("fully buffered", "import sys\nsys.stdout = open(1, 'w', 1 << 16); print(s); sys.stdout.flush()"),
    ("unbuffered", "import sys\nsys.stdout = open(1, 'wb', 0); sys.stdout.write(b'%d' % s)"),
    ("with open(1)", "with open(1, 'w') as out: out.write(str(s))"),
    ("closefd", "with open(1, 'w', closefd=False) as out: out.write(str(s))\nprint(7)"),
    ("print after close", "import sys\nprint(s); sys.stdout.close(); print(7)"),
    ("os.close(1)", "import os\nprint(s, flush=True); os.close(1)"),
    ("os.close(1), then print", "import os\nprint(s, flush=True); os.close(1); print(7)"),
    ("os.close(1) before the flush", "import os\nprint(s); os.close(1)"),
    ("os.closerange", "import os\nprint(s, flush=True); os.closerange(3, 100)"),
    ("os.dup2", "import os\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1); print(s)"),
    ("os.sendfile", "import os\nopen('f', 'w').write('6\\n')\nos.sendfile(1, os.open('f', 0), 0, 2)"),
    ("logging", "import logging\nlogging.basicConfig(level=10); logging.info('x'); print(s)"),
    ("logging to stdout", "import logging, sys\nlogging.basicConfig(stream=sys.stdout, level=10)\n"
                          "logging.info(s)"),
    ("warnings", "import warnings\nwarnings.warn('careful'); print(s)"),
    ("deprecation", "import warnings\nwarnings.warn('old', DeprecationWarning); print(s)"),
    ("syntax warning", "print(s is 6 or s)"),
    ("pprint", "from pprint import pprint\npprint({'s': s})"),
    ("a lot", "print('x' * 10**6); print(s)"),
    ("many lines", "for i in range(20000): print(i)"),
    ("C's own output", "import ctypes\nc = ctypes.CDLL(None)\nc.printf(b'%d\\n', s); c.fflush(None)"),
    ("a child's output", "import subprocess, sys\n"
                         "subprocess.run([sys.executable, '-c', 'print(7)']); print(s)"),
    ("a fork's output", "import os\nprint(s, flush=True)\nif os.fork() == 0:\n    print(7)\n"
                        "else:\n    os.wait()"),
    ("a fork that flushes again", "import os\nprint(s)\nif os.fork(): os.wait()"),
    ("os.system", "import os\nprint(os.system('exit 3') != 0)"),
)  # fmt: skip

ENDINGS = _reads(
    ("exit()", "print(s)\nexit()"),
    ("exit() in the middle", "print(s)\nif s: exit()\nprint(7)"),
    ("exit(0)", "print(s); exit(0)"),
    ("exit(3)", "print(s); exit(3)"),
    ("exit('words')", "print(s); exit('words')"),
    ("exit in a function", "def solve():\n    print(s)\n    exit()\nsolve()"),
    ("quit()", "print(s)\nquit()"),
    ("quit(1)", "print(s)\nquit(1)"),
    ("print(exit)", "print(exit, quit, repr(quit))"),
    ("exit without a call", "print(s)\nexit"),
    ("copyright", "copyright(); print(type(credits), type(license))"),
    ("help", "print(help); help('while')"),
    ("builtins of site", "import builtins\nprint(sorted(set(dir(builtins)) - {'_'}))"),
    ("site", "import site, sys\nprint('site' in sys.modules, callable(exit))"),
    ("stdin is closed by exit", "import sys\ntry: exit()\nexcept SystemExit: print(sys.stdin.closed)"),
    ("sys.exit()", "import sys\nprint(s); sys.exit()"),
    ("sys.exit(None)", "import sys\nprint(s); sys.exit(None)"),
    ("sys.exit(0)", "import sys\nprint(s); sys.exit(0)"),
    ("sys.exit(5)", "import sys\nprint(s); sys.exit(5)"),
    ("sys.exit(-1)", "import sys\nprint(s); sys.exit(-1)"),
    ("sys.exit(256)", "import sys\nprint(s); sys.exit(256)"),
    ("sys.exit(2**40)", "import sys\nprint(s); sys.exit(2**40 + 3)"),
    ("sys.exit(2**70)", "import sys\nprint(s); sys.exit(2**70)"),
    ("sys.exit(-2**70)", "import sys\nprint(s); sys.exit(-2**70)"),
    ("sys.exit(True)", "import sys\nprint(s); sys.exit(True)"),
    ("sys.exit(False)", "import sys\nprint(s); sys.exit(False)"),
    ("sys.exit(3.5)", "import sys\nprint(s); sys.exit(3.5)"),
    ("sys.exit('words')", "import sys\nprint(s); sys.exit('words')"),
    ("sys.exit('')", "import sys\nprint(s); sys.exit('')"),
    ("sys.exit((1, 2))", "import sys\nprint(s); sys.exit((1, 2))"),
    ("sys.exit(bytes)", "import sys\nprint(s); sys.exit(b'words')"),
    ("sys.exit(print())", "import sys\nsys.exit(print(s))"),
    ("sys.exit of what has no text", "import sys\nclass A:\n    def __str__(self): 1 / 0\nsys.exit(A())"),
    ("sys.exit('words') without stderr", "import sys\nsys.stderr = None; print(s); sys.exit('words')"),
    ("sys.exit('words') with stderr closed", "import sys\nsys.stderr.close(); print(s)\n"
                                            "sys.exit('words')"),
    ("raise SystemExit", "print(s); raise SystemExit"),
    ("raise SystemExit(2)", "print(s); raise SystemExit(2)"),
    ("subclass of SystemExit", "class Stop(SystemExit): pass\nprint(s); raise Stop(4)"),
    ("code set later", "e = SystemExit(1); e.code = 0\nprint(s); raise e"),
    ("code that fails", "class Stop(SystemExit):\n    @property\n    def code(self): 1 / 0\n"
                        "print(s); raise Stop(4)"),
    ("SystemExit caught", "import sys\ntry: sys.exit(1)\nexcept: print(s)"),
    ("SystemExit in finally", "import sys\ntry: 1 / 0\nfinally: print(s); sys.exit()"),
    ("SystemExit in a thread", "import sys, threading\nt = threading.Thread(target=sys.exit, args=(3,))\n"
                               "t.start(); t.join(); print(s)"),
    ("uncaught", "print(s)\n1 / 0"),
    ("uncaught in a function", "def f():\n    g()\ndef g():\n    raise ValueError('why')\n"
                               "print(s)\nf()"),
    ("uncaught with a cause", "print(s)\ntry: 1 / 0\nexcept Exception as e: raise KeyError(1) from e"),
    ("uncaught group", "print(s)\nraise ExceptionGroup('several', [ValueError(1), KeyError(2)])"),
    ("uncaught with a note", "e = ValueError('x'); e.add_note('note'); raise e"),
    ("uncaught BaseException", "print(s)\nraise BaseException('x')"),
    ("uncaught GeneratorExit", "print(s)\nraise GeneratorExit"),
    ("uncaught without text", "class E(Exception):\n    def __str__(self): 1 / 0\nprint(s)\nraise E"),
    ("uncaught in exec", "print(s)\nexec('x = 1\\n1 / 0')"),
    ("uncaught in an import", "open('helper.py', 'w').write('1 / 0')\nimport helper"),
    ("AssertionError", "print(s)\nassert s == 7, s"),
    ("MemoryError", "print(s)\nraise MemoryError"),
    ("RecursionError", "def f(): f()\nprint(s)\ntry: f()\nexcept RecursionError: print('deep')"),
    ("NameError with a hint", "value = 1\nprint(vlaue)"),
    ("AttributeError with a hint", "import math\nprint(math.sqr(4))"),
    ("excepthook", "import sys\ndef hook(kind, error, trace): print('hook', error)\n"
                   "sys.excepthook = hook\nprint(s)\nraise ValueError('x')"),
    ("excepthook that fails", "import sys\nsys.excepthook = lambda *_: 1 / 0\nprint(s)\nraise KeyError(1)"),
    ("excepthook that exits", "import sys\nsys.excepthook = lambda *_: sys.exit(7)\nprint(s)\n1 / 0"),
    ("excepthook that exits with words", "import sys\nsys.excepthook = lambda *_: sys.exit('bye')\n1 / 0"),
    ("excepthook missing", "import sys\ndel sys.excepthook\nprint(s)\n1 / 0"),
    ("excepthook None", "import sys\nsys.excepthook = None\nprint(s)\n1 / 0"),
    ("excepthook restored", "import sys\nsys.excepthook = sys.__excepthook__\n1 / 0"),
    ("uncaught with stderr closed", "import sys\nsys.stderr.close()\nprint(s)\n1 / 0"),
    ("uncaught without stderr", "import sys\nsys.stderr = None\nprint(s)\n1 / 0"),
    ("tracebacklimit", "import sys\nsys.tracebacklimit = 0\nprint(s)\n1 / 0"),
    ("last exception", "import atexit, sys\natexit.register(lambda: print(repr(sys.last_value)))\n"
                       "print(s)\n1 / 0"),
    ("KeyboardInterrupt", "print(s)\nraise KeyboardInterrupt"),
    ("KeyboardInterrupt caught", "try: raise KeyboardInterrupt\nexcept KeyboardInterrupt: print(s)"),
    ("SIGINT", "import os, signal\nprint(s)\ntry: os.kill(os.getpid(), signal.SIGINT)\n"
               "except KeyboardInterrupt: print('interrupted')"),
    ("os._exit", "import os\nprint(s)\nos._exit(0)"),
    ("os._exit after a flush", "import os\nprint(s, flush=True)\nos._exit(3)"),
    ("os._exit after words on stderr", "import os, sys\nsys.stderr.write('a\\nb\\n'); os._exit(2)"),
    ("os._exit in a thread", "import os, threading\nprint(s, flush=True)\n"
                             "threading.Thread(target=os._exit, args=(4,)).start()\nwhile True: pass"),
    ("os.execv", "import os, sys\nprint(s, flush=True)\n"
                 "os.execv(sys.executable, [sys.executable, '-c', 'print(7)'])"),
    ("segmentation fault", "import ctypes\nprint(s, flush=True)\nctypes.string_at(0)"),
    ("syntax error", "print(s\nx"),
    ("indentation error", "if s:\nprint(s)"),
    ("tabs and spaces", "if s:\n        print(1)\n\tprint(2)"),
    ("SIGALRM with a handler", "import signal, time\ndef late(*_):\n    print(s); exit(5)\n"
                               "signal.signal(signal.SIGALRM, late); signal.setitimer(0, 0.05)\n"
                               "while True: time.sleep(1)"),
    ("SIGUSR1 with a handler", "import os, signal\n"
                               "signal.signal(signal.SIGUSR1, lambda *_: print('signal', s))\n"
                               "os.kill(os.getpid(), signal.SIGUSR1)"),
    ("SIGTERM with a handler", "import signal\nsignal.signal(signal.SIGTERM, lambda *_: exit(9))\n"
                               "print(s); signal.raise_signal(signal.SIGTERM)"),
    ("handlers at the start", "import signal\nprint(signal.getsignal(signal.SIGINT), "
                              "signal.getsignal(signal.SIGPIPE), signal.getsignal(signal.SIGTERM), "
                              "signal.getsignal(signal.SIGXFSZ), signal.getsignal(signal.SIGCHLD))"),
    ("faulthandler", "import faulthandler\nfaulthandler.enable(); print(s)"),
    ("breakpoint", "print(s)\nbreakpoint()\nprint(7)"),
    ("breakpoint that does nothing", "import sys\nsys.breakpointhook = lambda: print('here')\n"
                                     "breakpoint(); print(s)"),
    ("a generator that is not finished", "def g():\n    try: yield s\n    finally: pass\nprint(next(g()))"),
    ("threads that are joined", "import threading\nt = threading.Thread(target=print, args=(s,))\n"
                                "t.start(); t.join()"),
    ("a thread with a big stack", "import sys, threading\nsys.setrecursionlimit(10**6)\n"
                                  "threading.stack_size(1 << 27)\n"
                                  "def f(n): return n and 1 + f(n - 1)\n"
                                  "def main(): print(f(30000))\n"
                                  "t = threading.Thread(target=main); t.start(); t.join()"),
    ("a thread that prints later", "import threading, time\n"
                                   "threading.Thread(target=lambda: (time.sleep(0.05), print(s))).start()"),
    ("a timer", "import threading\nthreading.Timer(0.02, print, [s]).start()"),
    ("a thread started by a thread", "import threading, time\ndef f():\n    time.sleep(0.05)\n"
                                     "    threading.Thread(target=print, args=(s,)).start()\n"
                                     "threading.Thread(target=f).start()"),
    ("a thread that fails", "import threading\ndef f(): 1 / 0\nt = threading.Thread(target=f)\n"
                            "t.start(); t.join(); print(s)"),
    ("threading.excepthook", "import threading\nthreading.excepthook = lambda a: print('hook', a.exc_value)\n"
                             "def f(): 1 / 0\nt = threading.Thread(target=f); t.start(); t.join()"),
    ("a daemon that waits", "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True)"
                            ".start()\nprint(s)"),
    ("a thread after an error", "import threading, time\n"
                                "threading.Thread(target=lambda: (time.sleep(0.05), print(s))).start()\n"
                                "1 / 0"),
    ("a pool of threads", "from concurrent.futures import ThreadPoolExecutor\n"
                          "pool = ThreadPoolExecutor(2); print(*pool.map(abs, [-s]))\npool.submit(print, 7)"),
    ("asyncio", "import asyncio\nasync def f(): return s\nprint(asyncio.run(f()))"),
    ("a coroutine that is not awaited", "async def f(): pass\nf()\nprint(s)"),
    ("asyncio.run fails", "import asyncio\nasync def f(): 1 / 0\nprint(s)\nasyncio.run(f())"),
    ("multiprocessing", "from multiprocessing import get_context\n"
                        "with get_context('fork').Pool(2) as pool: print(pool.map(abs, [-s]))"),
    ("a process", "import multiprocessing as m\np = m.get_context('fork').Process(target=print, args=(s,))\n"
                  "p.start(); p.join()"),
    ("a spawned process", "import multiprocessing as m\n"
                          "def f(): print('child')\n"
                          "if __name__ == '__main__':\n    p = m.get_context('spawn').Process(target=f)\n"
                          "    p.start(); p.join(); print(p.exitcode)"),
    ("signal mask", "import signal\nprint(signal.pthread_sigmask(signal.SIG_BLOCK, []))"),
    ("unraisable now", "class A:\n    def __del__(self): 1 / 0\nA()\nprint(s)"),
    ("unraisablehook", "import sys\nsys.unraisablehook = lambda a: print('hook', a.exc_value)\n"
                       "class A:\n    def __del__(self): 1 / 0\nA(); print(s)"),
    ("a broken pipe", "import os\nr, w = os.pipe(); os.close(r)\ntry: os.write(w, b'x')\n"
                      "except BrokenPipeError: print(s)"),
    ("settrace", "import sys\nsys.settrace(lambda *a: None); print(s)"),
)  # fmt: skip

LAST = _ends(
    ("open(1, 'w') not closed", "out = open(1, 'w')\nout.write(f'{s}\\n')"),
    ("open(1, 'wb') not closed", "out = open(1, 'wb')\nout.write(b'%d\\n' % s)"),
    ("os.fdopen(1) not closed", "import os\nout = os.fdopen(1, 'w')\nout.write(f'{s}\\n')"),
    ("os.fdopen of a copy", "import os\nout = os.fdopen(os.dup(1), 'w')\nout.write(f'{s}\\n')"),
    ("/dev/stdout not closed", "out = open('/dev/stdout', 'w')\nprint(s, file=out)"),
    ("wrapper of stdout.buffer", "import io, sys\nout = io.TextIOWrapper(sys.stdout.buffer)\n"
                                 "out.write(f'{s}\\n')"),
    ("sys.stdout wrapped", "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'utf-8')\n"
                           "print(s)"),
    ("codecs writer", "import codecs, sys\nsys.stdout = codecs.getwriter('utf-8')(sys.stdout.buffer)\n"
                      "print(s)"),
    ("BufferedWriter", "import io\nout = io.BufferedWriter(io.FileIO(1, 'w', closefd=False))\n"
                       "out.write(b'%d\\n' % s)"),
    ("BufferedWriter of detach", "import sys\nout = sys.stdout.detach(); out.write(b'%d' % s)"),
    ("stdout replaced by a buffer, written at exit", "import atexit, io, sys\nb = io.StringIO()\n"
     "sys.stdout = b\natexit.register(lambda: sys.__stdout__.write(b.getvalue()))\nprint(s)"),
    ("stdout replaced, then sys.__stdout__", "import io, sys\nsys.stdout = io.StringIO()\nprint(s)\n"
     "sys.__stdout__.write(sys.stdout.getvalue())"),
    ("stdout kept, then replaced", "import io, sys\nold = sys.stdout\nsys.stdout = io.StringIO()\n"
                                   "print(s)\nold.write(sys.stdout.getvalue())"),
    ("stdout replaced after writing", "import sys\nsys.stdout.write(f'{s}\\n')\n"
                                      "sys.stdout = open('/dev/null', 'w')"),
    ("stdout replaced by open(1)", "import sys\nprint(s)\nsys.stdout = open(1, 'w'); print(7)"),
    ("stdout and sys.__stdout__ replaced", "import io, sys\nprint(s)\nsys.stdout = sys.__stdout__ = None"),
    ("stdout deleted", "import sys\nprint(s); del sys.stdout"),
    ("stdout None", "import sys\nprint(s); sys.stdout = None; print(7)"),
    ("stdout without flush", "import sys\nclass W:\n    def write(self, t): sys.__stdout__.write(t)\n"
                             "sys.stdout = W(); print(s)"),
    ("stdout whose flush fails", "import sys\nclass W:\n    def write(self, t): sys.__stdout__.write(t)\n"
                                 "    def flush(self): 1 / 0\nsys.stdout = W(); print(s)"),
    ("stdout whose flush exits", "import sys\nclass W:\n    def write(self, t): sys.__stdout__.write(t)\n"
                                 "    def flush(self): sys.exit(3)\nsys.stdout = W(); print(s)"),
    ("stdout closed", "import sys\nprint(s)\nsys.stdout.close()"),
    ("stderr closed", "import sys\nprint(s)\nsys.stderr.close()"),
    ("both closed", "import sys\nprint(s)\nsys.stdout.close(); sys.stderr.close()"),
    ("stdin closed at the end", "import sys\nprint(s)\nsys.stdin.close()"),
    ("print, then os.close(1)", "import os\nprint(s); os.close(1)"),
    ("open(1) closed twice", "out = open(1, 'w'); print(s, file=out); out.close()\nprint(7)"),
    ("open(1) beside print", "out = open(1, 'w'); print('a', file=out)\nprint('b')"),
    ("disk full", "import sys\nsys.stdout = open('/dev/full', 'w'); print(s)"),
    ("__del__ of a global", "class W:\n    def __del__(self): print(s)\nw = W()"),
    ("__del__ of two globals", "class W:\n    def __init__(self, n): self.n = n\n"
                               "    def __del__(self): print(self.n, s)\na = W(1); b = W(2)"),
    ("__del__ in a list", "class W:\n    def __init__(self, n): self.n = n\n"
                          "    def __del__(self): print(self.n)\nall = [W(1), W(2), W(3)]"),
    ("__del__ in a cycle", "class W:\n    def __del__(self): print(s)\nw = W(); w.me = w"),
    ("__del__ in a dead cycle", "class W:\n    def __del__(self): print(s)\nw = W(); w.me = w; del w"),
    ("__del__ that fails", "class W:\n    def __del__(self): print(s); 1 / 0\nw = W()"),
    ("__del__ that exits", "import sys\nclass W:\n    def __del__(self): print(s); sys.exit(5)\nw = W()"),
    ("__del__ that imports", "class W:\n    def __del__(self):\n        import os\n        os.write(1, b'x')\n"
                             "w = W()"),
    ("__del__ that asks", "import sys\nclass W:\n    def __del__(self): print(sys.is_finalizing())\nw = W()"),
    ("__del__ and os.write", "import os\nclass W:\n    def __del__(self): os.write(1, b'last\\n')\n"
                             "w = W(); print(s)"),
    ("__del__ without slots", "class W:\n    __slots__ = ()\n    def __del__(self): print(s)\nw = W()"),
    ("__del__ after exit()", "class W:\n    def __del__(self): print(s)\nw = W()\nexit(2)"),
    ("__del__ after an error", "class W:\n    def __del__(self): print(s)\ndef f():\n    w = W()\n    1 / 0\nf()"),
    ("__del__ in builtins", "import builtins\nclass W:\n    def __del__(self): print(s)\nbuiltins.w = W()"),
    ("__del__ in another module", "import os\nclass W:\n    def __del__(self): print(s)\nos.w = W()"),
    ("__del__ in sys", "import sys\nclass W:\n    def __del__(self): print(s)\nsys.w = W()"),
    ("__del__ in a default", "class W:\n    def __del__(self): print(s)\ndef f(w=W()): pass"),
    ("__del__ in a module of its own", "open('helper.py', 'w').write('class W:\\n'\n"
     "'    def __del__(self): print(7)\\nw = W()')\nimport helper\nprint(s)"),
    ("__del__ in a thread's local", "import threading\nclass W:\n    def __del__(self): print(s)\n"
                                    "here = threading.local(); here.w = W()"),
    ("__del__ of a frozen object", "import gc\nclass W:\n    def __del__(self): print(s)\nw = W()\n"
                                   "w.me = w; gc.freeze()"),
    ("no garbage collection", "import gc\ngc.disable()\nclass W:\n    def __del__(self): print(s)\n"
                              "w = W(); w.me = w; del w"),
    ("weakref.finalize", "import weakref\nclass A: pass\na = A(); weakref.finalize(a, print, s)"),
    ("weakref.finalize not at exit", "import weakref\nclass A: pass\na = A()\n"
                                     "weakref.finalize(a, print, s).atexit = False"),
    ("weakref callback", "import weakref\nclass A: pass\na = A()\nr = weakref.ref(a, lambda r: print(s))"),
    ("weakref callback of a builtin", "import os, weakref\nclass A: pass\na = A()\n"
                                      "r = weakref.ref(a, lambda r, w=os.write: w(1, b'dead'))"),
    ("a generator's finally", "def g():\n    try: yield\n    finally: print(s)\nh = g(); next(h)"),
    ("a generator's with", "import contextlib\n@contextlib.contextmanager\ndef c():\n    yield\n"
                           "    print(s)\nm = c(); m.__enter__()"),
    ("a coroutine left over", "async def f(): pass\nc = f()\nprint(s)"),
    ("an asynchronous generator left over", "import asyncio\nasync def g():\n    try: yield 1\n"
     "    finally: print('closed')\nasync def main():\n    async for x in h: break\nh = g()\nasyncio.run(main())\nprint(s)"),
    ("atexit", "import atexit\natexit.register(print, s)"),
    ("atexit, twice", "import atexit\natexit.register(print, 1); atexit.register(print, 2)"),
    ("atexit unregistered", "import atexit\natexit.register(print, 1); atexit.unregister(print); print(s)"),
    ("atexit that fails", "import atexit\natexit.register(print, s)\natexit.register(lambda: 1 / 0)"),
    ("atexit that exits", "import atexit, sys\natexit.register(print, s)\natexit.register(sys.exit, 3)"),
    ("atexit that calls os._exit", "import atexit, os\nprint(s); atexit.register(os._exit, 3)"),
    ("atexit in atexit", "import atexit\natexit.register(lambda: atexit.register(print, s))"),
    ("atexit after an error", "import atexit\natexit.register(print, s)\n1 / 0"),
    ("atexit after sys.exit", "import atexit, sys\natexit.register(print, s)\nsys.exit(4)"),
    ("atexit after os._exit", "import atexit, os\natexit.register(print, s)\nos._exit(4)"),
    ("atexit and threads", "import atexit, threading, time\natexit.register(print, 'atexit')\n"
                           "threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()"),
    ("atexit flushes", "import atexit, io, os, sys\nb = io.BytesIO()\n"
                       "sys.stdout = io.TextIOWrapper(b, write_through=True)\n"
                       "atexit.register(lambda: os.write(1, b.getvalue()))\nprint(s)"),
    ("logging at the end", "import logging\nlogging.getLogger().addHandler(\n"
                           "    logging.StreamHandler(open(1, 'w')))\nlogging.warning('%d', s)"),
    ("memory handler", "import logging, logging.handlers, sys\n"
     "logging.getLogger().addHandler(logging.handlers.MemoryHandler(\n"
     "    99, target=logging.StreamHandler(sys.stdout)))\nlogging.warning('%d', s)"),
    ("temporary file", "import tempfile\nf = tempfile.NamedTemporaryFile('w'); f.write('x'); print(s)"),
    ("a file that is not closed", "f = open('f', 'w'); f.write('x'); print(s)"),
    ("a warning at the end", "import warnings\nwarnings.simplefilter('always')\nf = open('f', 'w')\nprint(s)"),
    ("an ExitStack left over", "import contextlib\nstack = contextlib.ExitStack()\n"
                               "stack.callback(print, s)"),
    ("C's own buffer", "import ctypes\nctypes.CDLL(None).printf(b'%d\\n', s)"),
    ("KeyboardInterrupt, then atexit", "import atexit\natexit.register(print, s)\nraise KeyboardInterrupt"),
    ("daemon at the end", "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), "
                          "daemon=True).start()\nclass W:\n    def __del__(self): print(s)\nw = W()"),
    ("iterator with a file", "out = open(1, 'w')\nwrite = out.write\nwrite(str(s))"),
    ("lru_cache of a file", "import functools\n@functools.cache\ndef out(): return open(1, 'w')\n"
                            "out().write(str(s))"),
    ("class attribute", "class Out:\n    file = open(1, 'w')\nOut.file.write(str(s))"),
    ("print as a partial", "import functools\np = functools.partial(print, file=open(1, 'w'))\np(s)"),
    ("exec_", "exec('out = open(1, \"w\"); out.write(\"6\")')"),
    ("a fork with an open file", "import os\nout = open(1, 'w'); out.write(str(s))\n"
                                 "if os.fork(): os.wait()"),
    ("multiprocessing at the end", "import multiprocessing as m\n"
                                   "p = m.get_context('fork').Process(target=print, args=(s,))\np.start()"),
    ("pool of processes left over", "from multiprocessing import get_context\n"
                                    "pool = get_context('fork').Pool(1)\nprint(pool.map(abs, [-s]))"),
    ("threading._register_atexit", "from concurrent.futures import ThreadPoolExecutor\nimport time\n"
     "ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.05), print(s)))"),
)  # fmt: skip

WORLD = [
    Idiom(name, program)
    for name, program in [
        ("__name__", "print(__name__)"),
        ("the names at the start", "print(sorted(globals()))"),
        ("__file__", "import os\nprint(os.path.basename(__file__), os.path.isabs(__file__))"),
        ("its own source", "print(open(__file__).read())"),
        ("inspect", "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))"),
        ("module", "class A: pass\nprint(A.__module__, A, __spec__, __package__, __builtins__)"),
        ("loader", "print(type(__loader__).__name__, __loader__.name)"),
        ("docstring", "'''what it does'''\nprint(__doc__)"),
        ("annotations", "x: int = 1\nprint(__annotations__)"),
        ("import __main__", "import __main__\nx = 1\nprint(__main__.x, __main__.__dict__ is globals())"),
        ("sys.argv", "import os, sys\nprint(len(sys.argv), os.path.basename(sys.argv[0]))"),
        ("argparse", "import argparse\nprint(argparse.ArgumentParser().parse_args())"),
        ("argparse that fails", "import argparse\nargparse.ArgumentParser().parse_args(['x'])"),
        ("import of a module of its own", "open('helper.py', 'w').write('x = 5')\nimport helper\n"
                                          "print(helper.x)"),
        ("no frames below", "import sys\ntry: sys._getframe(1)\nexcept ValueError as e: print(e)"),
        ("print_stack", "import traceback\ntraceback.print_stack(); print(len(traceback.extract_stack()))"),
        ("print_exc", "import traceback\ntry: 1 / 0\nexcept Exception: traceback.print_exc()\nprint(6)"),
        ("format_exc", "import traceback\ntry: 1 / 0\nexcept Exception: print(traceback.format_exc()[:33])"),
        ("pickle", "import pickle\nclass A: x = 1\nprint(pickle.loads(pickle.dumps(A())).x)"),
        ("dataclass", "from dataclasses import dataclass\n@dataclass(order=True)\nclass P:\n    x: int = 1\n"
                      "print(P())"),
        ("get_type_hints", "import typing\ndef f(x: 'int') -> None: pass\nprint(typing.get_type_hints(f))"),
        ("enum", "import enum\nclass C(enum.Enum): A = 1\nprint(C.A, pickle if False else C['A'])"),
        ("hash of text", "print(hash('a'), {'a', 'b', 'c'})"),
        ("locale", "import locale\nprint(locale.getpreferredencoding())"),
        ("encodings", "import sys\nprint(sys.stdin.encoding, sys.stdout.encoding, sys.stderr.encoding, "
                      "sys.getdefaultencoding(), sys.getfilesystemencoding())"),
        ("errors", "import sys\nprint(sys.stdin.errors, sys.stdout.errors, sys.stderr.errors)"),
        ("names of streams", "import sys\nprint(sys.stdin, sys.stdout, sys.stderr, sys.stdin.mode, "
                             "sys.stdout.name, sys.stderr.mode, sys.stdin.buffer.raw)"),
        ("buffering of streams", "import sys\nprint(*[(s.line_buffering, s.write_through, s.isatty()) "
                                 "for s in (sys.stdin, sys.stdout, sys.stderr)])"),
        ("descriptors of streams", "import sys\nprint(sys.stdin.fileno(), sys.stdout.fileno())"),
        ("streams that are the same", "import sys\nprint(sys.stdin is sys.__stdin__, "
                                      "sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)"),
        ("open without an encoding", "open('f', 'w').write('é')\nprint(open('f', 'rb').read())"),
        ("encoding of the source", "# -*- coding: latin-1 -*-\nprint('\xe9')"),
        ("byte order mark", "\ufeffprint(6)"),
        ("Windows newlines", "x = '''a\r\nb'''\r\nprint(repr(x))\r\n"),
        ("no last newline", "if True:\n    print(6)\n    # end"),
        ("empty", ""),
        ("only a comment", "# nothing"),
        ("flags", "import sys\nf = sys.flags\nprint(f.optimize, f.debug, f.inspect, f.interactive, "
                  "f.no_site, f.isolated, f.utf8_mode, f.dev_mode, f.safe_path)"),
        ("gc", "import gc\nprint(gc.isenabled(), gc.get_threshold())"),
        ("recursion limit", "import sys\nprint(sys.getrecursionlimit())"),
        ("the deepest recursion", "def f(n):\n    try: return f(n + 1)\n    except RecursionError: return n\n"
                                  "print(f(0))"),
        ("the deepest recursion, limit set", "import sys\nsys.setrecursionlimit(5000)\n"
         "def f(n):\n    try: return f(n + 1)\n    except RecursionError: return n\nprint(f(0))"),
        ("recursion of a list", "a = []\nfor _ in range(300): a = [a]\nprint(str(a)[:3])"),
        ("switch interval", "import sys\nprint(sys.getswitchinterval())"),
        ("main thread", "import threading\nt = threading.current_thread()\n"
                        "print(t.name, t is threading.main_thread(), threading.active_count(), t.daemon)"),
        ("environment", "import os\nprint(os.environ.get('NOPE'), os.getenv('LANG'))"),
        ("folder", "import os\nprint(os.path.samefile(os.getcwd(), os.path.dirname(__file__)))"),
        ("Decimal context", "import decimal\nprint(decimal.getcontext().prec, decimal.Decimal(1) / 3)"),
        ("context variables", "import contextvars\nprint(len(contextvars.copy_context()))"),
        ("warnings' filters", "import warnings\nprint(len(warnings.filters), warnings.filters[0][2])"),
        ("time", "import time\nt = time.perf_counter(); print(time.process_time() < 60, t > 0)"),
        ("modules", "import sys\nprint({'sys', 'builtins', 'site', 'os', 'io', 'codecs'} <= set(sys.modules))"),
        ("input as a name", "import builtins\nprint(input is builtins.input, print.__module__)"),
        ("underscore", "import builtins\nprint(hasattr(builtins, '_'))"),
        ("tmp", "import tempfile\nwith tempfile.TemporaryFile() as f: print(f.write(b'x'))"),
        ("sqlite", "import sqlite3\nprint(sqlite3.connect(':memory:').execute('select 1').fetchone())"),
        ("zoneinfo", "import datetime\nprint(datetime.datetime(2020, 1, 1).isoformat())"),
        ("random is seeded", "import random\nrandom.seed(3); print(random.random())"),
        ("bisect, heapq", "import bisect, heapq\nprint(bisect.bisect([1, 2], 2), heapq.nsmallest(1, [3, 2]))"),
    ]
]  # fmt: skip

NUMBERS = [
    Idiom("many digits printed", "print(7**6000)"),
    Idiom("many digits read", "n = int(input()); print(n % 97, len(str(n)))", "7" * 6000 + "\n"),
    Idiom("digits of a Decimal", "from decimal import Decimal\nprint(int(Decimal(10)**5000) % 7)"),
    Idiom("digits' limit", "import sys\nprint(sys.get_int_max_str_digits())"),
    Idiom("digits' limit set", "import sys\nsys.set_int_max_str_digits(0); print(10**5000)"),
    Idiom("digits in a format", "print(f'{7**6000}'[:9], '%d' % 7**10 , '%d' % (7**6000) == str(7**6000))"),
    Idiom("digits in JSON", "import json\nprint(json.loads('9' * 5000) % 7, len(json.dumps(7**6000)))"),
    Idiom("digits in the source", f"print({'7' * 5000} % 11)"),
    Idiom("float", "print(0.1 + 0.2, 1e300 * 1e10, float('nan'))"),
]

DEPTH = "import sys\nsys.setrecursionlimit(10**6)\n"
DEPTHS = [
    Idiom("plain recursion", DEPTH + "def f(n): return n and 1 + f(n - 1)\nprint(f(60000))"),
    Idiom("lru_cache", DEPTH + "from functools import lru_cache\n@lru_cache(None)\n"
                               "def f(n): return n and 1 + f(n - 1)\nprint(f(50000))"),
    Idiom("cache", DEPTH + "from functools import cache\n@cache\n"
                           "def f(n): return n and 1 + f(n - 1)\nprint(f(50000))"),
    Idiom("sum of a generator", DEPTH + "def f(n): return 1 + sum(f(k) for k in range(n - 1, n) if k)\n"
                                        "print(f(20000))"),
    Idiom("max of a list", DEPTH + "def f(n): return 1 + max([f(n - 1)]) if n else 0\nprint(f(50000))"),
    Idiom("map", DEPTH + "def f(n): return 1 + sum(map(f, [n - 1])) if n else 0\nprint(f(20000))"),
    Idiom("yield from", DEPTH + "def f(n):\n    if n: yield from f(n - 1)\n    else: yield 5\n"
                                "print(next(f(20000)))"),
    Idiom("methods", DEPTH + "class A:\n    def __call__(self, n): return n and 1 + self(n - 1)\n"
                             "print(A()(50000))"),
    Idiom("items", DEPTH + "class A(dict):\n    def __missing__(self, n):\n"
                           "        self[n] = r = 1 + self[n - 1] if n else 0\n        return r\n"
                           "print(A()[20000])"),
    Idiom("lists", DEPTH + "a = []\nfor _ in range(20000): a = [a]\nprint(len(str(a)))"),
    Idiom("comparisons", DEPTH + "a, b = [], []\nfor _ in range(20000): a, b = [a], [b]\nprint(a == b)"),
    Idiom("linked list freed", "class N:\n    def __init__(self, n): self.next = n\nh = None\n"
                               "for _ in range(200000): h = N(h)\nprint(6)"),
    Idiom("tuple freed", "t = ()\nfor _ in range(200000): t = (t,)\nprint(6)"),
    Idiom("a thread", DEPTH + "import threading\nthreading.stack_size(1 << 28)\n"
                              "def f(n): return n and 1 + f(n - 1)\n"
                              "t = threading.Thread(target=lambda: print(f(60000))); t.start(); t.join()"),
    Idiom("lru_cache in a thread", DEPTH + "import threading\nfrom functools import lru_cache\n"
                                           "threading.stack_size(1 << 28)\n@lru_cache(None)\n"
                                           "def f(n): return n and 1 + f(n - 1)\n"
                                           "t = threading.Thread(target=lambda: print(f(50000)))\n"
                                           "t.start(); t.join()"),
    Idiom("without end", "def f(n): return f(n + 1)\nprint(1)\nf(0)"),
    Idiom("without end, caught", "def f(n): return f(n + 1)\ntry: f(0)\nexcept RecursionError: print(6)"),
    Idiom("lru_cache without end", "from functools import cache\n@cache\ndef f(n): return f(n + 1)\n"
                                   "try: f(0)\nexcept RecursionError: print(6)"),
    Idiom("__getattr__ without end", "class A:\n    def __getattr__(self, n): return self.x\n"
                                     "try: A().y\nexcept RecursionError: print(6)"),
    Idiom("__repr__ without end", "class A:\n    def __repr__(self): return repr(self)\n"
                                  "try: repr(A())\nexcept RecursionError: print(6)"),
]  # fmt: skip
"""Recursion. `python3` of 3.12 and 3.13 fails at some of these, with an error for the program that
calls functions of C; so each is compared with what it prints on any version."""

IDIOMS = [*INPUTS, *OUTPUTS, *ENDINGS, *LAST, *WORLD, *NUMBERS]
