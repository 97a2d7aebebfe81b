"""Crafted files: the checksums are right, the contents are not. Pure functions that yield (what is wrong, the file),
each of which must be refused in a sentence; and random ones, of which none may do more harm than that."""

import copy
import json
import struct
import zlib

import zstandard

WHOLE = [None, True, -1, 0.5, 2**63, 10**400, "7", [], {}, float("inf")]
TEXT = [None, True, 7, ["x"], {"x": 1}]
FLAG = [None, 0, 1, "true", [], {}]
LIST = [None, 7, "x", {}, [None], [[]], [-1], ["x"], [0.5]]
OBJECT = [None, 7, "x", [], True]
NORM = [None, True, "1", [], {}, -5, -0.001, float("nan"), float("-inf")]
NAMES = [None, 1, "", ["a"], "a\nb", "a\rb", "\ud800"]
FILE_NAMES = ["", ".", "..", "../block-0000.llb", "/etc/passwd", "a/b", "a\0b", "a\nb", ".hidden", "manifest.json",
              "block-0000.llb ", "\udce9", "x" * 1000]  # fmt: skip
DEEP = b"[" * 100_000


# --- manifests


def sign_manifest(manifest) -> bytes:
    """The text of a manifest (an object, or JSON without its last brace) with the checksum that belongs to it."""
    if isinstance(manifest, dict):
        facts = {name: value for name, value in manifest.items() if name != "checksum"}
        manifest = json.dumps(facts).encode()[:-1]
    text = manifest + b",\n"
    return text + b'"checksum": "%08x"\n}\n' % zlib.crc32(text)


def manifests(manifest: dict):
    """Manifests that no set can have, made from that of a set of several blocks, labels and features (version 3)."""
    for what, path, value in _replacements(manifest):
        changed = copy.deepcopy(manifest)
        *outer, last = path
        entry = changed
        for name in outer:
            entry = entry[name]
        if value is MISSING:
            del entry[last]
        else:
            entry[last] = value
        yield what, sign_manifest(changed)
    for what, change in CONTRADICTIONS.items():
        changed = copy.deepcopy(manifest)
        change(changed)
        yield what, sign_manifest(changed)
    whole = json.dumps({name: value for name, value in manifest.items() if name != "checksum"}).encode()[:-1]
    yield "brackets in brackets", sign_manifest(whole + b', "more": ' + DEEP + b"]" * 100_000)
    yield "brackets without an end", sign_manifest(whole + b', "more": ' + DEEP)
    yield "a number of 5000 digits", sign_manifest(whole + b', "more": ' + b"9" * 5000)
    yield "two objects", sign_manifest(manifest) + b"{}"
    yield "no checksum", whole + b"}"
    yield "a checksum that is a number", whole + b', "checksum": 7}'
    for text in (b"", b"[]", b"7", b"null", b'"llsvm-blocks"', b"{}", b"\xff", b"\0" * 100, DEEP):
        yield f"{text[:20]} instead of a manifest", text


MISSING = object()


def _replacements(manifest: dict):
    """(what, path to an entry, what stands there instead)."""
    kinds = {
        "rows": WHOLE, "features": [*WHOLE, 2**31, 2**40], "nonzeros": WHOLE, "largest_id": [*WHOLE, 0],
        "version": [*WHOLE, 0], "seed": WHOLE, "written_by": TEXT, "zero_based": FLAG, "largest_norm": NORM,
        "values": [*TEXT, "float16", ""], "labels": LIST, "sources": LIST, "blocks": LIST, "feature_ids": OBJECT,
        "format": [*TEXT, "llsvm-blockz", "another"],
    }  # fmt: skip
    for name, wrong in kinds.items():
        yield from _wrong([name], wrong)
    yield from _wrong(["labels", 0, "name"], [*NAMES, manifest["labels"][1]["name"]])
    yield from _wrong(["labels", 0, "rows"], [*WHOLE, manifest["labels"][0]["rows"] + 10**12])
    yield from _wrong(["sources", 0, "name"], TEXT)
    yield from _wrong(["sources", 0, "size"], WHOLE)
    for entry in (["feature_ids"], ["blocks", 0]):
        yield from _wrong([*entry, "file"], [*TEXT, *FILE_NAMES, manifest["blocks"][1]["file"]])
        yield from _wrong([*entry, "bytes"], [*LIST, []])
        yield from _wrong([*entry, "bytes", 0], [*WHOLE, 0, 10**12])
        yield from _wrong([*entry, "checksums"], [*LIST, []])
        yield from _wrong([*entry, "checksums", 0], [*TEXT, "", "0123456", "0123456G", "012345678"])
    for name in ("rows", "nonzeros"):
        yield from _wrong(["blocks", 0, name], [*LIST, []])
        yield from _wrong(["blocks", 0, name, 0], [*WHOLE, 10**12])
    yield from _wrong(["blocks", 0], OBJECT)


