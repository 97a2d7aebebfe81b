#!/bin/sh
# Source distribution -> wheel in a fresh environment -> the sample, outside the clone; then its own tests.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "\$ $*"; "$@"; }
fail() { echo "error: $*" >&2; exit 1; }

say python setup.py --quiet egg_info --egg-base "$work" sdist --dist-dir "$work"
tar -xzf "$work"/llsvm-*.tar.gz -C "$work"
unpacked=$(echo "$work"/llsvm-*[0-9])
git ls-files | while read -r file; do
    [ -e "$unpacked/$file" ] || fail "the source distribution has no $file"
done

mkdir "$work/empty"
cp setup.py "$work/empty"
if (cd "$work/empty" && python setup.py --quiet build) 2>"$work/refusal"; then
    fail "setup.py built nothing, and was content"
fi
grep -q "no cython_src/_\*.pyx here" "$work/refusal" || fail "setup.py: $(cat "$work/refusal")"

echo "compiling the wheel: a minute or two"
say python -m pip wheel --quiet --no-deps --wheel-dir "$work" "$work"/llsvm-*.tar.gz
ls -l "$work"/llsvm-*.whl
python -m venv "$work/venv"
PATH="$work/venv/bin:$PATH"
say python -m pip install --quiet "$work"/llsvm-*.whl
mkdir "$work/elsewhere"
cp data/sample.*.txt "$work/elsewhere"
cd "$work/elsewhere"
say llsvm-split sample.train.txt -m 40
say llsvm-train -B 1 model
say llsvm-predict sample.test.txt model out | tee screen
grep -q "Accuracy = 93.4% (467/500)" screen || fail "another accuracy than data/README.md promises"

cd "$unpacked"
say python -m pip install --quiet $(python scripts/requirements.py test)
cp "$work"/venv/lib/python3*/site-packages/llsvm/*.so llsvm
python -m pytest --quiet --collect-only tests >"$work/collected" || { cat "$work/collected"; exit 1; }
tail -n 1 "$work/collected"
say python -m pytest --quiet tests/test_core.py tests/test_blockset.py tests/test_packaging.py tests/test_readme.py
