"""What the command predict does."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from llsvm import foreign, kernel_model
from llsvm.blockset import BlockSet, is_block_set
from llsvm.core import DataError, UsageError, quoted
from llsvm.files import Output, same_file
from llsvm.pool import in_order
from llsvm.report import Console
from llsvm.sources import open_sources
from llsvm.text import canonical_label, scan_rows

LOOKED_AT = 1 << 16  # bytes of an output that is there already
SAMPLE = 1000  # ids of a part that are looked up in the model to see whether they fit
ENOUGH_IDS = 20  # of which half should be known
ENOUGH_ROWS = 1000  # of which one at least should have the first feature, if training data had it


def predict_labels(test, model_path, target, with_scores, zero_based, force, quiet, threads, print_result) -> None:
    """Writes a label for every row of `test` and says how many were right, and what does not fit the model."""
    if any(same_file(target, path) for path in (test, model_path)):
        raise UsageError(f"{target} is also TEST or MODEL; it was left alone")
    if test == model_path == "-":
        raise UsageError("TEST and MODEL cannot both come from standard input", "give one of them a name")
    model = kernel_model.load(model_path, threads)
    if not force:
        _check_target(target, model.labels)
    predictor, total, console = kernel_model.predictor_of(model), Tally(), Console(quiet)
    with Output(target) as output:
        if with_scores:
            output.write(("labels " + " ".join(model.labels) + "\n").encode("utf-8", "surrogateescape"))
        for lines, tally in _predictions(predictor, test, with_scores, zero_based, threads, console):
            output.write(lines)
            total.add(tally)
        if total.rows == 0:
            raise DataError(f"{test}: no rows")
        output.commit()
    console.end()
    for warning in _misfits(total, model, zero_based or is_block_set(test)):
        console.warn(warning)
    if not quiet:
        for line in _result(total, model.labels):
            if target == "-" or not line.startswith("Accuracy"):
                console.line(line)
            else:
                print_result(line, target)


def _check_target(target: str, labels: list[str]) -> None:
    """Refuses to write over what is no earlier output for these labels."""
    if target == "-" or not os.path.isfile(target):
        return
    with open(target, "rb") as file:
        text = file.read(LOOKED_AT)
    if text and not _are_predictions(text, labels):
        raise UsageError(f"{target} exists and holds no predictions of this model; it was left alone",
                         "llsvm-predict TEST MODEL OUTPUT; --force replaces it")


def _are_predictions(text: bytes, labels: list[str]) -> bool:
    """Whether this is the beginning of what predict writes, with or without scores."""
    lines = text.split(b"\n")
    if len(text) == LOOKED_AT or not lines[-1]:
        lines.pop()
    if not lines:
        return False
    known = {name.encode("utf-8", "surrogateescape") for name in labels}
    header = lines.pop(0).split(b" ") if text.startswith(b"labels ") else [b""]
    if not {canonical_label(name).encode("utf-8", "surrogateescape") for name in header[1:]} <= known:
        return False
    rows = [line.rstrip().split(b" ") for line in lines]
    return all(len(row) == len(header) and row[0] in known and all(map(_is_score, row[1:])) for row in rows)


def _is_score(word: bytes) -> bool:
    try:
        return float(word) is not None
    except ValueError:
        return False


@dataclass
class Tally:
    """What was met in a part of TEST. unknown: rows by a label that the model does not have; ids_known of ids_tried
    were among the model's; first_id: whether a row has the first id there may be."""

    rows: int = 0
    correct: int = 0
    unknown: Counter = field(default_factory=Counter)
    ids_tried: int = 0
    ids_known: int = 0
    first_id: bool = False
    largest_id: int = 0

    def add(self, other: Tally) -> None:
        self.rows, self.correct = self.rows + other.rows, self.correct + other.correct
        self.unknown.update(other.unknown)
        self.ids_tried, self.ids_known = self.ids_tried + other.ids_tried, self.ids_known + other.ids_known
        self.first_id, self.largest_id = self.first_id or other.first_id, max(self.largest_id, other.largest_id)


