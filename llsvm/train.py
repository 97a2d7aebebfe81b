"""Training: poses the problem, runs the one loop, and makes the model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from llsvm import __version__, memory, reader, solvers
from llsvm.core import (
    Certificate,
    DataError,
    Deadline,
    Description,
    PassStats,
    Stopped,
    TooLarge,
    UsageError,
    label_order,
    quoted,
)
from llsvm.data import as_stream, wants_one_pass
from llsvm.data import open_data as open_data  # the first of what training takes; then start, run, make_model
from llsvm.model import Model, from_features
from llsvm.options import OPTIONS, Config
from llsvm.problem import Problem, bias_of, pose

GAP = solvers.Method.measure
FAR = 0.1  # from the optimum: a relative duality gap above which a result is called so
LOOK_SECONDS = 0.5  # beyond --time-limit, in which a certificate may still be found


@dataclass
class Outcome:
    """Trained weights (features + 1, columns) and what is known about them. reason: converged, passes, time or
    interrupted; classes: a certificate a class; uncertified: why there is no certificate."""

    w: np.ndarray
    bias: float
    certificate: Certificate | None
    stats: PassStats
    reason: str
    classes: list[Certificate] = field(default_factory=list)
    uncertified: str = ""

    @property
    def is_far(self) -> bool:
        """Whether all that is proved is that the optimum may be far away."""
        return self.certificate is not None and not self.certificate.relative_gap <= FAR


def has_one_pass(config: Config) -> bool:
    """Whether one pass is all there is, so that its end is no limit that was met."""
    solver = config.method
    return wants_one_pass(config) or (solver.once is not None and solver.on_disk is None)


def nearer_solver(config: Config) -> str:
    """The solver that goes on to the optimum of the same problem, where the one that was asked for does not."""
    solver = config.method
    goes_on = config.exact or not solver.once
    return "" if goes_on else "dual-l2" if solver.squared_loss else "dual"


def problems_of(description: Description, config: Config) -> list[Problem]:
    """A problem a class, each against the rest; one for two classes, where a positive score means the first of
    label_order."""
    labels = description.labels
    if len(labels) < 2:
        raise DataError(f"only one class in the data: every label is {quoted(labels[0])}", "a classifier needs two")
    positives = range(len(labels)) if len(labels) > 2 else [labels.index(label_order(labels)[0])]
    bias = bias_of(config, description.largest_norm)
    return pose(list(positives), labels, config, config.method.squared_loss, bias, description.label_counts)


def start(data, config: Config, states: list | None = None):
    """The solver object for this data: rows in memory, a block set, or a stream that is read as it is. states: those of
    another one for such data, from which training goes on."""
    solver, given = config.method, {} if states is None else {"states": states}
    if solver.once and not config.exact:
        return solver.once(data, config, solver.squared_loss, **given)
    is_resident = isinstance(data, reader.Resident)
    build = solver.in_memory if is_resident else solver.on_disk
    if build is None:
        hint = f"--memory {data.in_memory_from} would do" if data.in_memory_from else "more --memory"
        raise UsageError(f"--memory is too small: -s {solver.name} has all rows in memory", hint)
    if solver.streams:
        return build(as_stream(data, config), config, solver.squared_loss, **given)
    if not is_resident:
        build.check_room(data.description, config)
    return build(problems_of(data.description, config), config, data, **given)


def run(solver, config: Config, on_pass: Callable = lambda stats: None, stopped: Callable = lambda: False,
        at_end: Callable = lambda solver: None) -> Outcome:
    """Trains, and closes the solver. at_end: looks at it before."""
    try:
        outcome = complete(solver, config, on_pass, stopped)
        at_end(solver)
        return outcome
    finally:
        solver.close()


def complete(solver, config: Config, on_pass: Callable = lambda stats: None,
             stopped: Callable = lambda: False) -> Outcome:  # fmt: skip
    """The one training loop: passes until the solver has reached its tolerance or something ends it."""
    # Numbers that overflow are no reason for a warning: they certify nothing, and no model is made of them.
    with np.errstate(all="ignore"):
        return _complete(solver, config, on_pass, stopped)


def _complete(solver, config: Config, on_pass, stopped) -> Outcome:
    began = time.perf_counter()
    solver.deadline = Deadline(config.time_limit)
    reason, stats = _make_passes(solver, config, on_pass, stopped, began)
    solver.deadline.allow(LOOK_SECONDS)
    reason, known = solver.finish(reason, stopped), solver.certified
    final = replace(
        stats, certified=known is not None, dual=known.dual if known else stats.dual,
        primal=known.primal if known else np.inf, gap=known.relative_gap if known else np.inf,
        bytes_read=solver.bytes_read, wait=solver.wait, compute=solver.compute,
        seconds=time.perf_counter() - began, peak_memory=memory.peak(),
    )
    w = solver.best_w if solver.best_w.ndim == 2 else solver.best_w[:, None]
    return Outcome(w, solver.bias, known, final, reason, solver.certificates, solver.uncertified)


def _make_passes(solver, config: Config, on_pass, stopped, began: float) -> tuple[str, PassStats]:
    """Why there are no more passes, and what is known after the last. One that the time limit cuts short counts."""
    stats = PassStats(0)
    try:
        for stats in solver.passes():
            stats.seconds = time.perf_counter() - began
            stats.peak_memory = memory.peak()
            on_pass(stats)
            if stats.finished:
                return "converged", stats
            if stopped():
                return "interrupted", stats
            if stats.number >= config.max_passes:
                return "passes", stats
            if solver.deadline.passed:
                return "time", stats
    except Stopped:
        return "time", replace(stats, number=stats.number + 1, dual=solver.dual)
    return "passes", stats


def make_model(outcome: Outcome, data, config: Config) -> Model:
    if not np.isfinite(outcome.w).all():
        raise TooLarge(config.solver)
    description = data.description
    bias = outcome.bias if config.bias is None or config.bias >= 0 or config.free_bias else -1.0
    return from_features(config.method.header, label_order(description.labels), outcome.w, data.feature_ids(), bias,
                         description.zero_based, facts_of(outcome, description, config))


def facts_of(outcome: Outcome, description: Description, config: Config) -> dict:
    """What a model says of its training. Nothing in it may differ between two runs: no time, no memory, no folder. (The
    run log has them.)"""
    solver, stats = config.method, outcome.stats
    sources = [{**source, "name": os.path.basename(source["name"])} for source in description.sources]
    return {
        "written_by": f"llsvm {__version__}",
        "certificate": _certificate_facts(outcome, config),
        "training": {
            "solver": solver.name, "exact": solver.is_exact or config.exact,
            **{name: getattr(config, name) for name, option in OPTIONS.items() if option.in_model},
            "passes": stats.number, "rows": description.n_rows, "features": description.n_features,
            "nonzeros": description.n_nonzeros, "values": description.dtype.name, "sources": sources,
        },
    }


def _certificate_facts(outcome: Outcome, config: Config) -> dict:
    stopped = {"tolerance": config.tolerance, "reason": outcome.reason}
    if outcome.certificate is None:
        return {"none": outcome.uncertified, "dual": outcome.stats.dual, **stopped}
    facts = {"primal": outcome.certificate.primal, "dual": outcome.certificate.dual,
             "relative_gap": outcome.certificate.relative_gap, **stopped}
    if len(outcome.classes) > 1:
        facts["classes"] = [{"primal": c.primal, "dual": c.dual} for c in outcome.classes]
    return facts