def _wrong(path: list, values: list):
    where = " ".join(map(str, path))
    if not isinstance(path[-1], int):
        yield f"{where} missing", path, MISSING
    for value in values:
        yield f"{where} = {str(value)[:30]} ({type(value).__name__})", path, value


def _claim_rows(manifest: dict, rows: int) -> None:
    """A chunk of so many rows more, to which all sums are true."""
    for entry in (manifest, manifest["labels"][0]):
        entry["rows"] += rows
    manifest["blocks"][0]["rows"][0] += rows


def _claim_nonzeros(manifest: dict, nonzeros: int) -> None:
    manifest["nonzeros"] += nonzeros
    manifest["blocks"][0]["nonzeros"][0] += nonzeros


CONTRADICTIONS = {
    "a chunk of 10^12 rows": lambda manifest: _claim_rows(manifest, 10**12),
    "a chunk of 2^62 rows": lambda manifest: _claim_rows(manifest, 2**62),
    "a chunk of 10^12 nonzeros": lambda manifest: _claim_nonzeros(manifest, 10**12),
    "10^12 rows of one label": lambda manifest: manifest["labels"][0].update(rows=10**12),
    "no labels": lambda manifest: manifest.update(labels=[]),
    "no blocks": lambda manifest: manifest.update(blocks=[]),
    "a block twice": lambda manifest: manifest["blocks"].append(manifest["blocks"][0]),
    "an entry of a block more": lambda manifest: manifest["blocks"][0]["rows"].append(1),
    "65537 labels": lambda manifest: manifest.update(
        labels=[*manifest["labels"], *({"name": f"more {k}", "rows": 0} for k in range(65536))]),
    "a frame of ids more": lambda manifest: manifest["feature_ids"].update(
        bytes=manifest["feature_ids"]["bytes"] * 2, checksums=manifest["feature_ids"]["checksums"] * 2),
    "fewer ids than features": lambda manifest: manifest.update(largest_id=manifest["features"] - 1),
}  # fmt: skip


# --- block sets


def sets(files: dict[str, bytes]):
    """(what is wrong, the files of a set), where the manifest is one that a set can have, but not this: found when all
    is read. files: a set of at least two labels and two blocks, in which every row has one value, or of few values."""
    manifest = json.loads(files["manifest.json"])
    payload = _payloads(files, manifest)[0]
    if payload[19] == 2:  # a dictionary of values, then a byte each
        yield "a value beyond the dictionary", with_payload(files, payload[:-1] + b"\xff")
        return
    for offset, kind, values in HEADER_FIELDS:
        for value in values:
            changed = payload[:offset] + struct.pack(kind, value) + payload[offset + struct.calcsize(kind) :]
            if changed != payload:
                yield f"byte {offset} of a chunk is {value}", with_payload(files, changed)
    for what, value in {"NaN": float("nan"), "-NaN": -float("nan"), "inf": float("inf"), "-inf": -float("inf"),
                        "a large value": 1e30}.items():  # fmt: skip
        yield f"{what} as a value", with_payload(files, payload[:-4] + struct.pack("<f", value))
    yield "a code beyond the labels", with_payload(files, payload[:32] + b"\xff" + payload[33:])
    yield "a chunk cut short", with_payload(files, payload[:-1])
    yield "a chunk with more behind", with_payload(files, payload + b"\0")
    yield "half a header", with_payload(files, payload[:16])
    first, second = manifest["labels"][:2]
    first["rows"], second["rows"] = first["rows"] + 1, second["rows"] - 1
    yield "rows of another label", {**files, "manifest.json": sign_manifest(manifest)}
    for factor in (0, 0.5, 1.001, 1e300):
        manifest = json.loads(files["manifest.json"])
        manifest["largest_norm"] *= factor
        yield f"the largest norm {factor} times", {**files, "manifest.json": sign_manifest(manifest)}
    name = manifest["blocks"][1]["file"]
    yield "more behind the last chunk", {**files, name: files[name] + b"more"}
    for what, change in WRONG_IDS.items():
        yield what, with_ids(files, change)


