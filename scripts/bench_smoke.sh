#!/bin/sh
# Runs every script on toy data, so that none rots: the numbers mean nothing here, only that there are some.
# LIBLINEAR is the wheel, which `make test` installs, and its own programs where they are on PATH.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work"
say() { echo "\$ $*"; "$@"; }
for shape in text dense few digits checkerboard; do
    say python make_data.py "$shape" "$work/$shape.txt" --rows 200
done
say python make_data.py trigram "$work/trigram.txt" --rows 200 --features 100K
say sh make_samples.sh "$work"
say python bench_split.py --repeat 2 --threads 1 --memory 100M "$work/few.txt" "$work/trigram.txt"
say python bench_split.py --repeat 1 --peer wheel "$work/sample.train.txt"
say python bench_predict.py --repeat 1 "$work/dense.txt"
say python bench_predict.py --repeat 1 --peer wheel "$work/sample.test.txt"
say python bench_train.py --repeat 1 --peer wheel --tolerance 0.02 --shape dense --size 3M
say python bench_shrink.py --repeat 1 "$work/text.txt"
say python reproduce_llsvm.py --output "$work" "$work/sample.train.txt"
say python reproduce_block.py --output "$work" --passes 3 --blocks 4 --block-counts 2,8 --repeat 1 \
    --reference 1e-3 --hold-out 5 "$work/digits.txt"
say python reproduce_pegasos.py --output "$work" --batch 50 --steps 20 --starts 2 --batches 1,10 --passes 1,2,4 \
    --reference 1e-3 "$work/sample.train.txt"
say python bench_kernel.py --repeat 1 -g 4 -c 10 "$work/checkerboard.txt" "$work/checkerboard.txt"
say python bench_primal.py --repeat 1 "$work/dense.txt"
say python bench_multiclass.py --repeat 1 "$work/digits.txt"
say python reproduce_sdm.py --output "$work" --partitions 2 --costs 0.01,0.1 --reference 1e-3 "$work/digits.txt"
say python bench.py --quick --no-shapes --growth 2M --output "$work/bench" "$work/sample.train.txt"
echo "bench-smoke: every script ran; times of toy data mean nothing and were judged by no target"
