"""The value of the bias feature while rows come by: what was asked for, or, with -B R, the largest norm so far."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llsvm.problem import bias_of

# R of a stream is that of the rows so far: growth below the first is made up for at the end, beyond the second harms.
GROWTH, HARMFUL_GROWTH, HARMFUL_SHARE = 1.1, 2.0, 0.05


class GrowingBias:
    """set_bias(value) is called where the value changes."""

    def __init__(self, stream, config, set_bias: Callable):
        self._stream, self._config, self._set_all = stream, config, set_bias
        self.n_visited, self._radius, self._radii = 0, 0.0, []

    @property
    def value(self) -> float:
        """By all that is known now."""
        return bias_of(self._config, self._stream.largest_norm)

    def slices(self, rows, order, most_rows: int):
        """Runs of visits to be made together; the radius is set when it has grown."""
        start, growing = 0, self._config.bias is None and not self._stream.labels_known
        norms = rows["norm"][order] if growing else None
        largest = np.maximum.accumulate(norms) if growing else None
        while start < len(order):
            self._set(float(norms[start]) if growing else 0.0)
            end = min(len(order), start + most_rows)
            if growing:
                end = max(start + 1, min(end, int(np.searchsorted(largest, GROWTH * self._radius, "right"))))
            yield start, end
            self.n_visited, start = self.n_visited + end - start, end

    def _set(self, norm: float) -> None:
        """What was asked for, or the largest norm so far (1 until there is one: empty rows have none)."""
        if self._config.bias is not None:
            bias = self.value
        elif self._stream.labels_known:
            bias = self._radius = self.value
        elif norm > GROWTH * self._radius or not self._radius:
            bias, self._radius = norm or 1.0, norm
            self._radii.append((norm, self.n_visited))
        else:
            return
        self._set_all(bias)

    @property
    def notes(self) -> list[str]:
        """What the user should know, if R grew late."""
        early = [rows for radius, rows in self._radii if HARMFUL_GROWTH * radius >= self.value][:1]
        share = early[0] / self.n_visited if early else 0.0
        if share < HARMFUL_SHARE:
            return []
        return [f"-B R: {share:.0%} of the rows were read before one half as long as the longest, and used with that "
                "smaller R; a block set (llsvm-split) knows R from the start"]  # fmt: skip
