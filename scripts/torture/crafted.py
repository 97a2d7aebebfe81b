"""Block sets and models with right checksums and wrong contents, given to the commands under the sanitizers."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from random import Random

import numpy as np

from torture import commands, damage, data
from torture.part import Finding, Part

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
import crafted as known

BATCH = 8
TRAILER = b"\nllsvm "
STRANGE = [
    None, True, False, -1, 0, 1, 2, 3, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**12,
    10**30, -(10**30), 0.5, -0.0, 1e308, -5.0, float("nan"), float("inf"), "", "x", "nan", "1", "../outside.llb",
    "/etc/passwd", "block-0000.llb", "manifest.json", "a\nb", "a\0b", "\ud800", "ü", "float16", "float64", "int32",
    "00000000", "9" * 5000, [], {}, [[]], [None], [1, 2, 3], ["1", "-1"], {"name": "1", "rows": 3}, [0] * 1000,
]  # fmt: skip


def changed(random: Random, value):
    """JSON with one thing in it replaced, left out, put in twice, or a number changed a little."""
    value = copy.deepcopy(value)
    holder, key = random.choice(list(places(value)))
    old, kind = holder[key], random.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(old))
    elif kind <= 3 and type(old) in (int, float):
        holder[key] = random.choice([old + 1, old - 1, -old, old * 1000, old * 2**33, old // 2])
    elif kind == 3 and isinstance(old, str):
        holder[key] = random.choice([old + "x", old[:-1], old * 40, "../" + old, old + "\n", old + "\0"])
    else:
        holder[key] = random.choice(STRANGE)
    return value


def places(value):
    """(holder, key) of everything in it, large lists by a few."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def craft_set(random: Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """A block set with bytes of a decoded chunk, ids of features, or entries of the manifest changed."""
    header, kind = json.loads(files["manifest.json"]), random.randrange(5)
    if kind < 2:
        [(_, changed_files)] = known.random_sets(files, random, 1)
        return changed_files
    if kind == 2:
        wrong = [random.randrange(2**64), 0, 1, 2**63, 2**63 - 1]
        return known.with_ids(files, lambda ids: [random.choice(wrong) if random.random() < 0.1 else id for id in ids])
    header = changed(random, header)
    if random.random() < 0.2:
        header = changed(random, header)
    return {**files, "manifest.json": known.sign_manifest(header)}


def craft_model(random: Random, model: bytes) -> bytes:
    """The header, the weights or our last line changed; the checksum is right."""
    weights, _, last = model.rpartition(TRAILER)
    info, kind = json.loads(last.split(b" ", 1)[1]), random.randrange(4)
    if kind == 0:
        info = changed(random, info)
    elif kind == 1:
        info["labels"] = random.choice([changed(random, info["labels"]), info["labels"][:-1], info["labels"] * 2,
                                        random.choice(STRANGE)])  # fmt: skip
    else:
        lines = weights.split(b"\n")
        at = random.randrange(7 if kind == 2 else len(lines))
        lines[at % len(lines)] = changed_line(random, lines[at % len(lines)])
        weights = b"\n".join(lines)
    ours = json.dumps(info).encode()
    return known.sign_model(weights + b"\n", ours)


def changed_line(random: Random, line: bytes) -> bytes:
    words = line.split(b" ")
    word = random.choice([b"nan", b"-inf", b"1e999", b"-1", b"0", b"1", b"3", b"2147483648", b"99999999999999999999",
                          b"9223372036854775807:1", b"-1:1", b"5:1", b"", b"x", b"1e-400", b"7 7", b"MCSVM_CS",
                          b"L2R_L2LOSS_SVC_DUAL", b"\xff", b"65535", b"1000000"])  # fmt: skip
    words[random.randrange(len(words))] = word
    return b" ".join(words)


class Crafted(Part):
    name = "crafted"
    promise = "A crafted set or model with right checksums is refused in words or is what it says; no bad access."
    sanitized = True

    def prepare(self, random: Random) -> None:
        self._original = self.folder / "original"
        self._original.mkdir()
        damage.make_targets(self._original, Random(1))
        (self.folder / "outside.llb").write_bytes(b"outside")
        self._sets = [{file.name: file.read_bytes() for file in path.iterdir()}
                      for path in sorted(self._original.glob("*.blocks"))]  # fmt: skip
        self._models = [path.read_bytes() for path in sorted(self._original.glob("*.model"))]
        self._wrong_manifests = list(known.manifests(json.loads(self._sets[0]["manifest.json"])))
        self._wrong_models = list(known.models())

    def cases(self, random: Random):
        for _ in range(BATCH):
            (self._try_set if random.random() < 0.5 else self._try_model)(random)
            yield

    def _try_set(self, random: Random) -> None:
        """A random one, or one that must be refused."""
        folder = self.fresh()
        path, what = folder / "crafted.blocks", ""
        files = craft_set(random, random.choice(self._sets))
        if random.random() < 0.2:
            what, manifest = random.choice(self._wrong_manifests)
            files = {**self._sets[0], "manifest.json": manifest}
        path.mkdir()
        for name, contents in files.items():
            (path / name).write_bytes(contents)
        solver = random.choice(["dual", "dual-l2", "cs", "ww", "block", "shrink", "pegasos", "stream"])
        words = random.choice([
            ("llsvm", "info", path, "--verify", *random.choice([[], ["--json"]])),
            ("llsvm-train", "-s", solver, "--max-passes", 3, "--memory", random.choice(["1M", "64M", "300M"]),
             "--threads", random.choice([1, 2]), *random.choice([[], ["-w", "balanced"], ["-B", "R"]]), path,
             folder / "model"),
            ("llsvm-predict", path, self._original / "words.cs.model", folder / "out"),
        ])  # fmt: skip
        seen = f"{what}\nmanifest: {files['manifest.json'][:2500]}"
        ended = self._decent(words, seen, (1,) if what else (0, 1, 2))
        if ended.code == 0 and words[0] == "llsvm":
            self._verify(path, seen)
        elif ended.code == 0 and words[0] == "llsvm-train":
            model = data.read_model(folder / "model")
            known_of_it = [model.info["certificate"].get(name) for name in ("primal", "dual")]
            if not all(np.isfinite(number).all() for number in (model.w, model.bias_w, *filter(None, known_of_it))):
                raise Finding("a model with numbers that are none", f"{ended}\n{seen}")

    def _try_model(self, random: Random) -> None:
        """A random one, or one that must be refused."""
        path, what = self.fresh() / "model", ""
        crafted = craft_model(random, random.choice(self._models))
        if random.random() < 0.3:
            what, crafted = random.choice(self._wrong_models)
        elif random.random() < 0.3:
            [(_, crafted)] = known.random_models(random, 1)
        path.write_bytes(crafted)
        text, out = self._original / random.choice(["two.txt", "words.txt"]), path.parent / "out"
        words = random.choice([("llsvm", "info", path), ("llsvm", "info", path, "--json"),
                               ("llsvm-predict", text, path, out), ("llsvm-predict", "--scores", text, path, out)])
        head, _, last = crafted.rpartition(TRAILER)
        seen = f"{what}\n{head[:300]} ... {last[:1500]}"
        ended = self._decent(words, seen, (1,) if what else (0, 1, 2))
        if ended.code == 0 and words[0] == "llsvm-predict":
            rows, lines = text.read_bytes().count(b"\n"), out.read_bytes().count(b"\n")
            if lines != rows + ("--scores" in words):
                raise Finding("not a label a row", f"{lines} lines for {rows} rows\n{ended}\n{seen}")

    def _decent(self, words, seen: str, codes) -> commands.Ended:
        try:
            return commands.decent(commands.call(*words), codes)
        except Finding as found:
            raise Finding(found.kind, f"{found.seen}\n{seen}") from None

    def _verify(self, path: Path, seen: str) -> None:
        """What info --verify calls right is what its manifest says."""
        found = data.read_set(path)
        n_rows, _, n_nonzeros, labels, counts, norm, _, dtype = found.facts
        codes, lengths, _, values = (b"".join(parts) for parts in zip(*found.chunks, strict=True))
        values, lengths = np.frombuffer(values, dtype).astype(float), np.frombuffer(lengths, np.int32)
        true = np.bincount(np.frombuffer(codes, np.uint16), minlength=len(labels)).tolist()
        wrong = ""
        if list(counts) != true:
            wrong = "label counts"
        elif (len(lengths), len(values)) != (n_rows, n_nonzeros):
            wrong = "rows or nonzeros"
        elif not np.isfinite(values).all():
            wrong = "values that are no numbers"
        else:
            rows = np.repeat(np.arange(n_rows), lengths)
            largest = np.sqrt(np.bincount(rows, values**2, n_rows).max())
            if not abs(norm - largest) <= 1e-5 * largest:
                wrong = "the largest norm"
        if wrong:
            raise Finding(f"--verify calls a set right that is wrong: {wrong}", f"{found.facts}, {true}\n{seen}")
