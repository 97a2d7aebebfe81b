"""llsvm-split against the time that LIBLINEAR's train takes only to load the same file.

LIBLINEAR checks its parameters when it has loaded the data and before it does anything with them, so `train -c 0` loads
the file, says "C <= 0" and ends: the loading and nothing more.
"""

import json

import peers

LOADING = "LIBLINEAR, loading alone (train -c 0)"


def measure(path, peer, options, folder):
    target = folder / "bench.blocks"
    ours = [*peers.llsvm("llsvm-split", options), "--force", "-o", str(target), str(path)]
    if options.memory:
        ours += ["--memory", options.memory]
    commands = {"llsvm-split": peers.Command(ours), LOADING: peers.loading(peer, path)}
    runs = peers.interleave(commands, options.repeat)
    load = runs[LOADING]
    size = path.stat().st_size
    peers.print_heading(path, peer, options)
    peers.print_table(
        ["", "seconds", "min-max", "cpu", "MB/s", "peak MB", "of LIBLINEAR's time"],
        [[name, f"{cost.wall:.2f}", cost.spread, f"{cost.cpu:.2f}", f"{size / peers.MB / cost.wall:.0f}",
          cost.peak, f"{cost.wall / load.wall:.3f}"] for name, cost in runs.items()],
    )  # fmt: skip
    manifest = json.loads((target / "manifest.json").read_text())
    on_disk = sum(file.stat().st_size for file in target.iterdir())
    print(f"{manifest['rows']} rows, {manifest['features']} features, {manifest['nonzeros']} nonzeros; the block set "
          f"takes {on_disk / peers.MB:.1f} MB, {on_disk / manifest['nonzeros']:.2f} bytes a nonzero")  # fmt: skip


def main():
    parser = peers.make_parser(__doc__)
    parser.add_argument("--memory", help="of llsvm-split, as in 300M")
    peers.measure_files(parser, measure)


if __name__ == "__main__":
    main()
