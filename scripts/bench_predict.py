"""llsvm-predict against LIBLINEAR's predict: the same file, the same model, and the same bytes out or exit code 1.

The model is LIBLINEAR's format; unless one is given, llsvm-train makes it from the file itself, to a gap of 1 %.
"""

import filecmp

import peers

OURS, THEIRS = "llsvm-predict", "LIBLINEAR's predict"


def commands(path, model, peer, options, outputs):
    programs = {OURS: peers.llsvm("llsvm-predict", options), THEIRS: peer.predict}
    return {name: peers.Command([*words, str(path), str(model), str(output)])
            for (name, words), output in zip(programs.items(), outputs, strict=True)}  # fmt: skip


def check(outputs):
    if not filecmp.cmp(*outputs, shallow=False):
        raise SystemExit("the predictions differ")


def measure(path, peer, options, folder):
    model = options.model
    if model is None:
        model = str(folder / "model")
        peers.run(peers.Command([*peers.llsvm("llsvm-train", options), "-B", "1", "-e", "0.01", str(path), model]))
    outputs = folder / "ours", folder / "theirs"
    runs = peers.interleave(commands(path, model, peer, options, outputs), options.repeat)
    theirs = runs[THEIRS]
    peers.print_heading(path, peer, options)
    peers.print_table(
        ["", "seconds", "min-max", "cpu", "peak MB", "times as fast"],
        [[name, f"{cost.wall:.2f}", cost.spread, f"{cost.cpu:.2f}", cost.peak,
          f"{theirs.wall / cost.wall:.2f}"] for name, cost in runs.items()],
    )  # fmt: skip
    check(outputs)
    print(f"the predictions are identical; {theirs[0].output.strip()}")


def main():
    parser = peers.make_parser(__doc__)
    parser.add_argument("--model", help="of ours or of LIBLINEAR's")
    peers.measure_files(parser, measure)


if __name__ == "__main__":
    main()
