"""What the command info does: a block set or a model in words or as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from llsvm import kernel_model
from llsvm.blockset import BlockSet, Decoder
from llsvm.core import ROUNDING, DataError, encoded, escaped, quoted
from llsvm.files import missing
from llsvm.frames import MANIFEST, REPAIR
from llsvm.reader import ROW, Arena, arena_bytes


def describe(path: str, verify: bool, as_json: bool) -> str:
    """A block set or a model in words or as JSON."""
    facts = _describe_set(path, verify) if Path(path).is_dir() else _describe_model(path)
    if as_json:
        return json.dumps(_without_surrogates(facts))
    lines = {escaped(name): escaped(str(value)) for name, value in _flat(facts)}
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
    model = kernel_model.load(path)
    if isinstance(model, kernel_model.KernelModel):
        return kernel_model.describe(model)
    origin = {} if "certificate" in model.info else {"certificate": "none (not written by llsvm)"}
    facts = {
        "kind": "model", "solver_type": model.solver_type, "labels": model.labels,
        "features": model.n_ids, "bias": model.bias,
        "nonzero_weights": int(np.count_nonzero(model.weights)), **origin,
    }
    return {**facts, **{name: value for name, value in model.info.items() if name not in facts}}
