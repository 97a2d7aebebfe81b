"""A sample of tall data, of many rows by features: solved first, and its w tried on all rows (docs/sampling.md)."""

from __future__ import annotations

# Data are tall with so many rows by features; this part of them is the sample, which has so many rows at least.
TALL, SHARE, SMALLEST = 100, 16, 1 << 10
# It is solved to this gap, or with so many visits by rows of the data.
GAP, VISITS = 1e-2, 2
# Its w holds for all rows if their loss is at most so many times its own; those within the margin are swept first then.
LOSS, MARGIN = 1.1, 0.2


def is_tall(problem, n_rows: int, size: int) -> bool:
    """Whether a sample of so many rows tells about a w of this size. (Alphas without a bound are proportional to the
    errors of w: those of a sample's w would be far off.)"""
    return problem.is_bounded and n_rows >= max(TALL * size, SHARE * SMALLEST)


class Sample:
    """What a DualCD has found of the sample that it sweeps."""

    def __init__(self, cd):
        self._cd, self._loss = cd, 0.0

    def is_learnt(self, visits: float) -> bool:
        """Whether w is good for the sample that was swept, after so many visits by rows of the data."""
        state, own_gap = self._cd.state, self._cd.state["gap"]
        self._loss = state["losses"] / max(1, state["visits"])
        return visits >= VISITS or own_gap <= GAP * (state.dual + own_gap)

    def holds(self, mean_loss: float) -> bool:
        """Whether the w of the sample is as good for rows that have this loss."""
        return mean_loss <= LOSS * self._loss
