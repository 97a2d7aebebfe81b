"""llsvm-predict against LIBLINEAR's predict: the same file, the same model, and the same bytes out or exit code 1.

The model is LIBLINEAR's format; unless one is given, llsvm-train makes it from the file itself, to a gap of 1 %.
"""

import filecmp

import peers


def measure(path, peer, options, folder):
    model = options.model
    if model is None:
        model = str(folder / "model")
        peers.run(peers.Command([*peers.llsvm("llsvm-train", options), "-B", "1", "-e", "0.01", str(path), model]))
    outputs = [str(folder / "ours"), str(folder / "theirs")]
    commands = {
        "llsvm-predict": peers.Command([*peers.llsvm("llsvm-predict", options), str(path), model, outputs[0]]),
        "LIBLINEAR's predict": peers.Command([*peer.predict, str(path), model, outputs[1]]),
    }
    runs = peers.interleave(commands, options.repeat)
    theirs = runs["LIBLINEAR's predict"]
    peers.print_heading(path, peer, options)
    peers.print_table(
        ["", "seconds", "min-max", "cpu", "peak MB", "times as fast"],
        [[name, f"{cost.wall:.2f}", cost.spread, f"{cost.cpu:.2f}", cost.peak,
          f"{theirs.wall / cost.wall:.2f}"] for name, cost in runs.items()],
    )  # fmt: skip
    if not filecmp.cmp(*outputs, shallow=False):
        raise SystemExit("the predictions differ")
    print(f"the predictions are identical; {theirs[0].output.strip()}")


def main():
    parser = peers.make_parser(__doc__)
    parser.add_argument("--model", help="of ours or of LIBLINEAR's")
    peers.measure_files(parser, measure)


if __name__ == "__main__":
    main()
