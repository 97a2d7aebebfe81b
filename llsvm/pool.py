"""Threads that do what they are given, in its order: concurrent.futures without what that loads, and safe from signals.

A signal handler may raise between any two steps of the main thread. So nothing here depends on a count that such a step
keeps: threads begin without a handshake (that of threading.Thread can be broken off), the word that ends one is passed
on to the next, and the end of a pool waits for calls, not for threads.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue


class Cancelled(Exception):
    """The result of a call that was never made."""


class Task:
    """A call on another thread."""

    def __init__(self, call, arguments, pool: Pool):
        self._call, self._arguments, self._pool = call, arguments, pool
        self._result = self._error = None
        # Taken by the one who makes the call, or sees to it that nobody does; held until there is a result.
        self._claim, self._running = allocate_lock(), allocate_lock()
        self._running.acquire()

    def run(self) -> None:
        """Makes the call, unless that is done."""
        if not self._claim.acquire(False):
            return
        call, arguments = self._call, self._arguments
        try:
            self._result = call(*arguments)
        except BaseException as error:  # whoever asks for the result gets it
            self._error = error
        finally:
            self._call = self._arguments = self._pool = None
            self._running.release()
            self = call = arguments = None  # an error holds this frame, and must not so hold itself

    def done(self) -> bool:
        return not self._running.locked()

    def wait(self) -> None:
        with self._running:
            pass

    def result(self):
        """What the call returned, once it has; or raises what it raised."""
        if pool := self._pool:
            pool.stand_in(self)
        self.wait()
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            self = None  # as in run

    def cancel(self, error: BaseException | None = None) -> bool:
        """If it has not begun, it never will, and its result is this error: True."""
        if not self._claim.acquire(False):
            return False
        self._error = error or Cancelled()
        self._call = self._arguments = self._pool = None
        self._running.release()
        return True


class Pool:
    """At most so many threads, begun when there is work for them; fewer where no more can be had.

    Where there is none at all, calls are made by whoever waits for a result.
    """

    def __init__(self, threads: int):
        self._most, self._begun, self._closed = threads, 0, False
        self._tasks, self._under_way = SimpleQueue(), set()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.shutdown()

    def submit(self, call, *arguments) -> Task:
        if self._closed:
            raise RuntimeError("the pool was shut down")
        task = Task(call, arguments, self)
        self._tasks.put(task)
        if self._begun < self._most:
            with suppress(RuntimeError):  # no more can be had now
                self._begun += 1
                try:
                    start_new_thread(self._begin, (copy_context(),))  # with NumPy's errstate, for one
                except BaseException:
                    self._begun -= 1
                    raise
        return task

    def map(self, call, *iterables):
        """As map; all calls are given to the threads at once."""
        return _results(deque([self.submit(call, *arguments) for arguments in zip(*iterables, strict=False)]))

    def _begin(self, context) -> None:
        try:
            context.run(self._work)
        except MemoryError:
            self.lost()

    def lost(self) -> None:
        """A thread had no memory to begin. Calls for which there is no other fail as it did."""
        self._begun -= 1
        with suppress(Empty):
            while not self._begun and (task := self._tasks.get_nowait()):
                task.cancel(MemoryError())

    def _work(self) -> None:
        while task := self._tasks.get():
            self._under_way.add(task)  # before it is asked whether the pool is closed: shutdown goes the other way
            if self._closed:
                task.cancel()
            task.run()
            self._under_way.discard(task)
            del task  # its result may be large
        self._tasks.put(None)

    def stand_in(self, wanted: Task) -> None:
        """Makes the calls up to this one where there is no thread to make them."""
        while not self._begun and not wanted.done():
            try:
                task = self._tasks.get_nowait()
            except Empty:
                return
            task.run()
            if task is not wanted and not isinstance(task._error, Exception | None):
                raise task._error  # a signal's, which has nothing to do with that call

    def shutdown(self) -> None:
        """Returns when the calls that have begun have ended; the others never begin."""
        self._closed = True
        with suppress(Empty):
            while task := self._tasks.get_nowait():
                task.cancel()
        self._tasks.put(None)
        for task in list(self._under_way):
            task.wait()


def _results(tasks: deque):
    """Where a call raises, this ends when the others that have begun have ended: what they work on may go then. After a
    signal nothing is waited for here, but in shutdown."""
    try:
        while tasks:
            yield _first_result(tasks)
    except Exception:
        for task in [task for task in tasks if not task.cancel()]:
            task.wait()
        raise
    finally:
        for task in tasks:
            task.cancel()


def _first_result(tasks: deque):
    result = tasks[0].result()
    tasks.popleft()
    return result


def in_order(function, items, threads: int):
    """As map, a few items ahead on several threads."""
    with Pool(threads) as pool:
        under_way = deque()
        for item in items:
            under_way.append(pool.submit(function, item))
            if len(under_way) > threads:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
