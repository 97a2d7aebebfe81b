"""Threads that do what they are given: results, errors, ends, and signals at any step."""

import _thread
import gc
import itertools
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

import llsvm.pool as pools
from llsvm import process
from llsvm.pool import Cancelled, Pool


class Failure(Exception):
    pass


def fail(what):
    raise Failure(what)


@pytest.mark.parametrize("threads", [1, 3])
def test_results_and_errors_are_those_of_the_calls(threads):
    with Pool(threads) as pool:
        tasks = [pool.submit(fail if number % 3 == 1 else str, number) for number in range(50)]
        for number, task in enumerate(tasks):
            if number % 3 == 1:
                with pytest.raises(Failure, match=f"^{number}$"):
                    task.result()
            else:
                assert task.result() == str(number)


def test_one_thread_makes_calls_in_their_order():
    done = []
    with Pool(1) as pool:
        tasks = [pool.submit(done.append, number) for number in range(100)]
        tasks[-1].result()
    assert done == list(range(100))


def test_calls_that_have_not_begun_at_the_end_never_do():
    begun, may_end, done = threading.Event(), threading.Event(), []

    def wait():
        begun.set()
        may_end.wait()
        return "waited"

    pool = Pool(1)
    first, second = pool.submit(wait), pool.submit(done.append, 1)
    begun.wait()
    threading.Timer(0.05, may_end.set).start()
    pool.shutdown()
    assert first.result() == "waited" and not done
    with pytest.raises(Cancelled):
        second.result()
    with pytest.raises(RuntimeError):
        pool.submit(wait)


def test_a_call_that_is_cancelled_before_it_begins_is_never_made():
    may_begin, done = threading.Event(), []
    with Pool(1) as pool:
        pool.submit(may_begin.wait)
        cancelled, last = pool.submit(done.append, 1), pool.submit(done.append, 2)
        cancelled.cancel()
        may_begin.set()
        last.result()
        with pytest.raises(Cancelled):
            cancelled.result()
    assert done == [2]


def threads_possible(monkeypatch, n_possible):
    """So many threads of a pool can be had, as under a limit of a container. Returns those that have begun."""
    begun, start = [], pools.start_new_thread

    def start_some(work, arguments):
        if len(begun) == n_possible:
            raise RuntimeError("can't start new thread")
        begun.append(start(work, arguments))

    monkeypatch.setattr(pools, "start_new_thread", start_some)
    return begun


class Lost:
    """A thread that has no memory to begin, of which Python tells sys.unraisablehook alone."""

    def __init__(self, n_possible):
        self._left, self._start = n_possible, pools.start_new_thread

    def __call__(self, begin, arguments):
        self._left -= 1
        if self._left >= 0:
            return self._start(begin, arguments)
        process._hear_of_lost_threads(SimpleNamespace(object=begin, exc_type=MemoryError))


@pytest.mark.parametrize("n_possible", [0, 1])
def test_threads_that_have_no_memory_to_begin_are_not_waited_for(monkeypatch, n_possible):
    monkeypatch.setattr(pools, "start_new_thread", Lost(n_possible))
    with Pool(3) as pool:
        task = pool.submit(str, 1)
        if n_possible:
            assert task.result() == "1" and list(pool.map(str, range(5))) == list("01234")
        else:
            with pytest.raises(MemoryError):
                task.result()


def test_a_thread_whose_first_step_has_no_memory_is_not_waited_for():
    def no_memory(work):
        raise MemoryError

    pool = Pool(1)
    pool._begun, task = 1, pools.Task(str, (1,), pool)
    pool._tasks.put(task)
    pool._begin(SimpleNamespace(run=no_memory))
    with pytest.raises(MemoryError):
        task.result()


@pytest.mark.parametrize("n_possible", [0, 1, 2])
def test_fewer_threads_or_none_do_where_no_more_can_be_had(monkeypatch, n_possible):
    begun, done = threads_possible(monkeypatch, n_possible), []
    with Pool(3) as pool:
        assert list(pool.map(str, range(5))) == list("01234")
        tasks = [pool.submit(done.append, number) for number in range(5)]
        tasks[-1].result()
        assert n_possible or done == list(range(5))  # in their order
        tasks = [pool.submit(fail if number == 2 else str, number) for number in range(5)]
        assert [task.result() for task in tasks if task is not tasks[2]] == list("0134")
        with pytest.raises(Failure, match="^2$"):
            tasks[2].result()
        helper = pool.submit(str, 1)
        assert helper.cancel() or helper.result() == "1"
    assert len(begun) == n_possible