# offset in the header of a chunk, how it is packed, what stands there instead
HEADER_FIELDS = [
    (0, "<q", [-1, 0, 1, 2**31, 2**62, -(2**63)]), (8, "<q", [-1, 0, 1, 2**31, 2**62, -(2**63)]),
    (16, "B", [0, 2, 3, 255]), (17, "B", [2, 3, 4, 5, 255]), (18, "B", [0, 2, 3, 4, 5, 255]),
    (19, "B", [0, 2, 3, 4, 255]), (20, "B", [0, 1, 8, 255]),
]  # fmt: skip

WRONG_IDS = {
    "an id twice": lambda ids: [ids[1], *ids[1:]],
    "an id of 0": lambda ids: [0, *ids[1:]],
    "a negative id": lambda ids: [2**64 - 1, *ids[1:]],
    "the smallest number as an id": lambda ids: [2**63, *ids[1:]],
    "an id beyond the largest": lambda ids: [max(ids) + 1, *ids[1:]],
    "ids below the largest": lambda ids: [min(id, max(ids) - 1) for id in ids],
}


def _payloads(files: dict[str, bytes], manifest: dict, block: int = 0) -> list[bytes]:
    """The decoded chunks of a block."""
    entry, start, payloads = manifest["blocks"][block], 0, []
    for size in entry["bytes"]:
        frame = files[entry["file"]][start : start + size]
        payloads.append(zstandard.ZstdDecompressor().decompress(frame))
        start += size
    return payloads


def _frame(data: bytes) -> tuple[bytes, str]:
    frame = zstandard.ZstdCompressor(write_checksum=True, write_content_size=True).compress(data)
    return frame, frame[-4:][::-1].hex()


def with_payload(files: dict[str, bytes], payload: bytes, block: int = 0, chunk: int = 0) -> dict[str, bytes]:
    """The set with this instead of what a chunk was, all checksums right."""
    manifest = json.loads(files["manifest.json"])
    entry = manifest["blocks"][block]
    start = sum(entry["bytes"][:chunk])
    before, behind = files[entry["file"]][:start], files[entry["file"]][start + entry["bytes"][chunk] :]
    frame, entry["checksums"][chunk] = _frame(payload)
    entry["bytes"][chunk] = len(frame)
    return {**files, entry["file"]: before + frame + behind, "manifest.json": sign_manifest(manifest)}


def with_ids(files: dict[str, bytes], change) -> dict[str, bytes]:
    """The set with other ids of its features, which are less than a frame holds."""
    manifest = json.loads(files["manifest.json"])
    entry = manifest["feature_ids"]
    planes = zstandard.ZstdDecompressor().decompress(files[entry["file"]])
    n = len(planes) // 8
    ids = change([int.from_bytes(planes[k::n], "little") for k in range(n)])
    frame, checksum = _frame(b"".join(bytes(id >> 8 * plane & 255 for id in ids) for plane in range(8)))
    entry.update(bytes=[len(frame)], checksums=[checksum])
    return {**files, entry["file"]: frame, "manifest.json": sign_manifest(manifest)}


