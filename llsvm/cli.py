"""The command line: options in, one call, results out."""

from __future__ import annotations

import sys

from llsvm import process

if process.is_called("llsvm"):
    process.begin()  # signals are heard, and end the process without a traceback, while all the rest is loaded

import gc
import os
import re

gc.set_threshold(100_000)  # imports and our loops make no cycles; looking for some takes a twentieth of the start
# One numpy thread is enough here, and its pool of idle ones would cost memory.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click  # noqa: E402

from llsvm import __version__  # noqa: E402
from llsvm.core import (  # noqa: E402
    INTERRUPTED,
    NOT_CONVERGED,
    REFUSED,
    ClosedPipe,
    Interrupted,
    LlsvmError,
    UsageError,
    quoted,
    system_hint,
)

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def n_cores() -> int:
    from llsvm import memory

    return memory.usable_cores()


def budget(text: str | None) -> int:
    """--memory in bytes: half of what this process may use unless told."""
    from llsvm import memory

    if text is None:
        return memory.usable() // 2
    size = memory.parse_size(text)
    if size < memory.MB and text.strip().isdigit():
        raise UsageError(f"--memory {text} is {size} bytes", f"did you mean {text.strip()}M?")
    return size


memory_option = click.option("--memory", metavar="SIZE", help="Memory for the whole process, e.g. 300M or 2G.  "
                             "[default: half of what it may use]")
many_labels_option = click.option("--many-labels", is_flag=True, help="Accept more than 100 labels with fewer than two "
                                  "rows for each on average.")
threads_option = click.option("--threads", type=click.IntRange(1, 256), default=n_cores,
                              show_default="all cores it may use", help="Threads to use.")


class Command(click.Command):
    """A command that knows the ways in which an option is mistyped."""

    def parse_args(self, context, arguments):
        """-threads is no -t; click would say so."""
        known = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        for word in arguments[: arguments.index("--")] if "--" in arguments else arguments:
            if re.match("-[a-z]{2}", word) and f"-{word.partition('=')[0]}" in known:
                raise UsageError(f"{word}: no such option", f"did you mean -{word}?")
        return super().parse_args(context, arguments)


class WeightCommand(Command):
    """LIBLINEAR writes a weight as -wLABEL VALUE; click needs a name of its own for that."""

    def parse_args(self, context, arguments):
        return super().parse_args(context, _name_weights(arguments))


def _name_weights(arguments: list[str]) -> list[str]:
    result, rest = [], list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*result, word, *rest]
        if word == "-w" and rest[:1] == ["balanced"]:
            rest.pop(0)
            result.append("--balanced")
        elif word == "-w":
            label, weight = [*rest, "LABEL", "W"][:2] if len(rest) > 1 else ("LABEL", "W")
            raise UsageError(" ".join(["-w", *rest[:1]]) + ": the label of a weight stands right behind the letter",
                             f"-w{label} {weight}, or -w balanced")
        elif word.startswith("-w"):
            if not rest or not _is_number(rest[0]):
                raise UsageError(f"{' '.join([word, *rest[:1]])}: a weight, a number, is needed behind {word}",
                                 "-wLABEL W, for example -w1 2")
            result += ["--weight", word[2:], rest.pop(0)]
        elif word == "-B" and rest[:1] and rest[0].startswith("-"):
            result.append(f"-B{rest.pop(0)}")
        else:
            result.append(word)
    return result


def _is_number(text: str) -> bool:
    try:
        return float(text) is not None
    except ValueError:
        return False


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="llsvm")
def llsvm():
    """Linear support vector machines on data larger than memory, with a proof of how close to the optimum.

    \b
    llsvm split data.txt -m 40             text -> compressed blocks in data.txt.blocks
    llsvm train -c 1 -B 1 model            trains on the blocks under a memory budget
    llsvm predict test.txt model out       applies the model
    llsvm info data.txt.blocks             what a block set or a model is
    """


llsvm.command_class = Command