def test_a_map_is_in_order_and_ends_with_the_first_error():
    with Pool(3) as pool:
        results = pool.map(fail_at, range(9), [5] * 9)
        assert list(itertools.islice(results, 5)) == list(range(5))
        with pytest.raises(Failure):
            next(results)
        assert list(results) == []
        assert list(pool.map(max, [3, 1, 2], [1, 2, 9, 5])) == [3, 2, 9]  # as long as the shortest, as map


def fail_at(number, bad):
    return fail(number) if number == bad else number


# --- signals


def use_a_pool():
    """All that the main thread does with one."""
    with Pool(2) as pool:
        tasks = [pool.submit(int, number) for number in range(4)]
        assert [task.result() for task in tasks] == list(range(4))
        assert list(pool.map(str, range(3))) == list("012")
        pool.submit(int).cancel()


class Interruption:
    """Raises KeyboardInterrupt before a certain step, of all that are made in functions called from here."""

    def __init__(self, step):
        self.step, self.steps = step, 0

    def __call__(self, frame, event, argument):
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.steps += 1
            if self.steps == self.step:
                raise KeyboardInterrupt
        return self


def run_interrupted(interruption, outcome, ended=None):
    sys.settrace(interruption)
    try:
        use_a_pool()
    except BaseException as error:
        outcome.append(type(error))
    else:
        outcome.append(None)
    finally:
        sys.settrace(None)
        if ended:
            ended.release()


def test_a_signal_that_raises_at_any_step_is_passed_on_and_nothing_waits_for_ever():
    """In submit, in result, in shutdown, and in all that these call; a signal handler may raise between any two steps.

    The steps are counted first. threading.Thread, whose start has hundreds, could be broken off so that a thread ran of
    which the pool did not know.
    """
    counted = Interruption(0)
    run_interrupted(counted, outcome := [])
    assert outcome == [None] and counted.steps > 500
    for step in range(1, counted.steps):
        outcome, ended = [], threading.Lock()
        ended.acquire()
        _thread.start_new_thread(run_interrupted, (Interruption(step), outcome, ended))
        assert ended.acquire(timeout=20), f"waits for ever after step {step}"
        assert outcome in ([KeyboardInterrupt], [None])  # None: there were fewer steps this time


@pytest.mark.parametrize("n_calls", [1, 3])
def test_a_signal_when_a_thread_has_just_begun_does_not_hang_the_end(monkeypatch, n_calls):
    """Once with the thread counted, once without."""
    start = pools.start_new_thread

    def start_and_interrupt(work, arguments):
        start(work, arguments)
        if len(tasks) == n_calls - 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(pools, "start_new_thread", start_and_interrupt)
    tasks = []
    with pytest.raises(KeyboardInterrupt), Pool(3) as pool:
        for number in range(n_calls):
            tasks.append(pool.submit(int, number))
    assert len(tasks) == n_calls - 1
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(int)


def test_a_signal_in_a_call_made_by_who_waits_for_another_is_not_swallowed(monkeypatch):
    threads_possible(monkeypatch, 0)
    with Pool(1) as pool:
        interrupted, wanted = pool.submit(interrupt), pool.submit(int)
        with pytest.raises(KeyboardInterrupt):
            wanted.result()
        with pytest.raises(KeyboardInterrupt):
            interrupted.result()
        assert wanted.result() == 0


def interrupt():
    raise KeyboardInterrupt


def test_threads_end_with_their_pool():
    before = _thread._count()
    with Pool(3) as pool:
        list(pool.map(int, range(9)))
        assert before < _thread._count() <= before + 3
    deadline = time.monotonic() + 20
    while _thread._count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert _thread._count() <= before  # threads of others may have ended meanwhile


class Large:
    """What a call is given."""


def fail_with(large):
    raise Failure


def test_where_a_call_raises_the_others_that_have_begun_have_ended():
    """What they work on may be freed then."""
    begun, ended, second_began = [], [], threading.Event()

    def work(number):
        if number == 0:
            second_began.wait(10)
            raise ValueError
        begun.append(number)
        second_began.set()
        time.sleep(0.3)
        ended.append(number)

    with Pool(2) as pool, pytest.raises(ValueError):
        try:
            list(pool.map(work, range(9)))
        finally:
            assert sorted(begun) == sorted(ended) and 1 in ended and len(ended) < 8


def test_what_a_failed_call_was_given_is_freed_with_it():
    """Without the collector, which llsvm-split never calls."""
    large = Large()
    known = weakref.ref(large)
    gc.disable()
    try:
        with Pool(1) as pool:
            task = pool.submit(fail_with, large)
            del large
            with pytest.raises(Failure) as failure:
                task.result()
            assert "fail_with" in str(failure.traceback[-1])
            del failure, task
            assert known() is None
    finally:
        gc.enable()
