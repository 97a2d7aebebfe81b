"""What the commands train and info do, from opened outputs to the last line printed."""

from __future__ import annotations

import json
import os
import signal
import threading
from _thread import interrupt_main, start_new_thread
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from llsvm import memory as budgets
from llsvm import model as models
from llsvm import scratch, train
from llsvm.blockset import BlockSet, Decoder
from llsvm.core import ROUNDING, DataError, Interrupted, UsageError, encoded, quoted
from llsvm.files import Output, missing, same_file
from llsvm.frames import MANIFEST, REPAIR
from llsvm.reader import ROW, Arena, arena_bytes
from llsvm.report import Console, RunLog

FAR_ID, FAR_TIMES = 10_000_000, 1000  # an id beyond both, the latter times the number of features, is a mistake


class StopRequest:
    """Ctrl-C: the first asks for an end after the pass, the second ends as soon as the kernel returns.

    Python hears a signal only between kernels, so the answer to the user comes from a thread that is woken at once.
    """

    ANSWER = b"\ninterrupted: finishing this pass to write the model so far; Ctrl-C again to stop without one\n"
    SECOND_ANSWER = b"interrupted again: stopping at once\n"

    def __init__(self):
        self.asked = self.training = self._answered = self._forced = self._has_thread = False
        self._before = None

    def __call__(self) -> bool:
        return self.asked

    def _handle(self, number, frame) -> None:
        if not self._has_thread:
            self._count()
        if not self._forced and self.training:
            self.asked = True
        elif callable(self._before):
            self._before(number, frame)
        else:
            raise KeyboardInterrupt

    def _count(self) -> None:
        """Counts a signal and answers it."""
        if self.training and not self._answered:
            self.asked = self._answered = True
            _say(self.ANSWER)
        elif self.training:
            _say(self.SECOND_ANSWER)
            self._forced = True

    def lost(self) -> None:
        """No thread can be had, or it had no memory to begin: Ctrl-C is answered between kernels."""
        self._has_thread = False

    def _answer(self, wakened: int) -> None:
        """Counts the signals, of which Python may hear two as one, until the other end of the pipe is closed."""
        while number := os.read(wakened, 1):
            if number[0] == signal.SIGINT and not self._forced:
                self._count()
                if self._forced:
                    interrupt_main()
        os.close(wakened)

    @contextmanager
    def listening(self):
        self._before = signal.getsignal(signal.SIGINT)
        ignored = self._before == signal.SIG_IGN  # as nohup and background jobs want it
        if ignored or threading.current_thread() is not threading.main_thread():
            yield
            return
        wakened, waker = os.pipe()
        fd_before = -1
        try:
            os.set_blocking(waker, False)
            self._has_thread = True
            try:
                start_new_thread(self._answer, (wakened,))  # without a handshake, which a signal could break off
            except RuntimeError:
                self.lost()
            fd_before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
            signal.signal(signal.SIGINT, self._handle)
            yield
        finally:
            signal.signal(signal.SIGINT, self._before)
            signal.set_wakeup_fd(fd_before)
            os.close(waker)  # the thread ends
            if not self._has_thread:
                os.close(wakened)


def _say(answer: bytes) -> None:
    with suppress(OSError):
        os.write(2, answer)


def train_model(
    paths, target: str, config: train.Config, log_path, quiet: bool, strict: bool, print_result
) -> tuple[bool, bool]:
    """Trains and writes the model; returns (converged, interrupted)."""
    _check_target(paths, target)
    if log_path and any(same_file(log_path, path) for path in (*paths, target)):
        raise UsageError(f"--log {log_path} is also DATA or MODEL")
    console, stop = Console(quiet), StopRequest()
    scratch.warn = console.warn
    try:
        with stop.listening(), Output(target) as output:
            log = RunLog(log_path)
            console.begin()
            with train.open_data(paths, config, console.bar) as data:
                console.end()
                outcome = _train(data, config, console, log, stop, strict)
                log.write("end", reason=outcome.reason, **outcome.stats.as_dict())
                log.close()
                model = train.make_model(outcome, data, config)
                _warn_of_ids(model, console)
                models.save(model, output, config.threads)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; no model was written") from None
    finally:
        console.end()
    if target == "-":
        console.line(_summary(outcome, config))
    elif not quiet:
        print_result(_summary(outcome, config), target)
    unproved = strict and outcome.certificate is None and outcome.reason != "interrupted"
    missed = outcome.reason not in ("converged", "interrupted")
    doubts = [_shortfall(outcome, config)] if missed and (strict or not train.has_one_pass(config)) else []
    doubts += [f"no certificate: {outcome.uncertified}"] if unproved and not missed else []
    doubts += [_distance(outcome, config)] if outcome.is_far else []
    if doubts:
        console.warn("; ".join(doubts))
    is_met = outcome.reason == "converged" and (not outcome.is_far or outcome.stats.gap <= config.tolerance)
    return is_met and not unproved, outcome.reason == "interrupted"