@llsvm.command(context_settings=CONTEXT)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("-m", "--blocks", type=click.IntRange(1, 4096), default=16, show_default=True,
              help="Number of block files. It matters to -s block, which works on one at a time.")
@click.option("-o", "--output", metavar="DIR", help="Where the block set goes.  [default: INPUT.blocks]")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True,
              help="Decides which row goes where.")
@click.option("--zero-based", is_flag=True, help="Feature ids in the text start at 0.")
@click.option("--precision", type=click.Choice(["float32", "float64"]), default="float32", show_default=True,
              help="How values are stored.")
@many_labels_option
@click.option("--force", is_flag=True, help="Replace an existing block set.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@memory_option
@threads_option
@click.version_option(__version__, prog_name="llsvm-split")
def split(inputs, blocks, output, seed, zero_based, precision, many_labels, force, quiet, memory, threads):
    """Turns LIBSVM text into a block set: rows assigned to blocks at random, compressed, checksummed.

    INPUT is plain text, gzip, bzip2, xz or zstd, or - for standard input; several are read one after the other. The
    path of the block set is printed on standard output.

    \b
    llsvm-split data.txt -m 40                      -> data.txt.blocks/
    zcat *.gz | llsvm-split - -o all.blocks         from a pipe
    llsvm-train -c 1 $(llsvm-split data.txt) model  in one go
    """
    from llsvm import memory as budgets
    from llsvm.report import Console
    from llsvm.split import split_text

    if output is None:
        if inputs[0] == "-":
            raise UsageError("a name is needed for what comes from standard input", "say -o DIR")
        output = inputs[0].rstrip("/") + ".blocks"
    console = Console(quiet)
    allowed = budget(memory)
    budgets.keep_freed_arrays()
    console.line(f"llsvm-split {' '.join(map(quoted, inputs))} -m {blocks} -o {quoted(output)} --seed {seed} "
                 f"--precision {precision} --threads {threads} --memory {budgets.short_size(allowed)}")
    summary = split_text(list(inputs), output, n_blocks=blocks, seed=seed, zero_based=zero_based, precision=precision,
                         force=force, threads=threads, memory=allowed, many_labels=many_labels, console=console)
    console.line(summary)
    print_result(output, output)


@llsvm.command(cls=WeightCommand, context_settings=CONTEXT)
@click.argument("paths", nargs=-1, required=True, metavar="[DATA] MODEL")
@click.option("-s", "--solver", default="dual", show_default=True, metavar="SOLVER",
              help="dual (LIBLINEAR's 3), dual-l2 (1, squared hinge loss), block (the block minimisation paper), "
                   "shrink (the LLSVM paper: one pass over the text), pegasos (stochastic sub-gradient descent), "
                   "stream (StreamSVM: one pass, the smallest ball), cs (4, Crammer-Singer), ww (Weston-Watkins).")
@click.option("-c", "--cost", type=float, default=1.0, show_default=True, help="C, the price of a margin violation.")
@click.option("-e", "--tolerance", type=float, show_default="1e-3; shrink: 0.01",
              help="Stop at this relative duality gap (certified); shrink: at this relative change of the dual; "
                   "pegasos: where five passes improve the primal by no more.")
@click.option("-B", "--bias", default="-1", show_default=True, metavar="NUMBER|R",
              help="A bias term of this size; R: the largest row norm; negative: none.")
@click.option("--weight", type=(str, float), multiple=True, hidden=True)
@click.option("--balanced", is_flag=True, hidden=True)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="Order of the visits.")
@click.option("--max-passes", type=click.IntRange(1), default=10000, show_default=True, help="Stop after as many.")
@click.option("--time-limit", type=float, metavar="SECONDS",
              help="Stop where it is over, within a pass too, counted from the start of training.")
@click.option("--inner", metavar="N|auto",
              help="Sweeps: of a block (-s block), or auto, until LIBLINEAR's condition holds in it; of a sub-problem "
                   "(-s shrink).  [default: 1; shrink: 12]")
