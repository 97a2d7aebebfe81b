"""Threads that do what they are given, in its order: concurrent.futures without what that loads, logging among it."""

from __future__ import annotations

import threading
from queue import SimpleQueue


class Task:
    """A call on another thread."""

    def __init__(self, call, arguments):
        self._call, self._arguments = call, arguments
        self._result = self._error = None
        self._running = threading.Lock()
        self._running.acquire()

    def run(self) -> None:
        try:
            if self._call:
                self._result = self._call(*self._arguments)
        except BaseException as error:  # whoever asks for the result gets it
            self._error = error
        finally:
            self._call = self._arguments = None
            self._running.release()

    def result(self):
        """What the call returned, once it has; or raises what it raised."""
        with self._running:
            if self._error:
                raise self._error
            return self._result

    def cancel(self) -> None:
        """If it has not begun, it will do nothing."""
        self._call = None


class Pool:
    """At most so many threads, begun when there is work for them."""

    def __init__(self, threads: int, name: str):
        self._name, self._most, self._threads = name, threads, []
        self._tasks, self._closed = SimpleQueue(), False

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.shutdown()

    def submit(self, call, *arguments) -> Task:
        task = Task(call, arguments)
        self._tasks.put(task)
        if len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name=f"{self._name}_{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return task

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