def random_sets(files: dict[str, bytes], rng, count: int):
    """(what was done, the files of a set), with random bytes in a decoded chunk, all checksums right: some are sets
    like any other. rng: a random.Random."""
    manifest = json.loads(files["manifest.json"])
    blocks = [block for block, entry in enumerate(manifest["blocks"]) if entry["rows"]]
    for _ in range(count):
        block = rng.choice(blocks)
        chunk = rng.randrange(len(manifest["blocks"][block]["rows"]))
        payload, places = bytearray(_payloads(files, manifest, block)[chunk]), []
        for _ in range(rng.choice([1, 1, 2, 8])):
            place = rng.randrange(32) if rng.random() < 0.5 else rng.randrange(len(payload))
            payload[place] = rng.choice([0, 1, 2, 3, 4, 127, 128, 255, rng.randrange(256)])
            places.append(f"{place}={payload[place]}")
        yield f"block {block} chunk {chunk} {' '.join(places)}", with_payload(files, bytes(payload), block, chunk)


# --- models

PLAIN_HEADER = {"solver_type": "L2R_L1LOSS_SVC_DUAL", "nr_class": "3", "label": "1 2 3", "nr_feature": "2",
                "bias": "-1"}  # fmt: skip
BY_ID_HEADER = {**PLAIN_HEADER, "nr_feature": str(2**40)}
PLAIN_WEIGHTS = "0.5 1 2 \n-1 2e-3 3 \n"
BY_ID_WEIGHTS = f"3:0.5 1 2 \n100000001:1 2 3 \n{2**40}:-1 0 1 \n"
SAID = {"labels": ["1", "2", "3"], "zero_based": False}


def sign_model(text: bytes, said) -> bytes:
    """The header and the weights of a model, and the last line that belongs to them; said: an object, or bytes."""
    ours = json.dumps(said).encode() if not isinstance(said, bytes) else said
    return b"%bllsvm %08x %b\n" % (text, zlib.crc32(ours, zlib.crc32(text)), ours)


def model(header=None, weights: str = PLAIN_WEIGHTS, said=None, by_id: bool = False) -> bytes:
    """header: what differs from the plain one, None where a line is missing, or a list of pairs."""
    if not isinstance(header, list):
        header = list({**(BY_ID_HEADER if by_id else PLAIN_HEADER), **(header or {})}.items())
    lines = [f"{name} {value}\n" for name, value in header if value is not None]
    text = "".join(lines) + ("w_by_id\n" if by_id else "w\n") + weights
    return sign_model(text.encode("utf-8", "surrogateescape"), SAID if said is None else said)


def models():
    """Models that must be refused, made from model() and model(weights=BY_ID_WEIGHTS, by_id=True), which must not."""
    for name, wrong in WRONG_HEADERS.items():
        for value in wrong:
            yield f"{name} {str(value)[:40]}", model({name: value})
        yield f"{name} twice", model([*PLAIN_HEADER.items(), (name, PLAIN_HEADER[name])])
    yield "an unknown line", model([("page", "7"), *PLAIN_HEADER.items()])
    yield "a header of blank lines", b"\n" * 100 + model()
    for weights in WRONG_WEIGHTS:
        yield f"weights {weights[:40]!r}", model(weights=weights)
    for weights in WRONG_WEIGHTS_BY_ID:
        yield f"weights by id {weights[:40]!r}", model(weights=weights, by_id=True)
    yield "an id beyond nr_feature", model({"nr_feature": str(2**40 - 1)}, BY_ID_WEIGHTS, by_id=True)
    yield "a bias without weights", model({"bias": "1"})
    yield "a bias without weights, by id", model({"bias": "1"}, BY_ID_WEIGHTS, by_id=True)
    for labels in WRONG_LABELS:
        yield f"labels {str(labels)[:60]!r}", model(said={**SAID, "labels": labels})
    for flag in FLAG:
        yield f"zero_based {flag!r}", model(said={**SAID, "zero_based": flag})
    for said in WRONG_LINES:
        yield f"{said[:40]!r} as the last line", model(said=said)
    names = [f"label{k}" for k in range(50)]
    header = {"nr_class": "50", "label": " ".join(str(k + 1) for k in range(50))}
    yield "50 classes, one name", model(header, "1 " * 100 + "\n", {"labels": names[:1]})


WRONG_NUMBERS = [None, "", "-1", "+", "1_0", "3.0", "3e0", "0x3", "nan", "inf", "three", "\uff13", "\u0663", "3 3",
                 "1" * 5000]  # fmt: skip
