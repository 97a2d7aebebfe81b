"""What is trained on: found, read, and put where it fits and the solver takes it: in memory, on disk, a stream."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from llsvm import foreign, memory, reader
from llsvm.blockset import BlockSet, is_block_set
from llsvm.core import DataError, Description, LlsvmError, UsageError, quoted
from llsvm.features import FeatureMap
from llsvm.options import Config, refuse_text_options
from llsvm.scratch import Nameless
from llsvm.sources import Raw, Source, open_sources, reserved_bytes, with_room
from llsvm.stream import READ_ON, ResidentStream, SetStream, TextStream
from llsvm.text import LABEL_LIMIT, Labels, scan_blocks, too_many_labels
from llsvm.writer import Writer

TEMPORARY_BLOCKS = 16
LONGEST_PATH = 4096


@contextmanager
def open_data(paths: list[str], config: Config, progress: Callable = lambda *_: None):
    """The data set that the paths name, ready for the solver: Resident where it fits, else a BlockSet; a stream for
    a solver that takes one.

    No path: the one *.blocks directory here. Text that does not fit is split into a temporary set.
    """
    memory.keep_no_freed_arrays()
    solver = config.method
    paths = paths or [_only_set_here()]
    sources = None
    if len(paths) == 1 and paths[0] == "-":
        raw = Raw("-")
        paths = _set_named_on(raw) or paths
        sources = None if paths != ["-"] else with_room([Source("-", raw=raw)], config.budget.left)
    if sources is None and any(Path(path).is_dir() for path in paths):
        if len(paths) > 1:
            folder = next(path for path in paths if Path(path).is_dir())
            raise UsageError(f"{folder}: a folder is trained on alone", "give one block set, or text files")
        refuse_text_options(config, paths[0])
        yield _open_set(BlockSet(paths[0]), solver, config)
        return
    sources = sources or open_sources(paths, config.budget.left)
    if reads_once(config):
        if config.balanced:
            raise UsageError("-w balanced needs the counts of all labels, and text is read once",
                             "make a block set first: llsvm-split, then llsvm-train")
        yield TextStream(sources, paths, config.threads, config.zero_based, config.precision, config.budget.left,
                         config.many_labels)
        return
    files = None
    try:
        refusal = None
        try:
            data, files = _read_text(sources, solver, config, progress)
        except UsageError as error:
            refusal = error.with_traceback(None)  # whose frames have the rows
        if refusal:
            raise _refusal_of_all(refusal, paths, solver, config)
        yield data
    finally:
        if files:
            files.discard()


def _set_named_on(raw: Raw) -> list[str] | None:
    """The block set whose path llsvm-split printed into this input; None where that begins like text."""
    line, newline, _ = raw.front(LONGEST_PATH, until=b"\n").partition(b"\n")
    path = os.fsdecode(line)
    if not newline and len(line) == LONGEST_PATH:
        return None
    if not is_block_set(path):
        if re.fullmatch(rb"[^#:]+\.blocks/?", line):
            raise DataError(f"standard input names {quoted(path, LONGEST_PATH)}, and there is no such block set")
        return None
    if raw.front(LONGEST_PATH)[len(line) :].strip():  # up to the end: another llsvm-split may still be at work
        raise UsageError(f"standard input names {quoted(path, LONGEST_PATH)} and more; training takes one set",
                         "split all text into one set: llsvm-split A B -o both.blocks")
    return [path]


def reads_once(config: Config) -> bool:
    """Whether text is read once and not kept: always, or where one pass is asked for that needs nothing beforehand."""
    solver = config.method
    return wants_one_pass(config) if solver.rereads else bool(solver.once) and not config.exact


def wants_one_pass(config: Config) -> bool:
    """Whether a solver that could make more passes is asked for one, and nothing that text tells only at its end."""
    blind = config.batch and config.init == "zero" and not config.weights and not config.balanced
    return config.method.rereads and config.max_passes == 1 and bool(blind)


def _only_set_here() -> str:
    found = sorted(str(path) for path in Path().glob("*.blocks") if is_block_set(path))
    if len(found) != 1:
        what = f"several sets here: {', '.join(found)}" if found else "no *.blocks directory here"
        raise UsageError(f"no DATA given and {what}", "llsvm-train DATA MODEL" + ", or llsvm-split first" * (not found))
    return found[0]


def _open_set(blocks: BlockSet, solver, config: Config):
    if blocks.n_rows == 0:
        raise DataError(f"{blocks.path}: no rows")
    if blocks.n_nonzeros == 0:
        raise foreign.without_features(str(blocks.path))
    if not config.many_labels and too_many_labels(blocks.n_rows, blocks.n_labels):
        raise foreign.too_many_labels(str(blocks.path), blocks.n_rows, blocks.description.labels)
    if reads_once(config) and not solver.rereads:
        return SetStream(blocks, config.budget.left, config.seed)
    if config.folds:
        check_folds(blocks.description, config.folds)
        blocks.n_folds = config.folds
    size = reader.rows_bytes(blocks.n_rows, blocks.n_nonzeros, blocks.dtype.itemsize,
                             reader.index_size(blocks.n_features))
    decoding = config.threads * 3 * int(blocks.chunk_nonzeros.max()) * (4 + blocks.dtype.itemsize)
    beside = footprint(solver, config, len(blocks.description.labels)).bytes(blocks.n_features, blocks.n_rows)
    needed = size + max(decoding, beside)  # one after the other
    resident_if_it_fits = may_be_resident(solver, config)
    fits = resident_if_it_fits and needed <= config.budget.of_resident.left
    data = reader.load(blocks, config.threads) if fits else blocks
    if resident_if_it_fits and not fits:
        blocks.in_memory_from = memory.enough(needed, memory.RESIDENT_FLOOR)
    return as_stream(data, config) if solver.rereads else data


def check_folds(description: Description, n_folds: int) -> None:
    if n_folds > description.n_rows:
        raise UsageError(f"-v {n_folds}: there are only {description.n_rows} rows", f"-v {description.n_rows} at most")
    if n_folds * len(description.labels) > LABEL_LIMIT:
        raise UsageError(f"-v {n_folds}: {len(description.labels)} labels in as many folds are too many",
                         f"labels times folds may be {LABEL_LIMIT} at most")


def may_be_resident(solver, config: Config) -> bool:
    """Blocks are what some methods are about: their rows are never all in memory."""
    return bool(config.batch) if solver.rereads else bool(solver.in_memory)


def as_stream(data, config: Config):
    if isinstance(data, reader.Resident):
        return ResidentStream(data, config.seed)
    weights = footprint(config.method, config, len(data.description.labels)).weights(data.n_features)
    budget = config.budget.without(weights)
    return SetStream(data, max(0, budget.left), config.seed)


def footprint(solver, config: Config, n_labels: int) -> memory.Footprint:
    """What is in memory beside resident rows."""
    build = solver.in_memory or solver.on_disk
    return build.footprint(config, n_labels) if build else memory.Footprint()


def _read_text(sources: list[Source], solver, config: Config, progress):
    """Text in memory, or, from the row on that no longer fits, in a temporary block set. Returns (data, its files)."""
    reserved = reserved_bytes(sources)
    budget = config.budget.without(reserved)
    labels, features = Labels(config.many_labels), FeatureMap(budget.left, reserved)
    room = budget.of_resident.left if may_be_resident(solver, config) else 0
    gatherer = reader.Gatherer(config.precision, room)
    total = sum(source.size or 0 for source in sources) or None
    blocks = scan_blocks(
        sources, labels, features, config.threads, zero_based=config.zero_based, dtype=np.dtype(config.precision),
        memory=budget.left,
    )
    for block in blocks:
        progress("reading", sum(source.position for source in sources), total)
        _check_weights(labels, features, solver, config, known=False)
        of_solver = footprint(solver, config, len(labels.names))
        beside = of_solver.bytes(features.n_features, gatherer.n_rows + block.n_rows)
        gatherer.reserve = beside + features.n_bytes
        if not gatherer.add(block):
            files = _split_rest(gatherer, block, blocks, labels, features, sources, config)
            del features, gatherer, block, blocks
            memory.give_back()
            return _open_set(BlockSet(files), solver, config), files
    description = Description(
        gatherer.n_rows, features.n_features, gatherer.n_nonzeros, labels.names, np.array(labels.counts),
        float(np.sqrt(gatherer.largest_square)), config.zero_based, np.dtype(config.precision),
        [source.description() for source in sources],
    )
    ids = np.asarray(features.ids)
    data = gatherer.finish(description, lambda: ids, sum(source.position for source in sources))
    if config.folds:
        check_folds(description, config.folds)
        reader.divide(data.table["code"], len(description.labels), config.folds)
    return as_stream(data, config) if solver.rereads else data, None


def _check_weights(labels: Labels, features: FeatureMap, solver, config: Config, known: bool, ids: int = 0) -> None:
    """Refuses a budget in which weights for these do not fit."""
    try:
        config.budget.take_weights(features.n_features, footprint(solver, config, len(labels.names)), known, ids)
    except UsageError as error:
        many = too_many_labels(labels.n_rows, len(labels.names))
        rows = f"; are these classes, {len(labels.names)} labels in the first {labels.n_rows} rows?" * many
        raise UsageError(error.message + rows, error.hint) from None


def _refusal_of_all(refusal: UsageError, paths: list[str], solver, config: Config) -> UsageError:
    """Of a budget that was refused by what was known so far: reads all of the files, if that does not take long, for
    their labels and ids, so that it names one that will do."""
    budget = config.budget
    with suppress(LlsvmError):
        sources = open_sources(paths, budget.left, hashed=False)
        if sum(np.inf if source.size is None else source.size for source in sources) > READ_ON:
            return refusal
        reserved = reserved_bytes(sources)
        labels, features = Labels(config.many_labels), FeatureMap(2 * memory.BUFFERS, reserved)  # of the floor
        for _ in scan_blocks(sources, labels, features, config.threads, zero_based=config.zero_based,
                             dtype=np.dtype(config.precision), memory=budget.without(reserved).left):
            pass
        try:
            _check_weights(labels, features, solver, config, known=True, ids=features.enough)
            features.check(budget.left)
        except UsageError as error:
            return error
    return refusal


def _split_rest(gatherer, block, blocks, labels, features, sources, config) -> Nameless:
    files = Nameless()
    try:
        room = config.budget.without(reserved_bytes(sources)).left
        with Writer(None, TEMPORARY_BLOCKS, config.seed, config.precision, config.threads, room,
                    folder=files) as writer:
            if gatherer.n_rows:
                held = block.copy()
                for earlier in gatherer.spill():
                    writer.add(earlier)
                block = held
            writer.add(block)
            for later in blocks:
                writer.add(later)
            described = [source.description() for source in sources]
            writer.finish(labels.names, labels.counts, features.segments, described, config.zero_based)
    except BaseException:
        files.discard()
        raise
    return files
