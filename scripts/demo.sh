#!/bin/sh
# The main job on the sample in data/: split, train, predict, with the certificate and the accuracy.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp data/sample.train.txt data/sample.test.txt "$work"
cd "$work"
say() { echo "\$ $*"; "$@"; }
say llsvm-split sample.train.txt -m 40
say llsvm-train -s dual -c 1 -B 1 model
say llsvm-predict sample.test.txt model out
say llsvm info model
