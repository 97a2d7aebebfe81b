"""Text to block set, in one pass (Yu et al. 2010, Algorithm 4)."""

from __future__ import annotations

import time
from pathlib import Path

from llsvm.core import UsageError
from llsvm.features import FeatureMap
from llsvm.memory import Budget, format_size
from llsvm.report import Console
from llsvm.sources import open_sources, reserved_bytes
from llsvm.text import Labels, scan_blocks, scan_bytes
from llsvm.writer import MAX_BLOCKS, Writer, check_target, open_bytes


def split_text(
    paths, output, *, n_blocks, seed, zero_based, precision, force, threads, memory, many_labels=False, console=None
) -> str:
    """Splits text files into a block set at `output`; returns a sentence on what was done."""
    if not 1 <= n_blocks <= MAX_BLOCKS:
        raise UsageError(f"-m {n_blocks}: from 1 to {MAX_BLOCKS} blocks are possible")
    console, began = console or Console(quiet=True), time.perf_counter()
    check_target(Path(output), force)
    budget = Budget(memory)
    sources = open_sources(paths, budget.left)
    reserved = reserved_bytes(sources)
    allowed = budget.without(reserved).left
    beside = open_bytes(allowed) + scan_bytes(allowed, threads)
    labels, features = Labels(many_labels), FeatureMap(max(allowed // 2, allowed - beside), reserved)
    with Writer(output, n_blocks, seed, precision, threads, allowed, force, reserved=reserved) as writer:
        total = sum(source.size or 0 for source in sources) or None
        console.begin()
        blocks = scan_blocks(sources, labels, features, threads, zero_based=zero_based, dtype=precision,
                             memory=allowed, pool=writer.pool)
        for block in blocks:
            writer.add(block)
            writer.add_ids(features.take_full_segments())
            console.bar("splitting", sum(source.position for source in sources), total)
        console.end()
        described = [source.description() for source in sources]
        writer.finish(labels.names, labels.counts, features.segments, described, zero_based)
    seconds, n_bytes = time.perf_counter() - began, sum(source["size"] for source in described)
    return (
        f"{writer.n_rows} rows, {features.n_features} features, {writer.n_nonzeros} nonzeros, "
        f"{len(labels.names)} labels; {format_size(n_bytes)} read in {seconds:.2f} s"
    )
