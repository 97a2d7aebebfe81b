#!/bin/sh
# Makes the sample in data/, or in the directory given: text-like rows, the first 1,300 to train on, 500 to test.
set -eu
scripts=$(cd "$(dirname "$0")" && pwd)
out=${1:-$scripts/../data}
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
python "$scripts/make_data.py" text "$rows" --rows 1800 --features 2000 --noise 0.02 --seed 1
head -n 1300 "$rows" >"$out/sample.train.txt"
tail -n +1301 "$rows" >"$out/sample.test.txt"
