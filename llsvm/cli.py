"""The command line: options in, one call, results out."""

import sys

try:
    from llsvm import process

    if process.is_called("llsvm"):
        process.begin()  # signals are heard, and end the process without a traceback, while all the rest is loaded
except KeyboardInterrupt:  # before that
    import _signal

    once_more = _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # the second of two would end in a traceback
    from llsvm import process

    if not process.is_called("llsvm"):
        _signal.signal(_signal.SIGINT, once_more)
        raise
    process.interrupted_while_starting()

import gc
import os
from dataclasses import replace
from functools import partial

gc.set_threshold(100_000)  # imports and our loops make no cycles; looking for some takes a twentieth of the start
# One numpy thread is enough here, and its pool of idle ones would cost memory.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click  # noqa: E402

from llsvm import __version__  # noqa: E402
from llsvm.core import (  # noqa: E402
    NOT_CONVERGED,
    REFUSED,
    ClosedPipe,
    Interrupted,
    LlsvmError,
    UsageError,
    escaped,
    quoted,
    system_hint,
)
from llsvm.memory import check_limit  # noqa: E402
from llsvm.options import OPTIONS, Config, Option, whole  # noqa: E402
from llsvm.words import Command, in_our_words, typed  # noqa: E402

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


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
@typed(n_blocks=Option(16, "-m --blocks", whole(1, 4096),
                       "Number of block files. It matters to -s block, which works on one at a time."))
@click.option("-o", "--output", metavar="DIR", help="Where the block set goes.  [default: INPUT.blocks]")
@typed("seed", "zero_based", "precision", "many_labels",
       seed=Option(1, "--seed", whole(0, 2**63 - 1), "Decides which row goes where."),
       precision=replace(OPTIONS["precision"], help="How values are stored."))