def _distance(outcome: train.Outcome, config: train.Config) -> str:
    """That nobody should use this result without a second thought."""
    nearer = train.nearer_solver(config)
    what_to_do = f" (-s {nearer} comes nearer)" if nearer else ""
    return f"far from the optimum, as far as is proved: the relative duality gap is {outcome.stats.gap:.2e}{what_to_do}"


def _shortfall(outcome: train.Outcome, config: train.Config) -> str:
    """How far a run got that ended above its tolerance."""
    what, reached = config.measure, outcome.stats.change
    if what == train.GAP or reached == float("inf"):
        what, reached = train.GAP, outcome.stats.gap
    if reached == float("inf"):
        return f"no certificate: {outcome.uncertified or 'none was asked for'}"
    at = f"at a relative {what} of {reached:.2e}"
    if train.has_one_pass(config):
        return f"one pass ended {at}, above the tolerance of {config.tolerance:g}"
    limit = {"passes": "--max-passes", "time": "--time-limit"}[outcome.reason]
    return f"stopped by {limit} {at}, above the tolerance of {config.tolerance:g}; raise the limit, or -e"


def _train(data, config, console: Console, log: RunLog, stop: StopRequest, strict: bool):
    solver = train.start(data, config)
    once = solver.reads_once
    if not once:
        _warn_of_weights(data, config, console, strict)
    setting = _setting(config, solver, data)
    console.line("llsvm-train " + ", ".join(f"{name} {value}" for name, value in setting.items()))
    log.write("start", **setting)
    console.begin()
    solver.show_progress(console.bar)

    def on_pass(stats):
        stop.training = True
        console.pass_done(stats)
        console.begin()
        log.write("pass", **stats.as_dict())

    stop.training = not once  # what is read once is whole or nothing
    outcome = train.run(solver, config, on_pass, stop)
    if once:
        _warn_of_weights(data, config, console, strict)
        for note in solver.notes:
            console.warn(note)
    return outcome


def _warn_of_weights(data, config, console: Console, strict: bool) -> None:
    for label in (label for label in config.weights if label not in data.description.labels):
        said = f"label {quoted(label)}, given a weight, does not occur in the data"
        if strict:
            raise UsageError(said, f"leave -w{quoted(label)} out, or --strict")
        console.warn(said)


def _warn_of_ids(model: models.Model, console: Console) -> None:
    """One mistyped id makes a model of hundreds of megabytes, as it lists every id up to the largest."""
    n_features = model.n_ids if model.ids is None else len(model.ids)
    if models.DENSE_LIMIT >= model.n_ids > max(FAR_ID, FAR_TIMES * n_features):
        size = budgets.format_size(model.n_ids * (2 * model.n_columns + 1))
        console.warn(f"the model lists every id up to {model.n_ids}, and takes about {size}: only {n_features} of them "
                     "occur in the data, is the largest a mistake?")


def _setting(config: train.Config, solver, data) -> dict:
    description = data.description
    weights = ["balanced"] * config.balanced + [f"{quoted(label)}:{C:g}" for label, C in config.weights.items()]
    known = {} if description is None else {
        "rows": description.n_rows, "features": description.n_features, "nonzeros": description.n_nonzeros,
    }  # fmt: skip
    return {
        "solver": config.solver + " --exact" * config.exact, "C": config.C, "tolerance": config.tolerance,
        "bias": "R" if description is None and config.bias is None else solver.bias,
        "weights": " ".join(weights) or "none", **known, "data": data.where,
        **({"in_memory_from": held} if (held := getattr(data, "in_memory_from", "")) else {}),
        "memory": budgets.format_size(config.memory), "threads": config.threads, "seed": config.seed,
        "values": config.precision if description is None else description.dtype.name, **config.logged(),
        "sources": data.names if description is None else [source["name"] for source in description.sources][:10],
    }


def _summary(outcome: train.Outcome, config: train.Config) -> str:
    stats, classes = outcome.stats, f" (sum over {len(outcome.classes)} classes)" * (len(outcome.classes) > 1)
    if outcome.certificate:
        known = (f"primal objective = {stats.primal:.9g}{classes}\ndual objective = {stats.dual:.9g}{classes}\n"
                 f"relative duality gap = {stats.gap:.3e} (certified)\n")
    else:
        known = f"dual objective = {stats.dual:.9g}{classes}\nno certificate: {outcome.uncertified}\n"
    if stats.change < float("inf"):
        active = f", {stats.active} rows active" * bool(stats.active)
        known += f"relative {config.measure} = {stats.change:.3e}{active}\n"
    return known + (
        f"passes = {stats.number}, {budgets.format_size(stats.bytes_read)} read\n"
        f"time = {stats.seconds:.2f} s (compute {stats.compute:.2f} s, waiting for data {stats.wait:.2f} s)\n"
        f"peak memory = {budgets.format_size(stats.peak_memory)}"
    )


