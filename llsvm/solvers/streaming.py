"""Any number of problems from disk, group by group: what `dual` out of core and `block` share."""

from __future__ import annotations

import time

import numpy as np

from llsvm.core import NEVER
from llsvm.memory import Footprint
from llsvm.pool import Pool
from llsvm.reader import DUAL, shuffle
from llsvm.solvers.layout import DESKS, VECTORS, Layout, Reading
from llsvm.solvers.learners import Learners
from llsvm.solvers.machines import MACHINE_BYTES
from llsvm.solvers.team import Team
from llsvm.solvers.visitor import Visitor, make_visitors


class Desk:
    """What it takes to visit the rows of a group."""

    def __init__(self, n_rows: int):
        self.duals, self.order = np.zeros(n_rows, DUAL), np.empty(n_rows, np.int32)


class Crew:
    """Threads that work for one problem each, or, where there is but one, the Team that sweeps it together."""

    deadline = NEVER

    def __init__(self, config, learners: list, group_rows: int, description):
        self._pool, self._team = Pool(config.threads), None
        self.desks = [Desk(group_rows) for _ in range(min(DESKS, config.threads, len(learners)))]
        if config.threads > 1 and len(learners) == 1:
            [learner] = learners
            learner.cd.team = self._team = Team(config.threads, description, learner.cd.problem.is_bounded)

    def share_out(self, learners: list, work, desks: list | None = None) -> None:
        """work(learner, desk) for each of these, by several threads; when the time for training is over, the others are
        left as they are."""
        desks, supply = desks or self.desks, iter(learners)

        def work_on(desk):
            for learner in supply:  # which all threads take from
                if self.deadline.passed:
                    return
                work(learner, desk)

        run = self._pool.map if len(learners) > 1 and len(desks) > 1 else map
        list(run(work_on, desks if len(learners) > 1 else desks[:1]))

    def close(self) -> None:
        if self._team:
            self._team.close()
        self._pool.shutdown()


class Plan:
    """Which chunks come together and in which order, and what is done with their rows and between passes."""

    visitor, whole_blocks = Visitor, False
    n_active = 0  # rows that are swept between passes

    def __init__(self, blocks, config, layout: Layout, learners: list, crew: Crew):
        self.blocks, self._seed, self._layout, self._learners, self._crew = blocks, config.seed, layout, learners, crew
        self._n_passes_before = max(learner.course.n_passes for learner in learners)

    def _orders(self, units: np.ndarray):
        """A random order of these a pass, for ever, from the next pass on."""
        n_passes = 0
        while True:
            shuffle(units, len(units), ~self._seed & (2**64 - 1), n_passes)
            n_passes += 1
            if n_passes > self._n_passes_before:
                yield units

    def groups(self):
        """Yields lists of chunks, for ever."""
        raise NotImplementedError

    def prepare(self, reading: Reading, deadline) -> None:
        """Before the first pass."""

    def visit(self, arena, runs, busy: list, seen: float) -> None:
        """The rows of a group come by."""
        self._crew.share_out(busy, lambda learner, desk: learner.see(arena.rows, runs, desk, seen))

    def use_wait(self, reading: Reading, busy: list) -> bool:
        """The next rows are not there yet: some work, or False if there is none."""
        return False

    def end_pass(self, visiting: list, deadline) -> None:
        """The rows of a pass have come by, to these problems."""

    def close(self) -> None:
        pass


class Streaming(Learners):
    """Rows from disk, group by group: a pass loads every chunk once, for all problems that are not done."""

    plan_type = Plan

    @staticmethod
    def footprint(config, n_labels: int) -> Footprint:
        """As that of InMemory, but no row stays."""
        return Footprint(n_labels, VECTORS, MACHINE_BYTES) if n_labels > 2 else Footprint()

    @staticmethod
    def check_room(description, config) -> None:
        """Before there are problems: refuses a budget in which those of many classes do not fit."""
        footprint = Streaming.footprint(config, len(description.labels))
        if footprint.columns > 1:
            config.budget.take_weights(description.n_features, footprint)

    def __init__(self, problems: list, config, blocks, states: list | None = None):
        super().__init__(problems)
        layout = Layout(blocks, config, problems, self.plan_type.whole_blocks)
        self._learners = make_visitors(self.plan_type.visitor, problems, config, blocks, layout, states)
        self._crew = Crew(config, self._learners, layout.group_rows, blocks.description)
        self._plan = self.plan_type(blocks, config, layout, self._learners, self._crew)
        self._reading = Reading(blocks, layout, self._plan.groups())

    def passes(self):
        reading, plan, self._crew.deadline = self._reading, self._plan, self.deadline
        for learner in self._learners:
            learner.cd.deadline = self.deadline
        plan.prepare(reading, self.deadline)
        while True:
            start, waited, busy = time.perf_counter(), reading.wait, self._busy
            for learner in busy:
                learner.begin_pass()
            self._make_pass(busy)
            self.wait, self.bytes_read = reading.wait, reading.bytes_read
            self.compute += time.perf_counter() - start - (self.wait - waited)
            for learner in busy:
                learner.end_pass()
            visits = max((int(learner.cd.state["visits"]) for learner in busy), default=0)
            n_passes = max(learner.course.n_passes for learner in self._learners)
            yield self._stats(n_passes, visits, plan.n_active)

    def _make_pass(self, busy: list) -> None:
        reading, plan = self._reading, self._plan
        for arena, runs in reading.one_pass(self.deadline.check, use_wait=lambda: plan.use_wait(reading, busy)):
            plan.visit(arena, runs, busy, reading.seen)
            self._progress(reading.seen)
        for learner in busy:
            learner.end_look()
        plan.end_pass(busy, self.deadline)

    def _certify(self) -> None:
        """The gaps of all w as they are now: one pass that only reads."""
        self._crew.deadline, busy = self.deadline, self._busy
        for learner in busy:
            learner.begin_look()
        self.deadline.check()
        for rows in self.tables():
            self._crew.share_out(busy, lambda learner, desk: learner.look(rows))  # noqa: B023
        for learner in busy:
            learner.certify()

    def tables(self):
        """All rows once more, group by group, whatever the time."""
        self._reading.begin_again()
        for arena, _ in self._reading.one_pass(lambda: None):
            yield arena.rows
            self.wait, self.bytes_read = self._reading.wait, self._reading.bytes_read

    def close(self) -> None:
        self._plan.close()
        self._crew.close()
        super().close()
        self._reading.close()
        self._plan = self._crew = None
