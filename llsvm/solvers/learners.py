"""Any number of problems of the same rows: what is known of all of them together, and how training ends."""

from __future__ import annotations

import numpy as np

from llsvm.core import NEVER, OUT_OF_TIME, Certificate, PassStats, look_at_end
from llsvm.problem import total_of


class Learners:
    """Each problem has a learner: `cd`, its DualCD; `met`, what losses met on the way say of the objectives; `last_w`,
    to be written where none was certified; release(), when it has been taken. One that is done costs no more work."""

    reads_once, deadline = False, NEVER

    def __init__(self, problems: list):
        self.bias, self._learners = problems[0].bias, []
        self.bytes_read, self.wait, self.compute = 0, 0.0, 0.0
        self.best_w, self.uncertified = None, ""
        self._progress = lambda share: None

    @property
    def states(self) -> list:
        """Of all problems, to go on from with the same rows, now or elsewhere: valid between passes."""
        return [learner.cd.state for learner in self._learners]

    @property
    def dual(self) -> float:
        return sum(learner.cd.dual for learner in self._learners)

    @property
    def certified(self) -> Certificate | None:
        certificates = [learner.cd.certified for learner in self._learners]
        return total_of(certificates) if all(certificates) else None

    @property
    def certificates(self) -> list[Certificate]:
        """Of each problem, once all have one."""
        return [learner.cd.certified for learner in self._learners] if self.certified else []

    @property
    def _busy(self) -> list:
        return [learner for learner in self._learners if not learner.cd.done]

    def show_progress(self, bar) -> None:
        """bar(what, done, total) is called on the way."""
        self._progress = lambda share: bar("pass", share, 1.0)

    def _certify(self) -> None:
        """Looks at all rows, for the problems that are not done."""
        raise NotImplementedError

    def _stats(self, number: int, visits: int, active: int) -> PassStats:
        for learner in self._learners:
            learner.cd.state.best.raise_dual(learner.met.dual)
        certified = self.certified
        known = certified or total_of(learner.cd.certified or learner.met for learner in self._learners)
        return PassStats(
            number, visits, active, certified is not None, known.primal, known.dual, known.relative_gap,
            self.bytes_read, self.wait, self.compute, finished=not self._busy,
        )

    def finish(self, reason: str, stopped=lambda: False) -> str:
        """What was certified is the model; what was not, or was told its passes, is looked at once more."""
        if self._busy and (self.certified is None or reason == "passes"):
            reason = look_at_end(reason, self._certify, lambda: not self._busy)
        self.uncertified = "" if self.certified else OUT_OF_TIME
        self.best_w = take_weights(self._learners)
        return reason

    def weights(self) -> np.ndarray:
        """As they are now, (features + 1, columns), the bias last."""
        found = [learner.cd.state.w for learner in self._learners]
        return found[0][:, None] if len(found) == 1 else np.column_stack(found)

    def close(self) -> None:
        self._learners = []


def take_weights(learners: list) -> np.ndarray:
    """The best of each, or the last where none was certified; learners let go of theirs."""
    found = []
    for learner in learners:
        found.append(learner.cd.best_w if learner.cd.certified else learner.last_w)
        learner.release()
    if len(found) == 1:
        return found[0][:, None]
    w = np.empty((len(found[0]), len(found)))
    for column in range(len(found)):
        w[:, column], found[column] = found[column], None
    return w
