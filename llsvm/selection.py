"""What llsvm-train -v and -C do, from opened outputs to the last line printed."""

from __future__ import annotations

import csv
import io
from contextlib import nullcontext
from dataclasses import replace

from llsvm import session
from llsvm.files import Output
from llsvm.options import Config
from llsvm.problem import bias_of
from llsvm.report import Console, RunLog
from llsvm.search import Validation, Validator, first_cost, search

COLUMNS = ["C", "accuracy", "balanced", "f1", "standard_error", "gap", "passes", "seconds"]


def select(paths, target: str | None, config: Config, log_path, table_path, quiet: bool, strict: bool,
           print_result) -> tuple[bool, bool]:  # fmt: skip
    """Validates one C, or searches for the best, and prints what LIBLINEAR prints; writes a model where there is a
    target. Returns (converged, interrupted)."""
    with Output(table_path) if table_path else nullcontext() as table, \
            session.opened(paths, target, config, log_path, quiet) as run:  # fmt: skip
        session.warn_of_weights(run.data, config, run.console, strict)
        bias = bias_of(config, run.data.description.largest_norm)
        setting = session.setting_of(config, bias, run.data)
        session.say_setting({**setting, "folds": config.folds}, run.console, run.log)
        validator, tried = Validator(run.data, config, bool(target) and not config.search), []

        def on_value(found: Validation) -> None:
            tried.append(found)
            _tell(found, config, run.console, run.log)

        if config.search:
            start = config.C if "C" in config.said else first_cost(run.data.description, config)
            found = search(validator, start, config.metric, config.select, on_value)
        else:
            on_value(found := validator.run(config.C))
        if table:
            _write_table(table, tried, config.metric)
        if target:
            outcome, config = found.outcome or validator.train(found.cost), replace(config, C=found.cost)
            run.end(outcome, config)
    print_result(_answer(found, config), target or "")
    is_met = (gap := max(one.gap for one in tried)) <= validator.tolerance
    if not is_met:
        run.console.warn(f"folds ended at a relative duality gap of {gap:.2e}, above the tolerance of "
                         f"{validator.tolerance:g}; raise --max-passes or --time-limit, or -e")
    if not target:
        return is_met, False
    converged, interrupted = session.tell(outcome, target, config, run.console, strict, print_result)
    return is_met and converged, interrupted


def _answer(found: Validation, config: Config) -> str:
    """LIBLINEAR's own lines: programs that drive it read them."""
    percent, metric = 100 * found.tally.score("accuracy"), config.metric
    line = (f"Best C = {found.cost:g}  CV accuracy = {percent:g}%" if config.search else
            f"Cross Validation Accuracy = {percent:g}%")  # fmt: skip
    return line if metric == "accuracy" else f"{line}\n{metric} = {found.tally.score(metric):.6g}"


def _row(found: Validation, metric: str) -> list:
    scores = [found.tally.score(name) for name in ("accuracy", "balanced", "f1")]
    return [found.cost, *scores, found.tally.spread(metric), found.gap, found.n_passes, found.seconds]


def _tell(found: Validation, config: Config, console: Console, log: RunLog) -> None:
    tally, metric = found.tally, config.metric
    console.line(f"C {found.cost:<9.5g} {metric} {tally.score(metric):.4f}  standard error {tally.spread(metric):.4f}  "
                 f"gap {found.gap:.1e}  passes {found.n_passes}  {found.seconds:.2f} s")
    log.write("validation", folds=config.folds, **dict(zip(COLUMNS, _row(found, metric), strict=True)),
              by_fold=[tally.score(metric, fold) for fold in range(config.folds)], bytes_read=found.bytes_read)


def _write_table(output: Output, tried: list[Validation], metric: str) -> None:
    text = io.StringIO(newline="")
    table = csv.writer(text)
    table.writerow(COLUMNS)
    for found in sorted(tried, key=lambda one: one.cost):
        table.writerow([f"{value:.9g}" for value in _row(found, metric)])
    output.write(text.getvalue().encode())
    output.commit()