@click.option("--force", is_flag=True, help="Replace an existing block set.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@typed("memory", "threads")
@click.version_option(__version__, prog_name="llsvm-split")
def split(inputs, output, quiet, **values):
    """Turns LIBSVM text into a block set: rows assigned to blocks at random, compressed, checksummed.

    INPUT is plain text, gzip, bzip2, xz or zstd, or - for standard input; several are read one after the other. The
    path of the block set is printed on standard output.

    \b
    llsvm-split data.txt -m 40                      -> data.txt.blocks/
    zcat *.gz | llsvm-split - -o all.blocks         from a pipe
    llsvm-train -c 1 $(llsvm-split data.txt) model  in one go
    """
    from llsvm.memory import keep_freed_arrays, short_size
    from llsvm.report import Console
    from llsvm.split import split_text

    if output is None:
        if inputs[0] == "-":
            raise UsageError("a name is needed for what comes from standard input", "say -o DIR")
        output = inputs[0].rstrip("/") + ".blocks"
    console, said = Console(quiet), {**values, "memory": short_size(values["memory"])}
    keep_freed_arrays()
    console.line(f"llsvm-split {' '.join(map(quoted, inputs))} -m {said['n_blocks']} -o {quoted(output)} " + " ".join(
        f"--{name} {said[name]}" for name in ("seed", "precision", "threads", "memory")))
    summary = split_text(list(inputs), output, console=console, **values)
    console.line(summary)
    print_result(output, output)


@llsvm.command(context_settings=CONTEXT)
@click.argument("paths", nargs=-1, metavar="[DATA] MODEL")
@typed(*list(OPTIONS)[:-2])  # but the last two, --memory and --threads
@click.option("--log", metavar="FILE", help="Write a run log, JSON lines.")
@click.option("--cv-table", metavar="FILE", help="Write what -v or -C found, a line a C, as CSV.")
@click.option("--strict", is_flag=True, help="Exit with 3 if the tolerance was not reached.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but warnings and errors.")
@typed("memory", "threads")
@click.version_option(__version__, prog_name="llsvm-train")
def train(paths, log, cv_table, strict, quiet, **values):
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
    llsvm-train -v 5 data.txt                       cross-validation: prints the accuracy
    llsvm-train -C data.txt model                   looks for the best C, and trains with it
    llsvm-train -s pegasos --max-passes 20 model    stochastic sub-gradient descent, with an honest gap
    zcat d.gz | llsvm-train -s stream - model       one pass, no more memory than the weights
    """
    check_limit()
    from llsvm.session import train_model

    if paths in (("help",), ("version",)):
        raise UsageError(f"{paths[0]} would be the name of the model", f"llsvm-train --{paths[0]}, or ./{paths[0]}")
    source, given = click.get_current_context().get_parameter_source, click.core.ParameterSource.COMMANDLINE
    said = frozenset(name for name in OPTIONS if source(name) is given)
    if not values["exact"]:  # which has the defaults of -s dual
        values |= {name: option.default_of.get(values["solver"], values[name])
                   for name, option in OPTIONS.items() if name not in said}  # fmt: skip
    config, context = Config(**values, said=said), click.get_current_context()
    if cv_table and not config.folds:
        raise UsageError("--cv-table: nothing is validated", "--cv-table goes with -v and -C")
    if not paths and not config.folds:
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    *data, target = paths if len(paths) > 1 or not config.folds else (*paths, None)  # as LIBLINEAR: -v 5 DATA
    if config.folds:
        from llsvm.selection import select

        converged, interrupted = select(data, target, config, log, cv_table, quiet, strict, print_result)
    else:
        converged, interrupted = train_model(data, target, config, log, quiet, strict, print_result)
    if interrupted:
        sys.exit(Interrupted.exit_code)
    if strict and not converged:
        sys.exit(NOT_CONVERGED)


@llsvm.command(context_settings=CONTEXT)
@click.argument("test")
@click.argument("model")
@click.argument("output")
@click.option("--scores", is_flag=True, help="Decision values behind each label, and a first line naming the columns.")
@click.option("--zero-based", is_flag=True, help="Feature ids in the text start at 0.  [default: as when trained]")
@click.option("--force", is_flag=True, help="Replace OUTPUT even if it holds no predictions of this model.")
@click.option("-q", "--quiet", is_flag=True, help="No accuracy, no progress.")
@typed("threads")
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
    check_limit()
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
    check_limit()
    from llsvm.describe import describe

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
        return fail(*in_our_words(error), error.exit_code)
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
    trace, place, loading = error.__traceback__, "", isinstance(error, ImportError)
    while trace:
        code = trace.tb_frame.f_code
        # Where memory ends while a module is loaded, anything may be raised.
        loading = loading or code.co_name == "<module>" or code.co_filename.startswith("<frozen importlib")
        if f"{os.sep}llsvm{os.sep}" in code.co_filename:
            place = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    if loading:
        return _not_loaded(error)
    return (f"unexpected {type(error).__name__} at {place}: {quoted(str(error), 300)}",
            "this is a fault of llsvm; with LLSVM_TRACEBACK=1 it says more, for a report")


def _not_loaded(error: Exception) -> tuple[str, str]:
    """Message and hint of what was raised while a module was being loaded. NumPy says much around the reason."""
    while error.__cause__:
        error = error.__cause__
    reason = quoted(str(error), 300) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
    return f"a part of llsvm cannot be loaded: {reason}", "install it again, or allow more memory"


def leave(code: int) -> None:
    """Ends the process at once: clearing up the interpreter takes longer than starting a small job."""
    try:
        sys.stdout.flush()
    except OSError as error:
        code = code or fail(*_words(error))
    process.clear_unfinished()  # which it may have taken memory to do before, when there was none
    os._exit(code)


def fail(message: str, hint: str = "", code: int = REFUSED) -> int:
    process.say(f"error: {escaped(message)}\n" + f"hint: {escaped(hint)}\n" * bool(hint))
    return code


main, split_main, train_main, predict_main = (partial(run, command) for command in (llsvm, split, train, predict))
