"""Write synthetic LIBSVM text, fast and reproducibly.

Every shape imitates a well-known data set. The bytes depend on the shape, its options and the seed, never on the
number of processes; fewer rows are a prefix of more rows; --sorted writes the same rows, one class after the other.

text     rcv1: 47,236 features, about 33 nonzeros a row. Words come from Zipf's law (density ~ 1/(rank + offset)) and
         get shuffled ids; values are tf-idf, rows have unit length. Some words come in pairs that lean to opposite
         classes, and a row prefers one side more or less strongly. The label is the sign of the score under the
         sparse model made of these leanings.
trigram  webspam: the same with 16.6 million features, about 400 nonzeros a row, and no idf in the values.
dense    epsilon: 2,000 normal features, all present. Every feature follows one of 50 hidden factors plus noise of its
         own; the label is the sign of a linear score of the factors. Rows have unit length.
few      covtype: 8 numbers in [0, 1], now and then absent, and 4 one-hot choices with 42 outcomes, all following a
         hidden site. The label: do a linear score, a wave along the site and noise exceed their batch's median?
digits   mnist: 28 x 28 pixels of which 780 are features, values k/255. A class is a curve drawn in 40 styles; a row
         is one of these, shifted by up to two pixels and dimmed in patches.
checkerboard  the plane of the paper of Wu and Chang: 5 x 5 squares of two classes, points near the inner borders alone,
         which is where support vectors are.

Labels are then replaced by another class with probability --noise.
"""

import argparse
import collections
import functools
import itertools
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor

import numpy as np


class Shape:
    """make(rng) gives a batch: class and nonzeros (at least one) of each row, then ids (from 1) and values of all."""

    labels = ["-1", "+1"]