def _predictions(predictor, test, with_scores, zero_based, threads, console):
    """Yields (lines, tally) of parts of the test data, in order."""

    def judge(ids, values, indptr, codes, names):
        scores = predictor.scores(ids, values, indptr)
        choices = predictor.choose(scores)
        lines = predictor.lines(choices, scores if with_scores else None)
        return lines, _tally(predictor, ids, indptr, choices, codes, names)

    if test != "-" and is_block_set(test):
        if zero_based:
            raise UsageError(f"--zero-based: {test} is a block set, whose ids are stored",
                             "--zero-based goes with text, and with llsvm-split")
        blocks = BlockSet(test)
        if blocks.n_rows and not blocks.n_nonzeros:
            raise foreign.without_features(test)
        ids, names = blocks.feature_ids(), blocks.description.labels

        def judge_chunk(chunk):
            block = blocks.load_chunk(chunk)
            return judge(ids[block.features], block.values, block.indptr, block.codes, names)

        yield from in_order(judge_chunk, range(blocks.n_chunks), threads)
        return

    def judge_piece(piece):
        names = [canonical_label(token) for token in piece.labels]
        return judge(*map(np.asarray, (piece.ids, piece.values, piece.indptr, piece.codes)), names)

    sources = open_sources([test], hashed=False)
    pieces = scan_rows(sources, threads, zero_based=zero_based or predictor.model.zero_based, dtype=np.float64,
                       then=judge_piece)
    console.begin()
    for piece in pieces:
        yield piece.result
        console.bar("predicting", sources[0].position, sources[0].size)


def _tally(predictor, ids, indptr, choices, codes, names) -> Tally:
    if not len(choices):
        return Tally()
    known = set(predictor.model.labels)
    strange = [code for code, name in enumerate(names) if name not in known]
    counts = np.bincount(codes, minlength=len(names)) if strange else []
    unknown = Counter()
    for code in strange:  # two may have one name, as 7 and 7.0 do
        unknown[names[code]] += int(counts[code])
    tried = ids[:: max(1, len(ids) // SAMPLE)]
    tally = Tally(len(choices), predictor.count_correct(choices, codes, names), unknown, len(tried),
                  predictor.count_known(tried))
    if predictor.model.zero_based:
        tally.first_id, tally.largest_id = bool((ids == 1).any()), int(ids.max(initial=0))
    return tally


def _misfits(total: Tally, model, ids_told: bool):
    """What suggests that TEST and the model do not go together. ids_told: where ids begin is known."""
    if 2 * total.ids_known < total.ids_tried and (total.ids_tried >= ENOUGH_IDS or not total.ids_known):
        share = 100 * (1 - total.ids_known / total.ids_tried)
        yield f"about {share:.0f}% of the feature ids of TEST are unknown to the model, and were ignored"
    if model.zero_based and not ids_told and not total.first_id:
        beyond = total.largest_id > model.n_ids
        if beyond or (total.rows >= ENOUGH_ROWS and _has_first_id(model)):
            yield ("the model's ids start at 0, and none of TEST's is 0: if those start at 1, every feature is taken "
                   "for the next one; split TEST, and predict from the set")


def _has_first_id(model) -> bool:
    """Whether the first id that there may be was in the training data."""
    if isinstance(model, kernel_model.KernelModel):
        return bool((model.vectors.features == 1).any())
    return bool(model.weights[:1].any() if model.ids is None else (model.ids[:1] == 1).any())


def _result(total: Tally, labels: list[str]):
    """The accuracy, and to whom it applies."""
    n_unknown = sum(total.unknown.values())
    most = total.unknown.most_common(4)
    names = ", ".join([*(quoted(name) for name, _ in most[:3]), *["..."] * (len(most) > 3)])
    if n_unknown == total.rows:
        known = " ".join(map(quoted, labels[:10])) + " ..." * (len(labels) > 10)
        yield f"no accuracy: no label of TEST ({names}) is one of the model's ({known})"
        return
    if n_unknown:
        yield f"{n_unknown} of {total.rows} rows have a label that the model does not know ({names})"
    yield f"Accuracy = {100 * total.correct / total.rows:g}% ({total.correct}/{total.rows})"
