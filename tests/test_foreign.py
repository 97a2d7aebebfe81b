"""Files that are no LIBSVM text, given to each command: refused, with what they look like, and nothing written."""

import gzip
import io
import json
import pickle
import re
import sqlite3
import subprocess
import tarfile
import zipfile
from functools import partial

import numpy as np
import pytest
import zstandard
from conftest import contents
from problems import TRAINING, as_text

from llsvm import cli
from llsvm.core import LlsvmError
from llsvm.foreign import looks_like
from llsvm.text import Piece

GOOD = as_text(*TRAINING)


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.eye(3))
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, X=np.eye(3))
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.txt", GOOD)
    return file.getvalue()


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo("data.txt")
        member.size = len(GOOD)
        archive.addfile(member, io.BytesIO(GOOD.encode()))
    return file.getvalue()


def sqlite() -> bytes:
    database = sqlite3.connect(":memory:")
    database.execute("create table t (x)")
    return database.serialize() if hasattr(database, "serialize") else b"SQLite format 3\0" + bytes(84)


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0"
CSV = "".join(f"{k % 2},0.{k},{k}\n" for k in range(1, 40)).encode()
IRIS = b"5.1,3.5,1.4,0.2,Iris-setosa\n4.9,3.0,1.4,0.2,Iris-setosa\n6.3,3.3,6.0,2.5,Iris-virginica\n"
WORDS = "\n".join(f"word{k}" for k in range(300)).encode()
FOREIGN = {  # name -> (contents, what the message must say)
    "csv": (CSV, "looks like CSV"),
    "csv of words": (IRIS, "looks like CSV"),
    "csv of one line": (b"1,0.5,0.3\n", "looks like CSV"),
    "csv with blanks": (b"1, 0.5, 0.3\n0, 0.2, 0.1\n", "looks like CSV"),
    "csv with a heading": (b"y,a,b\n" + CSV, "CSV with a heading"),
    "csv with semicolons": (CSV.replace(b",", b";"), "looks like CSV"),
    "csv in gzip": (gzip.compress(IRIS), "looks like CSV"),
    "csv in windows": (b"\xef\xbb\xbf" + IRIS.replace(b"\n", b"\r\n"), "looks like CSV"),
    "tsv": (CSV.replace(b",", b"\t"), "looks like TSV"),
    "table": (CSV.replace(b",", b" "), "a table of numbers"),
    "words": (WORDS, "a list of words"),
    "predictions": (b"1\n-1\n-1\n1\n", "as llsvm-predict writes it"),
    "predictions of words": (b"spam\nham\nham\nham\nspam\n", "as llsvm-predict writes it"),
    "scores": (b"labels 1 -1\n1 0.5 -0.5\n-1 -2 2\n", "as llsvm-predict writes them"),
    "pem": (b"-----BEGIN CERTIFICATE-----\nTUlJQg==\nQUJD\n-----END CERTIFICATE-----\n", "a PEM file"),
    "png": (PNG, "a PNG image"),
    "jpeg": (b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01", "a JPEG image"),
    "gif": (b"GIF89a\x01\0\x01\0\x80\0\0\0\n", "a GIF image"),
    "pdf": (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", "a PDF document"),
    "zip": (zipped(), "a zip archive"),
    "npz": (npz(), "NumPy arrays"),
    "npy": (npy(), "a NumPy array"),
    "tar": (tarred(), "a tar archive"),
    "tar.gz": (gzip.compress(tarred()), "a tar archive"),
    "tar.zst": (zstandard.compress(tarred()), "a tar archive"),
    "gzip twice": (gzip.compress(gzip.compress(GOOD.encode())), "compressed once more"),
    "parquet": (b"PAR1\x15\x04\x15\x10\x15\x14L\x15\x02", "a Parquet file"),
    "hdf5": (b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0", "an HDF5 file"),
    "pickle": (pickle.dumps({"a": "x\ny\nz\n", "b": 1.5}), "a Python pickle"),
    "pickle of one line": (pickle.dumps([1, 2, 3]), "a Python pickle"),
    "elf": (b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0>\0", "a program (ELF)"),
    "sqlite": (sqlite(), "a SQLite database"),
    "lz4": (b"\x04\x22\x4d\x18d@\xa7\x0b\0\0\x801 1:1\n", "lz4 data"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\x04", "a 7z archive"),
    "utf-16": (GOOD.encode("utf-16"), "UTF-16 text"),
    "utf-16 without mark": (GOOD.encode("utf-16-le"), "UTF-16 text"),
    "utf-32": (GOOD.encode("utf-32"), "UTF-32 text"),
    "html": (b"<!DOCTYPE html>\n<html><title>404</title></html>\n", "an HTML page"),
    "xml": (b'<?xml version="1.0"?>\n<a/>\n', "XML"),
    "json": (json.dumps({"rows": [{"label": 1, "x": [1, 2]}]}).encode(), "JSON"),
    "json lines": (b'{"label":1,"x":[1,2]}\n{"label":0,"x":[1,2]}\n', "JSON"),
    "json in many lines": (json.dumps({"rows": [1, 2]}, indent=1).encode(), "JSON"),
    "arff": (b"% a comment\n@RELATION iris\n@ATTRIBUTE x REAL\n@DATA\n1,2\n", "an ARFF file"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "a Git LFS pointer"),
    "vw": (b"1 |f a:1 b:2\n-1 |f c\n", "Vowpal Wabbit"),
    "vw with tags": (b"1 1.0 'tag|f a:1 b:2\n-1 0.5 'tag|f c\n", "Vowpal Wabbit"),
    "fasttext": (b"__label__a some words\n__label__b others\n", "fastText"),
    "qid": (b"3 qid:1 1:0.5 2:1\n1 qid:1 1:0.1\n", "ranking data"),
    "libffm": (b"1 0:5:1 2:3:1\n0 0:4:1\n", "LIBFFM"),
    "kernel": (b"1 0:1 1:4 2:6\n-1 0:2 1:6 2:7\n", "a precomputed kernel"),
    "multi-label": (b"1,2 3:1\n2 1:1\n", "multi-label data"),
    "libsvm model": (b"svm_type c_svc\nkernel_type rbf\ngamma 0.5\n", "a model of LIBSVM"),
    "matrix market": (b"%%MatrixMarket matrix coordinate real general\n3 3 1\n1 1 1.5\n", "a Matrix Market file"),
    "mac": (GOOD.replace("\n", "\r").encode(), "lines end in CR alone"),
    "a few lines of a mac": (b"1 1:1\r2 2:1\r1 3:1\r", "lines end in CR alone"),
    "utf-16, no line end": ("a 1:1\nb 2:1".encode("utf-16-be"), "UTF-16 text"),
    "a few zeros": (bytes(100), "a binary file"),
    "cut bzip2": (b"BZ", "bzip2 data that was cut off"),
    "cut bzip2, a line": (b"BZ\n", "bzip2 data that was cut off"),
    "cut gzip": (b"\x1f\x8b", "truncated gzip data"),
    "cut gzip of a byte": (b"\x1f", "gzip data that was cut off"),
    "cut bzip2 of three bytes": (b"BZh", "truncated bzip2 data"),
    "cut xz": (b"\xfd7z", "xz data that was cut off"),
    "cut zstd": (b"\x28\xb5", "zstd data that was cut off"),
    "zeros": (bytes(1_000_000), "a binary file"),
    "a tail of zeros": (GOOD.encode() + bytes(4096), "expected text without zero bytes"),
    "zeros in a comment": (GOOD.encode() + b"# \0\n", "bad:301:3: read '\\x00'"),
    "latin-1": (b"\xe9t\xe9 1:1\nhiver 2:1\n", "expected a label in UTF-8"),
    "escapes": (b"\x1b[31mred 1:1\nblue 2:1\n", "read '\\x1b[31mred'"),
    "a missing label": (b"1 1:1\nnan 2:1\n-1 1:2\n", "bad:2:1: read 'nan', expected a label other than nan"),
    "an infinite label": (b"1 1:1\n-Infinity 2:1\n", "bad:2:1: read '-Infinity', expected a label other"),
    "a long label": (b"x" * 257 + b" 1:1\ny 2:1\n", "bad:1:1: read 'xxx"),
    "a path": (b"nosuch.blocks\n", "the path of a block set"),
    "blank lines": (b"\n\n# nothing\n", "no rows"),
}


@pytest.fixture
def folder(here, monkeypatch):
    monkeypatch.chdir(here)
    return here


COMMANDS = {
    "split": (cli.split, ["bad", "-o", "new.blocks", "-q"]),
    "train": (cli.train, ["bad", "new", "-q"]),
    "shrink": (cli.train, ["-s", "shrink", "bad", "new", "-q"]),
    "predict": (cli.predict, ["bad", "model", "new", "-q"]),
}


def refusal(command) -> LlsvmError:
    function, arguments = COMMANDS[command]
    with pytest.raises(LlsvmError) as caught:
        function([*arguments, "--threads", "1"], standalone_mode=False)
    return caught.value


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_text_of_ours_is_refused_by_every_command(folder, name):
    data, words = FOREIGN[name]
    (folder / "bad").write_bytes(data)
    before = contents(folder)
    for command in COMMANDS:
        error = refusal(command)
        assert error.exit_code == 1
        assert words in error.message, (command, error.message)
        assert error.message.startswith("bad: ") or re.match(r"bad:\d+:\d+: read ", error.message)
        assert (error.message + error.hint).isprintable() and len(error.message) < 250
        assert contents(folder) == before


def test_tiny_random_files_are_refused(folder):
    rng = np.random.default_rng(8)
    before = contents(folder)
    for _ in range(40):
        (folder / "bad").write_bytes(rng.bytes(24).replace(b"\n", b"x") + b"\n" + rng.bytes(24).replace(b"\n", b"x"))
        for command in COMMANDS:
            assert refusal(command).exit_code == 1
    (folder / "bad").unlink()
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["model", "data.txt.blocks/manifest.json", "data.txt.blocks/block-0000.llb",
                                  "data.txt.blocks/features.zst", "run.jsonl"])  # fmt: skip
def test_our_own_files_are_not_taken_for_text(run, refuse, here, name):
    run("llsvm-train", "-q", "--log", "run.jsonl", "data.txt", "new")
    words = {"model": "a model of llsvm", "run.jsonl": "a run log"}.get(name, "a file of a block set")
    stderr = refuse("llsvm-train", name, "other", says=[f"this looks like {words}"])
    assert ("give the block set" in stderr) == ("blocks" in name)


@pytest.mark.parametrize("data", [
    b"", b"\n", b"1 1:1\n", b"ORC 1:1\nRDX 2:1\n", b"BZh 1:1\n", b"a|b 1:1\n", b"[x 1:1\n", b"{y} 1:1 # JSON\n",
    b"a,b 1:1\nc;d 2:1\n", b"1 0:1 1:2\n2 0:1 1:2\n", b"__label__x 1:1\n", b"1 1:0,5\n-1 2:0,3\n", b"6:1 7:1\n",
    b"1 1:1 x\n-1 2:1\n", b"Call me Ishmael. Some years ago\nnever mind how long precisely\n", b"# a\n1 1:1\n",
    b"solver 1:1\n", b"%PDF 1:1\n1 1:1\n", b"x.blocks 1:1\n", b"1 1:1 # a.blocks\n",
])  # fmt: skip
def test_what_may_be_libsvm_text_or_anything_looks_like_nothing(data):
    assert looks_like(data) == ("", "")


@pytest.mark.parametrize(("mark", "heading"), [(",", ""), (";", ""), ("\t", ""), (" ", ""), (",", "y,a,b\n")])
def test_the_program_that_a_table_gets_makes_libsvm_text_of_it(run, here, mark, heading):
    X, y = TRAINING
    (here / "bad").write_text(heading + "".join(mark.join(map(repr, [int(label), *row])) + "\n"
                                                for label, row in zip(y, X.tolist(), strict=True)))  # fmt: skip
    hint = run("llsvm-train", "bad", "new").stderr.partition("hint: ")[2]
    program = re.search("awk .*'(?= makes)", hint)[0]
    text = subprocess.run(["sh", "-c", f"{program} bad"], cwd=here, capture_output=True, check=True).stdout
    rows = (f"{label} " + " ".join(f"{id}:{value!r}" for id, value in enumerate(row, 1))
            for label, row in zip(y, X.tolist(), strict=True))  # fmt: skip
    assert text.decode().splitlines() == list(rows)


def test_features_that_come_late_are_features(run, here):
    (here / "late.txt").write_text("1\n-1\n" * 3000 + GOOD)
    assert run("llsvm-train", "late.txt", "new").returncode == 0


def test_a_second_file_that_is_something_else_is_refused(refuse, here):
    (here / "bad").write_bytes(IRIS)
    refuse("llsvm-train", "data.txt", "bad", "new", says=["bad: no line has an id:value; this looks like CSV"])


@pytest.fixture
def pieces_scanned(monkeypatch):
    """A list that grows with every piece of text that is scanned."""
    scanned, scan = [], Piece.scan
    monkeypatch.setattr(Piece, "scan", lambda piece: scanned.append(piece) or scan(piece))
    return scanned


@pytest.mark.parametrize("pack", [bytes, partial(gzip.compress, compresslevel=1)], ids=["plain", "gzip"])
def test_a_large_table_is_refused_after_its_beginning(folder, pack, pieces_scanned):
    (folder / "bad").write_bytes(pack(b"".join(b"x%d,%b\n" % (k, b"y" * 50) for k in range(200_000))))
    assert "looks like CSV" in refusal("split").message
    assert 1 <= len(pieces_scanned) <= 4  # of twelve


# --- labels that are no classes


def targets(n_rows, n_labels) -> str:
    """Rows with a feature each, and so many different labels."""
    return "".join(f"{k % n_labels + 0.5} 1:{k % 7 / 7} 2:1\n" for k in range(n_rows))


@pytest.mark.parametrize(("n_rows", "n_labels", "accepted"), [
    (100, 100, True), (101, 101, False), (201, 101, False), (202, 101, True), (400, 200, True), (399, 200, False),
])  # fmt: skip
def test_more_than_a_hundred_labels_need_two_rows_each(folder, n_rows, n_labels, accepted):
    (folder / "bad").write_text(targets(n_rows, n_labels))
    if accepted:
        cli.split(["bad", "-o", "new.blocks", "-q"], standalone_mode=False)
        return
    for command in ("split", "train", "shrink"):
        error = refusal(command)
        assert error.message == (f"bad: {n_labels} labels in {n_rows} rows, such as 0.5; these look like regression "
                                 "targets")  # fmt: skip
        assert "--many-labels" in error.hint
        assert not (folder / "new").exists() and not (folder / "new.blocks").exists()


@pytest.mark.parametrize("options", ["", "-s cs", "-s shrink", "-s pegasos"])
def test_many_labels_are_accepted_where_they_are_meant(run, here, options):
    (here / "bad").write_text(targets(120, 110))
    assert run("llsvm-train", "--many-labels", "--max-passes", 1, *options.split(), "bad", "new").returncode == 0
    assert len(json.loads(run("llsvm", "info", "--json", "new").stdout)["labels"]) == 110


def test_a_set_of_many_labels_needs_the_word_once_more(run, refuse, here):
    (here / "bad").write_text(targets(120, 110))
    assert run("llsvm-split", "--many-labels", "bad").returncode == 0
    refuse("llsvm-train", "bad.blocks", "new", says=["bad.blocks: 110 labels in 120 rows", "--many-labels"])
    assert run("llsvm-train", "--many-labels", "--max-passes", 1, "bad.blocks", "new").returncode == 0


def test_targets_are_doubted_even_where_their_weights_would_not_fit(folder):
    rows = (f"{k}.5 " + " ".join(f"{20 * k + j}:1" for j in range(1, 20)) for k in range(500))
    (folder / "bad").write_text("\n".join(rows))
    with pytest.raises(LlsvmError, match=r"--memory .* is too small.*; are these classes, (\d+) labels in .* \1 "):
        cli.train(["bad", "new", "-q", "--memory", "4M"], standalone_mode=False)


def test_words_that_are_as_many_as_rows_are_no_targets(folder):
    (folder / "bad").write_text("".join(f"id{k} 1:1\n" for k in range(150)))
    assert "these look like ids or texts" in refusal("train").message


def test_a_set_without_features_is_refused(run, refuse, here):
    (here / "one").write_text("1\n")
    assert run("llsvm-split", "one").returncode == 0
    refuse("llsvm-train", "one.blocks", "new", says=["one.blocks: no line has an id:value"])
    refuse("llsvm-predict", "one.blocks", "model", "new", says=["one.blocks: no line has an id:value"])


def test_many_targets_are_refused_long_before_the_end(folder, pieces_scanned):
    values = np.random.default_rng(3).normal(size=60_000).tolist()
    (folder / "bad").write_text("".join(f"{value!r} 1:1 2:1 3:1 # {'x' * 100}\n" for value in values))
    assert "regression targets" in refusal("split").message
    assert 1 <= len(pieces_scanned) <= 5  # of eight


# --- standard input that names sets


def test_two_paths_on_standard_input_are_refused(refuse, run, here):
    assert run("llsvm-split", "-q", "test.txt").returncode == 0
    for paths in (b"data.txt.blocks\ntest.txt.blocks\n", b"data.txt.blocks\n1 1:1\n"):
        stderr = refuse("llsvm-train", "-", "new", code=2, stdin=paths,
                        says=["standard input names data.txt.blocks and more", "hint: "])  # fmt: skip
        assert "one set" in stderr


def test_a_second_path_that_comes_later_is_waited_for(run, here):
    assert run("llsvm-split", "-q", "test.txt").returncode == 0
    finished = run("sh", "-c", "(echo data.txt.blocks; sleep 0.3; echo test.txt.blocks) | llsvm-train - new")
    assert finished.returncode == 2 and "and more" in finished.stderr
    assert not (here / "new").exists()


def test_a_path_on_standard_input_that_leads_nowhere_is_told(refuse):
    refuse("llsvm-train", "-", "new", stdin=b"nosuch.blocks\n",
           says=["standard input names nosuch.blocks, and there is no such block set"])  # fmt: skip
