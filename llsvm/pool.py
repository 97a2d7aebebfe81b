"""Threads that do what they are given, in its order: concurrent.futures without what that loads, logging among it."""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import SimpleQueue


class Cancelled(Exception):
    """The result of a call that was never made."""


class Task:
    """A call on another thread."""

    def __init__(self, call, arguments):
        self._call, self._arguments = call, arguments
        self._result = self._error = None
        self._running = threading.Lock()
        self._running.acquire()

    def run(self) -> None:
        call, arguments = self._call, self._arguments
        try:
            if call is None:
                raise Cancelled
            self._result = call(*arguments)
        except BaseException as error:  # whoever asks for the result gets it
            self._error = error
        finally:
            self._call = self._arguments = None
            self._running.release()
            self = call = arguments = None  # an error holds this frame, and must not so hold itself

    def result(self):
        """What the call returned, once it has; or raises what it raised."""
        with self._running:
            if self._error is None:
                return self._result
        try:
            raise self._error
        finally:
            self = None  # as in run

    def cancel(self) -> None:
        """If it has not begun, it never will."""
        self._call = None


class Pool:
    """At most so many threads, begun when there is work for them; fewer, but one at least, where no more can be had."""

    def __init__(self, threads: int, name: str):
        self._name, self._most, self._threads = name, threads, []
        self._tasks, self._closed = SimpleQueue(), False

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.shutdown()

    def submit(self, call, *arguments) -> Task:
        if self._closed:
            raise RuntimeError("the pool was shut down")
        if len(self._threads) < self._most:
            self._begin_thread()
        task = Task(call, arguments)
        self._tasks.put(task)
        return task

    def _begin_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}_{len(self._threads)}", daemon=True)
        with suppress(RuntimeError if self._threads else ()):
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while task := self._tasks.get():
            if self._closed:
                task.cancel()
            task.run()
            del task  # its result may be large

    def shutdown(self) -> None:
        """Returns when the calls that have begun have ended; the others never begin."""
        self._closed = True
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