@click.option("--exact", is_flag=True, help="-s shrink: look at all rows again and again, until the gap is certified.")
@click.option("--certify/--no-certify", default=True,
              help="-s shrink, stream: read the rows once more to certify the result, where that is possible; pegasos: "
                   "look at every row once more a pass.")
@click.option("--batch", default="1", show_default=True, metavar="N|block",
              help="-s pegasos: rows a step, or block, one step a block of the set.")
@click.option("--init", type=click.Choice(["zero", "random"]), default="zero", show_default=True,
              help="-s pegasos: where w begins.")
@click.option("--hold-t", is_flag=True, help="-s pegasos: a step in which no row has a loss does not make later ones "
              "smaller.")
@click.option("--average/--no-average", default=True, show_default=True,
              help="-s pegasos: the average of w over the later passes, scaled as is best, or the last w.")
@click.option("--lookahead", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N",
              help="-s stream: rows outside the ball that are enclosed together.")
@click.option("--zero-based", is_flag=True, help="Feature ids in the text start at 0.")
@click.option("--precision", type=click.Choice(["float32", "float64"]), default="float32", show_default=True,
              help="How values of text are stored.")
@many_labels_option
@click.option("--log", metavar="FILE", help="Write a run log, JSON lines.")
@click.option("--strict", is_flag=True, help="Exit with 3 if the tolerance was not reached.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but warnings and errors.")
@memory_option
@threads_option
@click.version_option(__version__, prog_name="llsvm-train")
def train(paths, solver, cost, tolerance, bias, weight, balanced, seed, max_passes, time_limit, inner, exact,
          certify, batch, init, hold_t, average, lookahead, zero_based, precision, many_labels, log, strict, quiet,
          memory, threads):
    """Trains a linear SVM to a certified duality gap and writes MODEL in LIBLINEAR's format.

    DATA is a block set, LIBSVM text (any compression, several files), or - for standard input: text, or the path that
    llsvm-split prints. Left out, it is the only *.blocks directory here.

    \b
    -wLABEL W       C of this label is W times C, as in LIBLINEAR:  -w1 2 -w-1 0.5 -wspam 10
    -w balanced     weights such that all labels count the same

    \b
    llsvm-train model                               the block set here, C = 1
    llsvm-train -c 0.1 -B 1 data.txt model          from text; split into a temporary set if it does not fit
    llsvm-train --memory 2G big.blocks model        at most 2 GB, however large the set
    llsvm-split d.txt | llsvm-train -s 1 - model    squared hinge loss, in a pipeline
    zcat d.gz | llsvm-train -s shrink - model       one pass, any number of classes, near the optimum
    llsvm-train -s pegasos --max-passes 20 model    stochastic sub-gradient descent, with an honest gap
    zcat d.gz | llsvm-train -s stream - model       one pass, no more memory than the weights
    """
    from llsvm.session import train_model
    from llsvm.train import Config, default_tolerance

    if paths in (("help",), ("version",)):
        raise UsageError(f"{paths[0]} would be the name of the model", f"llsvm-train --{paths[0]}, or ./{paths[0]}")
    if tolerance is None:
        tolerance = default_tolerance(solver, exact)
    config = Config(
        solver=solver, C=_cost(cost), tolerance=_positive("-e", tolerance), bias=_bias(bias),
        weights={_label(label): _positive(f"-w{label}", value) for label, value in weight}, balanced=balanced,
        memory=budget(memory), threads=threads, seed=seed, max_passes=max_passes,
        time_limit=float("inf") if time_limit is None else _positive("--time-limit", time_limit), inner=_inner(inner),
        exact=exact, certify=certify, batch=_batch(batch), init=init, hold_t=hold_t, average=average,
        lookahead=lookahead, zero_based=zero_based, precision=precision, many_labels=many_labels, said=_said(),
    )
    *data, target = paths
    converged, interrupted = train_model(data, target, config, log, quiet, strict, print_result)
    if interrupted:
        sys.exit(INTERRUPTED)
    if strict and not converged:
        sys.exit(NOT_CONVERGED)


