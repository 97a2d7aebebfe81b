"""What the commands train and info do, from opened outputs to the last line printed."""

from __future__ import annotations

import os
import signal
import threading
from _thread import interrupt_main, start_new_thread
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from llsvm import kernel_machine, kernel_model, scratch, train
from llsvm import memory as budgets
from llsvm import model as models
from llsvm.core import Interrupted, UsageError, quoted
from llsvm.files import Output, same_file
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


@dataclass
class Run:
    """A training with everything opened. output: of the model, if one is written."""

    data: object
    console: Console
    log: RunLog
    stop: StopRequest
    output: Output | None

    def end(self, outcome: train.Outcome, config: train.Config) -> None:
        """Writes the last line of the log, and the model."""
        self.log.write("end", reason=outcome.reason, **outcome.stats.as_dict())
        self.log.close()
        if self.output:
            _save(outcome, self.data, config, self.console, self.output)


@contextmanager
def opened(paths, target: str | None, config: train.Config, log_path, quiet: bool):
    """A Run on these paths; outputs are opened first, and complete at the end or absent."""
    outputs = [target] if target else []
    _check_target(target)
    if log_path and any(same_file(log_path, path) for path in (*paths, *outputs)):
        raise UsageError(f"--log {log_path} is also DATA or MODEL")
    console, stop = Console(quiet), StopRequest()
    scratch.warn = console.warn
    try:
        with stop.listening(), Output(target) if target else nullcontext() as output:
            log = RunLog(log_path)
            console.begin()
            open_data = kernel_machine.open_data if config.kernel else train.open_data
            with open_data(paths, config, console.bar) as data:
                console.end()
                yield Run(data, console, log, stop, output)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; no model was written" if target else "interrupted") from None
    finally:
        console.end()


def train_model(
    paths, target: str, config: train.Config, log_path, quiet: bool, strict: bool, print_result
) -> tuple[bool, bool]:
    """Trains and writes the model; returns (converged, interrupted)."""
    with opened(paths, target, config, log_path, quiet) as run:
        outcome = (_train_kernel if config.kernel else _train)(run.data, config, run.console, run.log, run.stop, strict)
        run.end(outcome, config)
    return tell(outcome, target, config, run.console, strict, print_result)


def tell(outcome: train.Outcome, target: str, config: train.Config, console: Console, strict: bool,
         print_result) -> tuple[bool, bool]:  # fmt: skip
    """Prints how training ended, and what is to be doubted; returns (converged, interrupted)."""
    if target == "-":
        console.line(_summary(outcome, config))
    elif not console.quiet:
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


def _save(outcome: train.Outcome, data, config: train.Config, console: Console, output: Output) -> None:
    if config.kernel:
        kernel_model.save(kernel_machine.make_model(outcome, data, config), output)
        return
    model = train.make_model(outcome, data, config)
    _warn_of_ids(model, console)
    models.save(model, output, config.threads)


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
        warn_of_weights(data, config, console, strict)
    say_setting(setting_of(config, solver.bias, data), console, log)
    solver.show_progress(console.bar)
    stop.training = not once  # what is read once is whole or nothing
    outcome = train.run(solver, config, watched(console, log, stop), stop)
    if once:
        warn_of_weights(data, config, console, strict)
        for note in solver.notes:
            console.warn(note)
    return outcome


def _train_kernel(data, config, console: Console, log: RunLog, stop: StopRequest, strict: bool):
    warn_of_weights(data, config, console, strict)
    setting = setting_of(config, kernel_machine.plain(config).bias, data)
    kernel = kernel_machine.kernel_of(config, data.description.n_features)
    of_kernel = {"kernel": kernel.name, "gamma": kernel.gamma, "coef0": kernel.coef0, "degree": kernel.degree}
    shown = kernel_model.parameters(kernel)
    of_map = {"rank": config.rank or "auto", "pivots": config.pivots}
    say_setting({**setting, **{name: of_kernel[name] for name in ("kernel", *shown)}, **of_map}, console, log)
    return kernel_machine.fit(data, config, watched(console, log, stop), stop, console.line, console.bar)


def say_setting(setting: dict, console: Console, log: RunLog) -> None:
    console.line("llsvm-train " + ", ".join(f"{name} {value}" for name, value in setting.items()))
    log.write("start", **setting)
    console.begin()


def watched(console: Console, log: RunLog, stop: StopRequest):
    """What is told of every pass."""
    def on_pass(stats):
        stop.training = True
        console.pass_done(stats)
        console.begin()
        log.write("pass", **stats.as_dict())

    return on_pass


def warn_of_weights(data, config, console: Console, strict: bool) -> None:
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


def setting_of(config: train.Config, bias: float, data) -> dict:
    description = data.description
    weights = ["balanced"] * config.balanced + [f"{quoted(label)}:{C:g}" for label, C in config.weights.items()]
    known = {} if description is None else {
        "rows": description.n_rows, "features": description.n_features, "nonzeros": description.n_nonzeros,
    }  # fmt: skip
    return {
        "solver": config.solver + " --exact" * config.exact, "C": config.C, "tolerance": config.tolerance,
        "bias": "R" if config.bias is None and (description is None or config.kernel) else bias,
        "weights": " ".join(weights) or "none", **known, "data": data.where,
        **({"in_memory_from": held} if (held := getattr(data, "in_memory_from", "")) else {}),
        "memory": budgets.short_size(config.memory), "threads": config.threads, "seed": config.seed,
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
    known += kernel_machine.summary(outcome) if config.kernel else ""
    if stats.change < float("inf"):
        active = f", {stats.active} rows active" * bool(stats.active)
        known += f"relative {config.measure} = {stats.change:.3e}{active}\n"
    return known + (
        f"passes = {stats.number}, {budgets.format_size(stats.bytes_read)} read\n"
        f"time = {stats.seconds:.2f} s (compute {stats.compute:.2f} s, waiting for data {stats.wait:.2f} s)\n"
        f"peak memory = {budgets.format_size(stats.peak_memory)}"
    )


def _check_target(target: str | None) -> None:
    """Refuses to write a model over data: `llsvm-train data.txt`, with the model forgotten, is easily typed."""
    if target in ("-", None):
        return
    path = Path(target)
    if path.is_dir():
        raise UsageError(f"{target} is a directory, not a model file", "llsvm-train DATA MODEL")
    if path.is_file() and path.stat().st_size:
        with open(path, "rb") as file:
            if not file.read(12).startswith((b"solver_type ", kernel_model.FIRST)):
                raise UsageError(f"{target} exists and is not a model; it was left alone", "llsvm-train DATA MODEL")