def _check_target(paths, target: str) -> None:
    """Refuses to write a model over data: `llsvm-train data.txt`, with the model forgotten, is easily typed."""
    if target == "-":
        return
    path = Path(target)
    if path.is_dir():
        raise UsageError(f"{target} is a directory, not a model file", "llsvm-train DATA MODEL")
    if path.is_file() and path.stat().st_size:
        with open(path, "rb") as file:
            if file.read(12) != b"solver_type ":
                raise UsageError(f"{target} exists and is not a model; it was left alone", "llsvm-train DATA MODEL")


def describe(path: str, verify: bool, as_json: bool) -> str:
    """A block set or a model in words or as JSON."""
    facts = _describe_set(path, verify) if Path(path).is_dir() else _describe_model(path)
    if as_json:
        return json.dumps(_without_surrogates(facts))
    lines = {_shown(name): _shown(value) for name, value in _flat(facts)}
    width = max(map(len, lines))
    return "\n".join(f"{name:{width}}  {value}" for name, value in lines.items())


def _without_surrogates(facts):
    """Bytes of names that are no UTF-8, escaped: programs that read JSON refuse them otherwise."""
    if isinstance(facts, dict):
        return {_without_surrogates(name): _without_surrogates(value) for name, value in facts.items()}
    if isinstance(facts, list):
        return [_without_surrogates(value) for value in facts]
    if isinstance(facts, str):
        return encoded(facts).decode("utf-8", "backslashreplace")
    return facts


def _shown(value) -> str:
    """All of it, without what a terminal would obey."""
    return quoted(str(value), most=1 << 40)


def _flat(facts: dict, prefix: str = ""):
    """Nested facts as ("outer inner", value) pairs."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name} ")
        elif isinstance(value, list):
            yield prefix + name, ", ".join(_listed(item) for item in value)
        else:
            yield prefix + name, value


def _listed(item) -> str:
    return " ".join(map(str, item.values())) if isinstance(item, dict) else str(item)


def _describe_set(path: str, verify: bool) -> dict:
    blocks = BlockSet(path)
    header = {name: value for name, value in blocks.header.items() if name not in ("blocks", "feature_ids")}
    facts = {"kind": "block set", **header, "blocks": len(blocks.blocks), "chunks": blocks.n_chunks,
             "bytes": int(blocks.chunk_bytes.sum())}
    if verify:
        _verify(blocks)
        facts["verified"] = f"{blocks.n_chunks} chunks, all checksums right"
    return facts


def _verify(blocks: BlockSet) -> None:
    """Reads everything, and compares it with what the manifest says."""
    header, ids, counts = blocks.header, np.sort(blocks.feature_ids()), np.zeros(blocks.n_labels, np.int64)
    if (ids[1:] == ids[:-1]).any():
        raise DataError(f"{blocks.path / header['feature_ids']['file']}: two features have the same id", REPAIR)
    sizes = arena_bytes(blocks.chunk_rows, blocks.chunk_nonzeros, blocks.dtype.itemsize)
    arena = Arena(int(sizes.max(initial=0)), np.empty(int(blocks.chunk_rows.max(initial=0)), ROW), blocks.dtype)
    decoder = Decoder(blocks)
    for chunk in range(blocks.n_chunks):
        arena.clear()
        arena.add_chunk(decoder, chunk)
        counts += np.bincount(arena.rows["code"], minlength=blocks.n_labels)
    for label, count in zip(header["labels"], counts.tolist(), strict=True):
        if label["rows"] != count:
            raise DataError(f"{blocks.path / MANIFEST}: {label['rows']} rows of label {quoted(label['name'])} are "
                            f"said, {count} were read", REPAIR)
    norm = float(np.sqrt(arena.largest_square))
    if not abs(norm - header["largest_norm"]) <= ROUNDING * norm:
        raise DataError(f"{blocks.path / MANIFEST}: a largest norm of {header['largest_norm']:g} is said, {norm:g} was "
                        "read", REPAIR)
    for block in blocks.blocks:
        if (more := os.path.getsize(blocks.path / block.file) - sum(block.bytes)) > 0:
            raise DataError(f"{blocks.path / block.file}: {more} bytes behind the last chunk", REPAIR)


def _describe_model(path: str) -> dict:
    if path != "-" and not os.path.exists(path):
        raise missing(path)
    model = models.load(path)
    origin = {} if "certificate" in model.info else {"certificate": "none (not written by llsvm)"}
    facts = {
        "kind": "model", "solver_type": model.solver_type, "labels": model.labels,
        "features": model.n_ids, "bias": model.bias,
        "nonzero_weights": int(np.count_nonzero(model.weights)), **origin,
    }
    return {**facts, **{name: value for name, value in model.info.items() if name not in facts}}