def _positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise UsageError(f"{name} {value:g}: a positive number is needed")
    return value


def _cost(value: float) -> float:
    if not 1e-300 <= value <= 1e300:
        raise UsageError(f"-c {value:g}: a number between 1e-300 and 1e300 is needed")
    return value


def _said() -> frozenset[str]:
    """The options given on the command line."""
    context = click.get_current_context()
    given = click.core.ParameterSource.COMMANDLINE
    return frozenset(name for name in context.params if context.get_parameter_source(name) is given)


def _label(text: str) -> str:
    from llsvm.text import canonical_label

    return canonical_label(text.encode("utf-8", "surrogateescape"))


def _bias(text: str) -> float | None:
    if text.upper() == "R":
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise UsageError(f"-B {text}: a number or R is needed")
    return value


def _inner(text: str | None) -> int | None:
    return None if text is None else _count("--inner", text, "auto")


def _batch(text: str) -> int:
    return _count("--batch", text, "block")


def _count(name: str, text: str, word: str) -> int:
    """A number from 1 up, or 0 for this word."""
    if text == word:
        return 0
    if not text.isdigit() or not 1 <= int(text) < 2**31:
        raise UsageError(f"{name} {text}: a number from 1 up, or {word}, is needed")
    return int(text)


@llsvm.command(context_settings=CONTEXT)
@click.argument("test")
@click.argument("model")
@click.argument("output")
@click.option("--scores", is_flag=True, help="Decision values behind each label, and a first line naming the columns.")
@click.option("--zero-based", is_flag=True, help="Feature ids in the text start at 0.  [default: as when trained]")
@click.option("--force", is_flag=True, help="Replace OUTPUT even if it holds no predictions of this model.")
@click.option("-q", "--quiet", is_flag=True, help="No accuracy, no progress.")
@threads_option
@click.version_option(__version__, prog_name="llsvm-predict")
def predict(test, model, output, scores, zero_based, force, quiet, threads):
    """Applies MODEL to TEST and writes one label a line to OUTPUT.

    TEST is LIBSVM text (any compression), - for standard input, or a block set (whose rows come in the order of its
    blocks); OUTPUT may be -. MODEL is one of ours or LIBLINEAR's, or - for
    standard input. Features the model does not know are ignored.

    \b
    llsvm-predict test.txt model out
    zcat test.gz | llsvm-predict - model - | sort | uniq -c
    """
    from llsvm.predict import predict_labels

    predict_labels(test, model, output, scores, zero_based, force, quiet, threads, print_result)


