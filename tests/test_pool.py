"""Threads that do what they are given: results, errors, ends."""

import gc
import threading
import weakref

import pytest

from llsvm.pool import Cancelled, Pool


class Failure(Exception):
    pass


def fail(what):
    raise Failure(what)


@pytest.mark.parametrize("threads", [1, 3])
def test_results_and_errors_are_those_of_the_calls(threads):
    with Pool(threads, "test") as pool:
        tasks = [pool.submit(fail if number % 3 == 1 else str, number) for number in range(50)]
        for number, task in enumerate(tasks):
            if number % 3 == 1:
                with pytest.raises(Failure, match=f"^{number}$"):
                    task.result()
            else:
                assert task.result() == str(number)


def test_one_thread_makes_calls_in_their_order():
    done = []
    with Pool(1, "test") as pool:
        tasks = [pool.submit(done.append, number) for number in range(100)]
        tasks[-1].result()
    assert done == list(range(100))


def test_calls_that_have_not_begun_at_the_end_never_do():
    begun, may_end, done = threading.Event(), threading.Event(), []

    def wait():
        begun.set()
        may_end.wait()
        return "waited"

    pool = Pool(1, "test")
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
    with Pool(1, "test") as pool:
        pool.submit(may_begin.wait)
        cancelled, last = pool.submit(done.append, 1), pool.submit(done.append, 2)
        cancelled.cancel()
        may_begin.set()
        last.result()
        with pytest.raises(Cancelled):
            cancelled.result()
    assert done == [2]


@pytest.mark.parametrize("n_possible", [0, 1, 2])
def test_fewer_threads_do_where_no_more_can_be_had(monkeypatch, n_possible):
    begun, start = [], threading.Thread.start

    def start_some(thread):
        if len(begun) == n_possible:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with Pool(3, "test") as pool:
        if not n_possible:
            with pytest.raises(RuntimeError, match="can't start"):
                pool.submit(str, 1)
        else:
            assert [pool.submit(str, number).result() for number in range(5)] == list("01234")


class Large:
    """What a call is given."""


def fail_with(large):
    raise Failure


def test_what_a_failed_call_was_given_is_freed_with_it():
    """Without the collector, which llsvm-split never calls."""
    large = Large()
    known = weakref.ref(large)
    gc.disable()
    try:
        with Pool(1, "test") as pool:
            task = pool.submit(fail_with, large)
            del large
            with pytest.raises(Failure) as failure:
                task.result()
            assert "fail_with" in str(failure.traceback[-1])
            del failure, task
            assert known() is None
    finally:
        gc.enable()
