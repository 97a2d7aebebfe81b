"""What the command predict does."""

from __future__ import annotations

import sys

import numpy as np

from llsvm import model as models
from llsvm.blockset import BlockSet, is_block_set
from llsvm.core import DataError, UsageError
from llsvm.evaluate import Predictor
from llsvm.files import Output, same_file
from llsvm.report import Console
from llsvm.sources import open_sources
from llsvm.text import canonical_label, scan_pieces


def predict_labels(test, model_path, target, with_scores, zero_based, quiet, threads, print_result) -> None:
    """Writes a label for every row of `test` and says how many were right."""
    if any(same_file(target, path) for path in (test, model_path)):
        raise UsageError(f"{target} is also TEST or MODEL; it was left alone")
    if test == model_path == "-":
        raise UsageError("TEST and MODEL cannot both come from standard input", "give one of them a name")
    predictor = Predictor(models.load(model_path, threads))
    rows = correct = 0
    console = Console(quiet)
    with Output(target) as output:
        if with_scores:
            output.write(("labels " + " ".join(predictor.model.labels) + "\n").encode("utf-8", "surrogateescape"))
        for lines, n_rows, n_correct in _predictions(predictor, test, with_scores, zero_based, threads, console):
            output.write(lines)
            rows, correct = rows + n_rows, correct + n_correct
        if rows == 0:
            raise DataError(f"{test}: no rows")
        output.commit()
    console.end()
    if not quiet:
        accuracy = f"Accuracy = {100 * correct / rows:g}% ({correct}/{rows})"
        if target == "-":
            print(accuracy, file=sys.stderr)
        else:
            print_result(accuracy)


def _predictions(predictor, test, with_scores, zero_based, threads, console):
    """Yields (lines, rows, correct ones) of parts of the test data, in order."""

    def judge(ids, values, indptr, codes, names):
        scores = predictor.scores(ids, values, indptr)
        choices = predictor.choose(scores)
        lines = predictor.lines(choices, scores if with_scores else None)
        return lines, len(choices), predictor.count_correct(choices, codes, names) if len(choices) else 0

    if test != "-" and is_block_set(test):
        blocks = BlockSet(test)
        ids, names = blocks.feature_ids(), blocks.description.labels

        def judge_chunk(chunk):
            block = blocks.load_chunk(chunk)
            return judge(ids[block.features], block.values, block.indptr, block.codes, names)

        yield from models.in_order(judge_chunk, range(blocks.n_chunks), threads)
        return

    def judge_piece(piece):
        names = [canonical_label(token) for token in piece.labels]
        return judge(*map(np.asarray, (piece.ids, piece.values, piece.indptr, piece.codes)), names)

    sources = open_sources([test], hashed=False)
    pieces = scan_pieces(sources, threads, zero_based=zero_based or predictor.model.zero_based, dtype=np.float64,
                         then=judge_piece)
    console.begin()
    for piece in pieces:
        yield piece.result
        console.bar("predicting", sources[0].position, sources[0].size)
