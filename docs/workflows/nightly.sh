#!/usr/bin/env bash
# One night: measure an experiment again, keep the results, and write as Markdown what changed (docs/nightly.md).
#     docs/workflows/nightly.sh EXPERIMENT [CELLS]
# CELLS as `anncestry drop` takes them (default: all). LOAD=1: also load again. PUSH=1: send results and commit off.
set -euo pipefail
experiment=$1 cells=${2:-*/*/*/*} out=scratch/nightly
anncestry() { command anncestry --experiment "$experiment" "$@"; }
mkdir -p "$out"

before=$(git rev-parse HEAD)
# What was kept stays in DVC: a night that fails loses nothing, and the next one starts from here.
anncestry drop --yes ${LOAD:+--load} "$cells" >&2
snakemake --snakefile "${SNAKEFILE:-Snakefile}" --cores 8 all \
  --config experiment="$experiment" ${ANNCESTRY_CONFIG:+config_dir="$ANNCESTRY_CONFIG"} >&2
anncestry keep ${PUSH:+--push} >&2
if [ -n "${PUSH:-}" ]; then git push --quiet >&2; fi

{
  echo "# $experiment, $(git log -1 --format=%cs)"
  echo
  if git cat-file -e "$before:results.dvc" 2>/dev/null && [ "$before" != "$(git rev-parse HEAD)" ]; then
    echo "## Against the results before"
    echo '```'
    # The first night of an experiment beside others that were kept has nothing to be compared with: it says so.
    anncestry compare "$before" HEAD --out "$out/compare" 2>&1 || { [ $? -eq 2 ] && echo "Not compared."; }
    echo '```'
  else
    echo "No results were kept before, or none is new."
  fi
  echo "## History"
  echo '```'
  anncestry history --out "$out/history"
  echo '```'
} > "$out/changed.md.new"
mv "$out/changed.md.new" "$out/changed.md"
cat "$out/changed.md"