WRONG_HEADERS = {
    "solver_type": [None, "", "L2R_L2LOSS_SVR", "L2R_L2LOSS_SVR_DUAL", "L2R_L1LOSS_SVR_DUAL", "ONECLASS_SVM", "NEW",
                    "\x1b"],
    "nr_class": [*WRONG_NUMBERS, "0", "1", "2", "4", "1000000000", str(10**30)],
    "label": [None, "", "1 2", "1 1 2", "1 2 3 4", "1 2 x", "1.5 2 3", "1 2 \uff13", "1 2 nan", "4 5 6"],
    "nr_feature": [*WRONG_NUMBERS, "1", "3", "1000000000", str(2**31), str(2**62), str(2**63), str(2**64 // 3 + 1),
                   str(10**40)],
    "bias": [None, "", "nan", "inf", "-inf", "1e999", "one", "1_0", "1,5", "0x1", "1 1"],
}  # fmt: skip
WRONG_WEIGHTS = [
    "", "\n", "0.5 1 2 \n", "0.5 1 2 \n1 2 \n", PLAIN_WEIGHTS + "1 \n", PLAIN_WEIGHTS * 2, "1:0.5 1 2 \n2:1 2 3 \n",
    *(f"0.5 1 2 \n1 {word} 3 \n"
      for word in ("nan", "-nan", "inf", "-inf", "1e999", "x", "1_0", "\0", "1\0", "\uff11")),
]  # fmt: skip
WRONG_WEIGHTS_BY_ID = [
    "", "\n", PLAIN_WEIGHTS, "3:1 2 3 \n3:1 2 3 \n", "5:1 2 3 \n4:1 2 3 \n", "0:1 2 3 \n", "-1:1 2 3 \n",
    "1_0:1 2 3 \n", "\uff11:1 2 3 \n", f"{2**63}:1 2 3 \n", f"{10**30}:1 2 3 \n", ":1 2 3 \n", "3:\n",
    "3:1 2 \n", "3:1 2 3 4 \n",
    "3:1 2 3 \n\n5:1 2 3 \n", "3:1:2 3 4 \n", "3:1 nan 2 \n", "3:1 inf 2 \n", "3:1 1e999 2 \n", "3:1 x 2 \n",
    "3:1 1_0 2 \n", "3:1 2 3 \n1 2 3 \n", "x:1 2 3 \n", "3:1 2 \0 \n",
]  # fmt: skip
WRONG_LABELS = [
    None, 7, "123", {"1": 1, "2": 2, "3": 3}, [], ["1"], ["1", "2"], ["1", "2", "3", "4"], [1, 2, 3], ["1", "2", None],
    ["1", "2", "2"], ["a", "b", ""], ["a", "b", "c\nd"], ["a", "b", "\r"], ["a", "b", "\ud800"], ["a", "b", ["c"]],
    ["3", "2", "1"], ["4", "5", "6"],
]  # fmt: skip
WRONG_LINES = [
    b"{}}", b"{{}", b"{{", b"[]", b"null", b"7", b'"x"', b"", b"{", b"}", b'{"labels": }', b'{"x": "\xff"}', b"\0}",
    DEEP, DEEP + b"]" * 100_000, b'{"x": ' + DEEP + b"]" * 100_000 + b"}", b'{"x": ' * 100 + b"1" + b"}" * 100,
    b'{"x": ' * 900 + b"1" + b"}" * 900, b'{"x": ' + b"9" * 5000 + b"}",
]  # fmt: skip


def random_models(rng, count: int):
    """(what was done, a model), with random bytes of a model changed and the checksum made right."""
    for _ in range(count):
        whole = bytearray(rng.choice([model(), model(weights=BY_ID_WEIGHTS, by_id=True)]))
        end, places = whole.rindex(b"\nllsvm ") + 1, []
        ours = whole[end + 15 : -1]
        text = whole[:end]
        for _ in range(rng.choice([1, 1, 2, 8])):
            part = rng.choice([text, ours])
            place = rng.randrange(len(part))
            part[place] = rng.choice([*b"0123456789-.:e \n{}[]\"_\0\xff", rng.randrange(256)])
            places.append(f"{'text' if part is text else 'line'} {place}={part[place]}")
        yield " ".join(places), sign_model(bytes(text), bytes(ours))
