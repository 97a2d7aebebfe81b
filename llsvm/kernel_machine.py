"""Training of kernel machines: rows are mapped by pivots, any solver trains on them, and what it finds is certified
against the exact kernel; with --rank auto there are more pivots until that gap is within the tolerance."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from llsvm import data as readers
from llsvm import exact_gap, lowrank, memory, train
from llsvm.alphas import Alphas
from llsvm.cholesky import Factor, extend
from llsvm.core import Certificate, LlsvmError, PassStats, TooLarge, label_order
from llsvm.kernel_model import KernelModel
from llsvm.kernels import Kernel, Rows, check_finite
from llsvm.options import OF_KERNELS, OPTIONS, Config
from llsvm.problem import FLOAT32_TOLERANCE, total_of
from llsvm.reader import Resident
from llsvm.solvers.dual_cd import State
from llsvm.solvers.resident import InMemory

FIRST_RANK, MOST_RANK, GROWTH = 128, 4096, 4  # of --rank auto; rank grows by no more than so many times at once
COARSE_PASSES = 20  # iterations of --coarse, as in the paper
LOOSE = 1e-2  # gap of the first solution, which only says where pivots are missing
SAMPLE, LEAST_SAMPLE = 20, 4096  # random rows by pivot, among which pivots are looked for, and rows at the least
OF_RANK = 0.4  # of the tolerance that is to remain for what the pivots leave out
OF_ROWS = 0.4  # of --memory that rows as they were read may take
SQUARE_BYTES = 96  # by rank^2: L^-1 and what finding it takes, and twice as many rows among which pivots are looked for
BYTES_OF_ALPHA = 32  # by row and problem: alphas, signed ones, those that are being certified, and a mask
ROW_BYTES = 32  # of a row that is taken out, beside its nonzeros
PLACES = 1 << 14  # rows with alphas, at the most, among which more pivots are looked for


@dataclass
class KernelOutcome(train.Outcome):
    """As of training; w is that of mapped rows, certificate that of the exact kernel machine. of_rank: that of the
    mapped rows; left: mean of what the pivots leave of K(x, x)."""

    factor: Factor | None = None
    of_rank: Certificate | None = None
    left: float = 0.0
    ranks: list[int] = field(default_factory=list)


def kernel_of(config: Config, n_features: int) -> Kernel:
    """As LIBSVM, gamma is 1 / features unless it is said."""
    return Kernel(config.kernel, config.gamma or 1.0 / n_features, config.coef0, config.degree)


def plain(config: Config, **more) -> Config:
    """For the mapped rows: the same without the kernel. Unless the bias is said, it is free where the solver can do
    that, or else a feature of the value 1."""
    is_said = "bias" in config.said or config.bias != -1.0
    free = config.free_bias or (not is_said and config.method.name in OPTIONS["free_bias"].solvers)
    bias = config.bias if is_said or free else 1.0
    return replace(config, **{**{name: OPTIONS[name].default for name in OF_KERNELS}, "bias": bias, "free_bias": free,
                              "said": frozenset(), **more})  # fmt: skip


@contextmanager
def open_data(paths, config: Config, progress=lambda *_: None):
    """The rows as they are, in memory or in a set; they are read again and again, whatever the solver."""
    share = max(memory.FLOOR + memory.MB, int(config.memory * OF_ROWS))
    as_they_are = {name: option.default for name, option in OPTIONS.items() if option.solvers}
    with readers.open_data(paths, plain(config, **as_they_are, solver="dual", memory=min(config.memory, share)),
                           progress) as data:
        if isinstance(data, Resident):
            data.duals = None
        yield data


def fit(data, config: Config, on_pass=lambda stats: None, stopped=lambda: False, tell=lambda text: None,
        progress=lambda *_: None) -> KernelOutcome:
    """Trains on these rows. tell: what is done between trainings, a line each."""
    return _Run(data, config, on_pass, stopped, tell, progress).fit()


class _Run:
    """One training: the pivots so far, and the alphas of the last solution."""

    def __init__(self, data, config: Config, on_pass, stopped, tell, progress):
        self._config, self._parts, self._known = config, lowrank.Parts(data), data.description
        self._on_pass, self._stopped, self._tell, self._progress = on_pass, stopped, tell, progress
        self._began, self._before = time.perf_counter(), PassStats(0)
        self._factor = Factor(kernel_of(config, self._known.n_features))
        check_finite(self._factor.kernel, self._known.largest_norm)
        self._dtype = np.float32 if config.tolerance >= FLOAT32_TOLERANCE else np.float64
        n_problems = len(self._known.labels) if len(self._known.labels) > 2 else 1
        self._beside = BYTES_OF_ALPHA * n_problems * self._known.n_rows
        self._beside += data.n_bytes if isinstance(data, Resident) else 0
        taken = self._bytes_of_rows(data)
        what = f"the rows with alphas, which the exact certificate compares, may take {memory.format_size(taken)}"
        config.budget.take(self._beside + taken, what, known=False)  # chunks are larger where there is more memory
        self._beside += taken
        self._alphas = None

    def _bytes_of_rows(self, data) -> int:
        """Of rows that are taken out of the data, all of them at the most: copies by part, joined, and what finding
        their nonzeros takes; and of the chunks that threads decode meanwhile."""
        d, threads = self._known, self._config.threads
        entry = 4 + d.dtype.itemsize
        rows = 2 * (d.n_nonzeros * entry + ROW_BYTES * d.n_rows)
        if isinstance(data, Resident):
            chunk = d.n_nonzeros * lowrank.PART_ROWS // max(1, d.n_rows)
        else:
            chunk = int(data.chunk_nonzeros.max())
        length = d.n_nonzeros / max(1, d.n_rows)
        panel = exact_gap.panel_bytes(min(d.n_rows, exact_gap.panel_rows(length)), length, d.n_features)
        pivots = exact_gap.panel_bytes(min(d.n_rows, self._config.rank or FIRST_RANK), length, d.n_features)
        return rows + threads * (chunk * (3 * entry + 16) + panel) + pivots

    def fit(self) -> KernelOutcome:
        auto, most = self._config.rank == 0, self._most_rank()
        wanted = min(self._config.rank or FIRST_RANK, self._known.n_rows)
        if not auto and wanted > most:
            budget = self._config.budget.without(self._beside)
            budget.take(2 * SQUARE_BYTES * wanted**2, f"{wanted} pivots do not fit")
        if self._config.coarse:
            self._add_pivots(min(self._config.coarse, most))
            self._solve(LOOSE, max_passes=COARSE_PASSES)
        if not auto and self._config.pivots == "dual" and wanted > 1:
            self._add_pivots(wanted // 2)
            self._solve(LOOSE)
        self._add_pivots(min(wanted, most), dual=self._config.pivots == "dual" and not auto)
        outcome = self._solve(max(LOOSE, self._config.tolerance) if auto else self._config.tolerance)
        ranks, tolerance = [self._factor.rank], self._config.tolerance
        while auto and not self._is_done(outcome):
            before, own = self._factor.rank, outcome.of_rank.relative_gap
            left_out = outcome.certificate.relative_gap - own
            if left_out > OF_RANK * tolerance:
                self._add_pivots(min(GROWTH * before, most), dual=True, target=outcome.certificate.primal)
                if self._factor.rank == before:  # the heaviest rows alone do not say that more are needed
                    self._add_pivots(min(before + FIRST_RANK, most), dual=True)
            if self._factor.rank == before and (left_out > tolerance or own <= (1 - OF_RANK) * tolerance):
                raise self._refusal(outcome)
            outcome = _nearer(self._solve((1 - OF_RANK) * tolerance), outcome)
            ranks.append(self._factor.rank)
        outcome.ranks = ranks
        return outcome

    def _is_done(self, outcome: KernelOutcome) -> bool:
        if outcome.reason != "converged" or outcome.certificate is None:
            return True
        return outcome.certificate.relative_gap <= self._config.tolerance

    def _most_rank(self) -> int:
        """As many pivots as --memory has room for, or as there are rows."""
        room = self._config.budget.without(self._beside).left
        most = max(16, int(np.sqrt(room / 2 / SQUARE_BYTES)))
        return min(self._known.n_rows, most, MOST_RANK if self._config.rank == 0 else most)

    def _refusal(self, outcome: KernelOutcome) -> LlsvmError:
        gap, rank = outcome.certificate.relative_gap, self._factor.rank
        return LlsvmError(
            f"--rank auto: {rank} pivots leave a gap of {gap:.2e} to the exact kernel machine, above the tolerance of "
            f"{self._config.tolerance:g}",
            f"--rank {rank} takes that machine as it is; a larger -e, a smaller -g, or a higher --rank N"
            + f" under more than --memory {memory.short_size(self._config.memory)}" * (rank < MOST_RANK))

    # --- pivots

    def _add_pivots(self, rank: int, dual: bool = False, target: float = 0.0) -> None:
        """Up to so many; among rows with alphas by these, or among random rows. target: P, of which what the pivots
        leave out of D should be a small part, and then they are enough."""
        config, threads = self._config, self._config.threads
        if not dual or self._alphas is None:
            points = lowrank.sample(self._parts, self._most_points(rank), config.seed, threads)
            how = "greedy" if config.pivots == "greedy" else "random"
            self._factor, _ = extend(self._factor, points, rank, how, config.seed)
            return
        places, signed = self._heaviest()
        points, wanted = self._parts.take(places, threads), OF_RANK / 2 * config.tolerance * target
        of_kernel = exact_gap.quadratic(self._factor.kernel, points, signed, threads)

        def is_enough(mapped):
            left = of_kernel - np.square(mapped.T @ signed).sum(0)
            return target > 0 and left.sum() / 2 <= wanted

        self._factor, _ = extend(self._factor, points, rank, "random", config.seed, np.square(signed).sum(1), is_enough)

    def _most_points(self, rank: int) -> int:
        """Rows among which so many pivots are looked for."""
        room = self._config.budget.without(self._beside).left
        return max(2 * rank, min(max(SAMPLE * rank, LEAST_SAMPLE), room // (4 * 8 * rank)))

    def _heaviest(self) -> tuple[np.ndarray, np.ndarray]:
        """Places of the rows with the largest alphas, and their alphas with the sign of y, (rows, problems)."""
        total = np.square(self._alphas).sum(0)
        places = np.flatnonzero(total)
        most = min(PLACES, self._most_points(GROWTH * self._factor.rank))
        if len(places) > most:
            places = np.sort(places[np.argpartition(-total[places], most)[:most]])
        return places, np.ascontiguousarray(self._alphas[:, places].T)

    # --- solutions

    @contextmanager
    def _mapped(self, config: Config):
        """The mapped rows, in memory if they fit, for this solver."""
        n_rows, rank, solver = self._known.n_rows, self._factor.rank, config.method
        footprint = readers.footprint(solver, config, len(self._known.labels))
        beside = footprint.bytes(rank, n_rows) + self._beside + self._factor.n_bytes
        size = np.dtype(self._dtype).itemsize
        if lowrank.fits(n_rows, rank, size, config.budget.without(beside)):
            yield lowrank.in_memory(self._parts, self._factor, self._dtype, config.threads, self._progress)
            return
        left = config.budget.without(self._beside + self._factor.n_bytes).left
        with lowrank.on_disk(self._parts, self._factor, self._dtype, config.threads, left, self._progress) as blocks:
            yield blocks

    def _passed(self, stats: PassStats) -> PassStats:
        """Counted from the first training on."""
        before = self._before
        return replace(stats, number=before.number + stats.number, compute=before.compute + stats.compute,
                       wait=before.wait + stats.wait, bytes_read=before.bytes_read + stats.bytes_read,
                       seconds=time.perf_counter() - self._began)

    def _solve(self, tolerance: float, **more) -> KernelOutcome:
        taken, passed = self._beside + self._factor.n_bytes, time.perf_counter() - self._began
        config = plain(self._config, tolerance=tolerance, memory=max(memory.MB, self._config.memory - taken),
                       time_limit=max(1e-3, self._config.time_limit - passed), **more)
        found = {}
        with self._mapped(plain(config, memory=self._config.memory)) as rows:
            self._tell(f"rank {self._factor.rank}: mapped rows {rows.where}")
            is_stream = config.method.once and not config.exact
            given = {} if is_stream else self._states(rows, config)
            solver = train.start(readers.as_stream(rows, config) if is_stream else rows, config, **given)
            outcome = train.run(solver, config, lambda stats: self._on_pass(self._passed(stats)), self._stopped,
                                lambda solver: found.update(alphas=_alphas_of(solver, self._known.n_rows)))
            outcome.stats = self._passed(outcome.stats)
            self._before = outcome.stats
            outcome = self._judged(outcome, rows.description, config, found["alphas"])
            outcome.stats = replace(outcome.stats, seconds=time.perf_counter() - self._began)
            return outcome

    def _states(self, rows, config: Config) -> dict:
        """What training goes on from, for solvers that can: the alphas of the last solution."""
        if self._alphas is None or not isinstance(rows, Resident):
            return {}
        if config.method.name in OPTIONS["coarse"].solvers:
            return {"states": list(np.abs(self._alphas))}
        problems, size = train.problems_of(rows.description, config), self._factor.rank + 1
        if config.method.in_memory is not InMemory:
            return {}
        return {"states": [State.of(problem, rows.table, np.abs(a), size, rows.kind)
                           for problem, a in zip(problems, self._alphas, strict=True)]}  # fmt: skip

    def _judged(self, outcome, described, config: Config, alphas) -> KernelOutcome:
        """What was found, certified against the exact kernel if the solver tells its alphas."""
        if not np.isfinite(outcome.w).all():
            raise TooLarge(config.solver)
        made = KernelOutcome(**vars(outcome), factor=self._factor, of_rank=outcome.certificate)
        points = lowrank.sample(self._parts, LEAST_SAMPLE // 4, config.seed + 1, config.threads)
        made.left = float(self._factor.residual(points).mean())
        if alphas is None or outcome.certificate is None:
            made.certificate, made.classes = None, []
            made.uncertified = outcome.uncertified or f"-s {config.solver} tells no dual variables of the exact machine"
            return made
        problems = train.problems_of(described, config)
        codes = np.concatenate(list(self._parts.each(lambda start, block: np.array(block.codes), config.threads)))
        beta, b = self.coefficients(outcome)
        value = 0.0 if config.free_bias else outcome.bias
        machine = exact_gap.Machine(self._factor.kernel, self._factor.landmarks, beta, b, value)
        made.classes = exact_gap.certify(machine, self._parts, problems, codes, alphas, config.threads)
        made.certificate = total_of(made.classes)
        signs = np.array([problem.codes[codes, 0] for problem in problems])
        self._alphas = alphas * signs
        made.stats = replace(outcome.stats, primal=made.certificate.primal, dual=made.certificate.dual,
                             gap=made.certificate.relative_gap)
        self._tell(f"rank {self._factor.rank}: gap {made.of_rank.relative_gap:.2e}, to the exact kernel machine "
                   f"{made.certificate.relative_gap:.2e}")
        return made

    def coefficients(self, outcome) -> tuple[np.ndarray, np.ndarray]:
        """beta of the pivots and b, a column a function."""
        return np.ascontiguousarray(self._factor.coefficients(outcome.w[:-1])), outcome.w[-1] * outcome.bias


def summary(outcome: KernelOutcome) -> str:
    """Lines on the map, behind those on the certificate."""
    known = f"rank = {outcome.factor.rank}, which leaves {outcome.left:.2e} of K(x, x)\n"
    if outcome.of_rank:
        known += f"relative duality gap of the mapped rows = {outcome.of_rank.relative_gap:.3e}\n"
    return known


def _nearer(last: KernelOutcome, before: KernelOutcome) -> KernelOutcome:
    """The last solution, unless training ended early and the one before is nearer to the optimum."""
    if last.reason == "converged" or (last.certificate and last.stats.gap <= before.stats.gap):
        return last
    known = before.certificate
    return replace(before, reason=last.reason, stats=replace(last.stats, certified=True, primal=known.primal,
                                                             dual=known.dual, gap=known.relative_gap))


def _alphas_of(solver, n_rows: int) -> np.ndarray | None:
    """(problems, rows), of a solver whose states have them by row."""
    found = []
    for number, state in enumerate(getattr(solver, "states", None) or []):
        duals, alphas = getattr(state, "duals", None), getattr(state, "alphas", None)
        if isinstance(state, np.ndarray):
            found.append(state)
        elif duals is not None:
            found.append(duals["alpha"])
        elif isinstance(alphas, Alphas):
            found.append(alphas.read(number * n_rows, n_rows))
    return np.array(found, np.float64) if found else None


def make_model(outcome: KernelOutcome, data, config: Config) -> KernelModel:
    """Nothing in it may differ between two runs, as in a linear model."""
    description, factor = data.description, outcome.factor
    ids, rows = data.feature_ids(), factor.landmarks.rows
    w = outcome.w if outcome.w.shape[1] != 2 else outcome.w[:, :1] - outcome.w[:, 1:]  # of two classes, one function
    vectors = Rows(rows.indptr, ids[rows.features], rows.values, rows.squares)
    beta = np.ascontiguousarray(factor.coefficients(w[:-1]))
    info = train.facts_of(outcome, description, config)
    info["kernel"] = {"rank": factor.rank, "pivots": config.pivots, "bias": outcome.bias, "left": outcome.left}
    if outcome.of_rank:
        info["kernel"]["of_rank"] = {"primal": outcome.of_rank.primal, "dual": outcome.of_rank.dual}
    return KernelModel(factor.kernel, label_order(description.labels), vectors, beta, w[-1] * outcome.bias,
                       False, description.zero_based, info)