@llsvm.command(context_settings=CONTEXT)
@click.argument("path")
@click.option("--verify", is_flag=True, help="Read everything and check every checksum.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def info(path, verify, as_json):
    """Says what a block set or a model is.

    \b
    llsvm info data.txt.blocks --verify
    llsvm info model --json
    """
    from llsvm.session import describe

    print_result(describe(path, verify, as_json))


def print_result(text: str, written: str = "") -> None:
    """Prints on standard output; written: what is complete, whatever becomes of this."""
    try:
        sys.stdout.buffer.write(os.fsencode(text + "\n"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ClosedPipe from None
    except OSError as error:
        complete = f"; {written} is complete" if written else ""
        raise LlsvmError(f"standard output {process.trouble(error)}{complete}") from None


def run(command) -> None:
    """Runs a command; every way it can fail becomes a sentence and an exit code."""
    process.begin()
    leave(_attempt(command))


def _attempt(command) -> int:
    try:
        command(standalone_mode=False)
    except SystemExit as error:
        return error.code or 0
    except ClosedPipe as error:
        # What is still buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return error.exit_code
    except LlsvmError as error:
        return fail(error.message, error.hint, error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        process.say(error.format_message() + "\n")
        return error.exit_code
    except click.ClickException as error:
        return fail(*_in_our_words(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return fail("interrupted", "", Interrupted.exit_code)
    except MemoryError:
        return fail("out of memory", "a smaller --memory leaves more room")
    except OSError as error:
        return fail(*_words(error))
    except Exception as error:
        return fail(*_unexpected(error))
    return 0


def _words(error: OSError) -> tuple[str, str]:
    """Of an error that nobody has put into words: message and hint. What is written without a name is help."""
    name = f"{error.filename}:" if error.filename else "standard output"
    reason = process.trouble(error) if not error.filename else error.strerror or error
    return f"{name} {reason}", system_hint(error)


def _unexpected(error: Exception) -> tuple[str, str]:
    """Message and hint of what should not have come this far."""
    if os.environ.get("LLSVM_TRACEBACK"):
        raise error
    if isinstance(error, ImportError):
        return f"a part of llsvm cannot be loaded: {quoted(str(error), 300)}", "install it again, or allow more memory"
    trace, place = error.__traceback__, ""
    while trace:
        code = trace.tb_frame.f_code
        if f"{os.sep}llsvm{os.sep}" in code.co_filename:
            place = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return (f"unexpected {type(error).__name__} at {place}: {quoted(str(error), 300)}",
            "this is a fault of llsvm; with LLSVM_TRACEBACK=1 it says more, for a report")


ABSENT = {
    "-v": "there is no cross-validation: train on a part, and llsvm-predict the rest",
    "-C": "there is no search for C: try -c 0.01, -c 0.1, -c 1, -c 10",
    "-b": "there are no probabilities: llsvm-predict --scores writes decision values",
    "-m": "-m goes with llsvm-split; --threads with every command",
    "-i": "there is no warm start",
    "-p": "there is no regression",
}


def _in_our_words(error: click.ClickException) -> tuple[str, str]:
    """What click says, as a sentence and a hint."""
    context, near = getattr(error, "ctx", None), getattr(error, "possibilities", None)
    hint = f"did you mean {' or '.join(near)}?" if near else f"{context.command_path} --help" if context else ""
    message = error.message.rstrip(".")
    if isinstance(error, click.NoSuchOption):
        return f"{error.option_name}: no such option", hint if near else ABSENT.get(error.option_name, hint)
    if isinstance(error, click.MissingParameter) and error.param and context:
        return f"{error.param.metavar or error.param.name.upper()} is missing", context.get_usage().partition(": ")[2]
    if isinstance(error, click.BadParameter) and error.param:
        return f"{error.param.opts[0]} {_needed(message)}", hint
    return message[:1].lower() + message[1:], hint


def _needed(message: str) -> str:
    """What a value is, and what it should be; said by click as of a variable x."""
    if match := re.fullmatch(r"'(.*)' is not a valid (float|integer)( range)?", message, re.DOTALL):
        return f"{quoted(match[1])}: a {'whole ' * (match[2] == 'integer')}number is needed"
    if match := re.fullmatch(r"(\S+) is not in the range (?:x>=(\d+)|(\d+)<=x<=(\d+))", message):
        return f"{match[1]}: a number from {match[2] or match[3]} {f'to {match[4]}' if match[4] else 'up'} is needed"
    if match := re.fullmatch(r"'(.*)' is not one of (.*)", message, re.DOTALL):
        return f"{quoted(match[1])}: one of {match[2]} is needed"
    return f"({message})"


def leave(code: int) -> None:
    """Ends the process at once: clearing up the interpreter takes longer than starting a small job."""
    try:
        sys.stdout.flush()
    except OSError as error:
        code = code or fail(*_words(error))
    os._exit(code)


def fail(message: str, hint: str = "", code: int = REFUSED) -> int:
    process.say(f"error: {message}" + (f"\nhint: {hint}" if hint else "") + "\n")
    return code


def main() -> None:
    run(llsvm)


def split_main() -> None:
    run(split)


def train_main() -> None:
    run(train)


def predict_main() -> None:
    run(predict)
