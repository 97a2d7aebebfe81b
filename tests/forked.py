"""Commands in forks of one process that has loaded their modules, which is most of what a short command takes."""

import json
import os
import resource
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from signal import SIGINT, getsignal

SERVER = """if True:
    import json, os, socket, sys
    import llsvm.cli, llsvm.evaluate, llsvm.predict, llsvm.session, llsvm.split, llsvm.train

    asked = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, streams, _, _ = socket.recv_fds(asked, 1 << 20, 3)
        if not request:
            os._exit(0)
        child = os.fork()
        if child == 0:
            break
        for stream in streams:
            os.close(stream)
        asked.send(b"%d" % child)
        asked.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    asked.close()
    words, folder, changed = json.loads(request)
    os.chdir(folder)
    os.environ.update(changed)
    sys.argv = words
    name = os.path.basename(words[0])
    getattr(llsvm.cli, {"llsvm": "main"}.get(name, name.removeprefix("llsvm-") + "_main"))()
"""
COMMANDS = ("llsvm", "llsvm-split", "llsvm-train", "llsvm-predict")
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def surroundings():
    """What a process has from the one that starts it, beside its folder: it must be what the server had."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return environment, [resource.getrlimit(limit) for limit in LIMITS], os.sched_getaffinity(0), getsignal(SIGINT)


class Server:
    def __init__(self):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._known = surroundings()
        words = [sys.executable, "-c", SERVER, str(theirs.fileno())]
        self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def serves(self, command):
        return command in COMMANDS and surroundings() == self._known

    def run(self, words, folder, changed, stdin, stdout, timeout):
        """(exit code, standard output, standard error) of a command; stdin: bytes, or None for one that never says
        anything nor ends; stdout: a descriptor, or None for a pipe that is read."""
        pipes = [os.pipe() for _ in range(3)]
        (in_reader, in_writer), (out_reader, out_writer), (errors_reader, errors_writer) = pipes
        with ThreadPoolExecutor(3) as threads:
            said, errors = threads.submit(read_all, out_reader), threads.submit(read_all, errors_reader)
            written = None if stdin is None else threads.submit(write_all, in_writer, stdin)
            request = json.dumps([words, str(folder), changed]).encode()
            theirs = in_reader, out_writer if stdout is None else stdout, errors_writer
            socket.send_fds(self._socket, [request], theirs)
            for descriptor in (in_reader, out_writer, errors_writer):
                os.close(descriptor)
            try:
                self._socket.settimeout(timeout)
                child = int(self._socket.recv(32))
                try:
                    code = int(self._socket.recv(32))
                except TimeoutError:
                    os.kill(child, 9)
                    self._socket.settimeout(None)
                    self._socket.recv(32)
                    raise subprocess.TimeoutExpired(words, timeout) from None
            finally:
                if stdin is None:
                    os.close(in_writer)
            if written:
                written.result()
            return code, said.result(), errors.result()

    def close(self):
        self._socket.close()
        self._process.wait()


def read_all(descriptor):
    with open(descriptor, "rb") as file:
        return file.read()


def write_all(descriptor, data):
    with suppress(BrokenPipeError), open(descriptor, "wb", 0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
