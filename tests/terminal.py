"""A program on a terminal of its own, as a person sees and types."""

import os
import pty
import select
import time

from conftest import environment


class Terminal:
    """Terminal([program, argument, ...]) starts it; as a context manager it is ended at the end."""

    def __init__(self, arguments, **extra):
        env = environment(**({"TERM": "xterm"} | extra))
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.execve(arguments[0], [str(argument) for argument in arguments], env)
        self.output = b""  # what was read and not yet expected
        self.code = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.code is None:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self.file)

    def send(self, keys):
        os.write(self.file, keys)

    def read_more(self, timeout):
        """False at the end of the output."""
        if not select.select([self.file], [], [], timeout)[0]:
            raise TimeoutError(f"nothing more came after {self.output!r}")
        try:
            piece = os.read(self.file, 65536)
        except OSError:  # on Linux the end shows so
            piece = b""
        self.output += piece
        return piece != b""

    def expect(self, text, timeout=30):
        """Reads until the text comes; returns what came before it."""
        end = time.monotonic() + timeout
        while text not in self.output:
            if not self.read_more(max(0, end - time.monotonic())):
                raise EOFError(f"{text!r} did not come, but {self.output!r}")
        before, _, self.output = self.output.partition(text)
        return before

    def prompt(self, text=b"> "):
        """Waits until the program asks for input. It shows that a moment before it takes the keys over."""
        before = self.expect(text)
        time.sleep(0.2)
        return before

    def finish(self, timeout=30):
        """Reads to the end; returns the output and the exit code (negative: the signal that ended it)."""
        end = time.monotonic() + timeout
        while self.read_more(max(0, end - time.monotonic())):
            pass
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.output, self.code