class Words(Shape):
    decimals, noise = 7, 0.01

    def __init__(self, rng, n_features=None):
        self.n_features = n_features or self.n_features
        self.id_of_rank = rng.permutation(self.n_features).astype(np.int32)
        n_pairs = self.n_features // 2 + 1
        leans = rng.random(n_pairs) < self.leaning / (1 + np.arange(n_pairs) / self.knee)
        self.lean = (self.strength * rng.uniform(0.5, 1, n_pairs) * leans).astype(np.float32)
        self.lean[self.n_features // 2 :] = 0  # of an odd number of words, the last has no partner
        rank = np.empty_like(self.id_of_rank)
        rank[self.id_of_rank] = np.arange(self.n_features)
        self.idf = (1 + self.rarity * np.log1p(rank / self.offset)).astype(np.float32)
        self.weight = self.lean[rank // 2] * np.where(rank % 2, np.float32(1), np.float32(-1))

    def make(self, rng):
        n = self.batch_rows
        draws = np.clip(self.draws * np.exp(self.spread * rng.standard_normal(n)), 6, 5 * self.draws).astype(np.int64)
        side = rng.choice([-1.0, 1.0], n) * rng.beta(8, 2, n)
        row = np.repeat(np.arange(n), draws)
        # Inverse of the cumulative distribution log(1 + rank / offset) / log(1 + n_features / offset).
        rank = self.offset * ((1 + self.n_features / self.offset) ** rng.random(len(row)) - 1)
        rank = np.minimum(rank.astype(np.int64), self.n_features - 1)
        lean = self.lean[rank >> 1]
        leans_up = 2 * rng.random(len(row), dtype=np.float32) - 1 < lean * side[row]
        rank = np.where(lean > 0, rank & ~1 | leans_up, rank)
        keys = np.sort(row * self.n_features + self.id_of_rank[rank])
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        row, word = np.divmod(keys[first], self.n_features)
        values = (1 + np.log(np.diff(first, append=len(keys)))) * self.idf[word]
        values /= np.sqrt(np.bincount(row, values**2, n))[row]
        score = np.bincount(row, self.weight[word] * values, n)
        return score > 0, np.bincount(row, minlength=n), word + 1, values


class Text(Words):
    batch_rows = 4096
    n_features, offset, rarity, draws, spread = 47_236, 40, 1, 28, 0.6
    leaning, knee, strength = 0.75, 500, 1


class Trigram(Words):
    batch_rows = 256
    n_features, offset, rarity, draws, spread = 16_600_000, 30, 0, 370, 0.5
    leaning, knee, strength = 0.3, 5000, 0.7


class Dense(Shape):
    decimals, noise = 7, 0.03

    def __init__(self, rng, n_features=2000):
        self.n_features = n_features
        self.batch_rows = max(1, 100_000 // n_features)
        self.n_factors = min(max(1, n_features // 40), 50)
        self.factor = rng.integers(self.n_factors, size=n_features)
        self.loading = rng.uniform(-1.5, 1.5, n_features).astype(np.float32)
        self.weight = rng.standard_normal(self.n_factors)

    def make(self, rng):
        n = self.batch_rows
        hidden = rng.standard_normal((n, self.n_factors))
        values = rng.standard_normal((n, self.n_features), dtype=np.float32)
        values += self.loading * hidden.astype(np.float32)[:, self.factor]
        values /= np.sqrt((values**2).sum(1, keepdims=True))
        ids = np.tile(np.arange(1, self.n_features + 1), n)
        return (hidden * self.weight).sum(1) > 0, np.full(n, self.n_features), ids, values.ravel()


class Few(Shape):
    batch_rows, decimals, noise = 16_384, 6, 0.02
    n_numbers = 8
    choices = np.array([4, 7, 12, 19])

    def __init__(self, rng):
        self.first_choice = self.n_numbers + np.cumsum(self.choices) - self.choices
        self.power = rng.uniform(0.4, 2.5, self.n_numbers)
        self.weight = rng.standard_normal(self.n_numbers + self.choices.sum())

    def make(self, rng):
        n = self.batch_rows
        site = rng.random((n, 1))
        numbers = (0.5 * site + 0.5 * rng.random((n, self.n_numbers))) ** self.power
        numbers *= rng.random(numbers.shape) > 0.02
        chosen = (0.3 * site + 0.7 * rng.random((n, len(self.choices))) ** 2) * self.choices
        columns = np.hstack([np.tile(np.arange(self.n_numbers), (n, 1)), self.first_choice + chosen.astype(np.int64)])
        values = np.hstack([numbers, np.ones(chosen.shape)])
        score = (self.weight[columns] * values).sum(1) + 1.5 * np.sin(20 * site[:, 0]) + 0.8 * rng.standard_normal(n)
        present = values > 0
        return score > np.median(score), present.sum(1), columns[present] + 1, values[present]


class Digits(Shape):
    batch_rows, decimals, noise = 1024, 6, 0.01
    n_features, n_styles, side, margin = 780, 40, 28, 2

    def __init__(self, rng, n_classes=10):
        self.labels = [str(number) for number in range(n_classes)]
        self.canvas = self.side + 2 * self.margin
        self.curves = np.stack([self.draw_styles(rng) for _ in self.labels])
        y, x = np.divmod(np.arange(self.n_features), self.side)
        self.pixel = y * self.canvas + x
        self.patch = y // 4 * 7 + x // 4

    def draw_styles(self, rng):
        """Images of one curve, each deformed a little: sums of two waves in x and in y."""
        size = np.array([8.0, 5.0])[:, None]
        wave = size * rng.standard_normal((2, 2)) + 0.2 * size * rng.standard_normal((self.n_styles, 2, 2))
        phase = rng.uniform(0, 2 * np.pi, (2, 2)) + 0.2 * rng.standard_normal((self.n_styles, 2, 2))
        t = np.linspace(0, 1, 60)[:, None, None]
        points = (wave[:, None] * np.cos(np.pi * t * np.array([[1], [2]]) + phase[:, None])).sum(2)
        points += self.canvas / 2 - points.mean(1, keepdims=True)
        grid = np.arange(self.canvas)
        near_y, near_x = (np.exp(-((points[..., axis, None] - grid) ** 2) / 3) for axis in (0, 1))
        ink = (near_y[..., :, None] * near_x[..., None, :]).max(1)
        return np.clip(1.5 * ink - 0.3, 0, 1).astype(np.float32)

    def make(self, rng):
        n = self.batch_rows
        classes = rng.integers(len(self.labels), size=n)
        image = classes * self.n_styles + rng.integers(self.n_styles, size=n)
        down, right = rng.integers(2 * self.margin + 1, size=(2, n))
        corner = image * self.canvas**2 + down * self.canvas + right
        ink = self.curves.ravel()[corner[:, None] + self.pixel]
        ink *= rng.uniform(0.5, 1.1, (n, 49))[:, self.patch]
        level = np.minimum(np.rint(255 * ink), 255)
        row, column = np.nonzero(level)
        return classes, np.bincount(row, minlength=n), column + 1, level[row, column] / 255


class Checkerboard(Shape):
    batch_rows, decimals, noise = 16_384, 5, 0.0
    squares, width = 5, 0.15

    def __init__(self, rng):
        """Nothing but the place is random."""

    def make(self, rng):
        points = rng.uniform(0, self.squares, (8 * self.batch_rows, 2))
        border = np.round(points)
        is_near = (np.abs(points - border) < self.width) & (border > 0) & (border < self.squares)
        points = points[is_near.any(1)][: self.batch_rows]
        n = len(points)
        return np.floor(points).sum(1) % 2 == 0, np.full(n, 2), np.tile([1, 2], n), points.ravel()


SHAPES = {"text": Text, "dense": Dense, "trigram": Trigram, "few": Few, "digits": Digits, "checkerboard": Checkerboard}
SIZABLE = "text", "trigram", "dense"


def format_rows(labels, lengths, ids, values, decimals):
    """LIBSVM text: a byte matrix with one line per nonzero, of which the zero bytes are then dropped."""
    scaled = np.rint(values * 10.0**decimals).astype(np.int32)
    scaled[scaled == 0] = 1  # every nonzero stays one
    end = np.cumsum(lengths)
    label_width, id_width = labels.itemsize, len(str(ids.max()))
    text = np.zeros((len(scaled), label_width + id_width + decimals + 6), np.uint8)
    text[end - lengths, :label_width] = labels.view(np.uint8).reshape(-1, label_width)
    text[:, label_width] = ord(" ")
    at = label_width + 1 + id_width
    put_integer(text[:, label_width + 1 : at], ids)
    text[:, at] = ord(":")
    text[:, at + 1] = (scaled < 0) * np.uint8(ord("-"))
    text[:, at + 2] = put_fraction(text[:, at + 4 : -1], np.abs(scaled)) + ord("0")
    text[:, at + 3] = (text[:, at + 4] > 0) * np.uint8(ord("."))
    text[end - 1, -1] = ord("\n")
    return text.tobytes().translate(None, b"\0")


def put_integer(columns, number):
    """Digits of number > 0, right-aligned, without leading zeros."""
    number = number.astype(np.uint32)
    for column in reversed(columns.T):
        rest = number // 10
        column[:] = (number - 10 * rest + ord("0")) * (number > 0)
        number = rest


def put_fraction(columns, scaled):
    """Decimals of scaled / 10**width without trailing zeros; returns the whole part."""
    scaled = scaled.astype(np.uint32)
    started = np.zeros(len(scaled), bool)
    for column in reversed(columns.T):
        rest = scaled // 10
        digit = scaled - 10 * rest
        started |= digit > 0
        column[:] = (digit + ord("0")) * started
        scaled = rest
    return scaled


@functools.cache
def build_shape(name, seed, size):
    rng = np.random.default_rng([seed, 0])
    return SHAPES[name](rng, size) if size else SHAPES[name](rng)


def batch_text(number, name, seed, size, noise):
    """Text of one batch. Each has a generator of its own, so any process can make any batch."""
    shape, rng = build_shape(name, seed, size), np.random.default_rng([seed, 1 + number])
    classes, *nonzeros = shape.make(rng)
    wrong = rng.random(len(classes)) < (shape.noise if noise is None else noise)
    classes = (classes + wrong * rng.integers(1, len(shape.labels), len(classes))) % len(shape.labels)
    return format_rows(np.array(shape.labels, dtype=bytes)[classes], *nonzeros, shape.decimals)


def batches(recipe, processes):
    """Texts of batch 0, 1, 2, ... without end, two per process in flight."""
    with ProcessPoolExecutor(processes) as pool:
        in_flight = collections.deque(pool.submit(batch_text, number, *recipe) for number in range(2 * processes))
        for number in itertools.count(len(in_flight)):
            yield in_flight.popleft().result()
            in_flight.append(pool.submit(batch_text, number, *recipe))


def limit(texts, n_rows, n_bytes):
    """Stop after n_rows, or at the end of the row that reaches n_bytes."""
    while n_rows > 0 and n_bytes > 0:
        text = next(texts)
        ends = 1 + np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        keep = int(min(len(ends), n_rows, 1 + np.searchsorted(ends, n_bytes)))
        n_rows, n_bytes = n_rows - keep, n_bytes - ends[keep - 1]
        yield text[: ends[keep - 1]]


def write_sorted(texts, out, directory):
    """All rows of one label before the next, gathered meanwhile in a temporary file per label."""
    files = collections.defaultdict(lambda: tempfile.TemporaryFile(dir=directory))  # noqa: SIM115
    for line in itertools.chain.from_iterable(text.splitlines(keepends=True) for text in texts):
        files[line[: line.index(b" ")]].write(line)
    for label in sorted(files, key=int):
        files[label].seek(0)
        out.writelines(files[label])


def positive(text):
    unit = {"K": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:].upper())
    number = int(text[:-1]) * unit if unit else int(text)
    if number < 1:
        raise ValueError
    return number


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", help="file to write, - for standard output")
    stop = parser.add_mutually_exclusive_group()
    stop.add_argument("--rows", type=positive, help="number of rows, as in 50K (default 10K)")
    stop.add_argument("--size", type=positive, help="bytes of text, as in 300M; the last row is completed")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("--sorted", action="store_true", help="all rows of one class before the next")
    parser.add_argument("--features", type=positive, help="number of features (text, trigram, dense; default as above)")
    parser.add_argument("--classes", type=positive, help="number of classes (digits only; default 10)")
    parser.add_argument("--noise", type=float, help="fraction of labels replaced by another")
    parser.add_argument("--processes", type=positive, default=2, help="default 2")
    options = parser.parse_args()
    if options.features and options.shape not in SIZABLE or options.classes and options.shape != "digits":
        parser.error(f"--features is for {', '.join(SIZABLE)}, --classes for digits")
    if options.classes == 1 or options.seed < 0:
        parser.error("--classes starts at 2, --seed at 0")
    return options


def main():
    options = parse_options()
    recipe = options.shape, options.seed, options.features or options.classes, options.noise
    n_rows = options.rows or (np.inf if options.size else 10_000)
    texts = limit(batches(recipe, options.processes), n_rows, options.size or np.inf)
    with sys.stdout.buffer if options.out == "-" else open(options.out, "wb") as out:
        if options.sorted:
            write_sorted(texts, out, os.path.dirname(options.out) or ".")
        else:
            out.writelines(texts)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)
