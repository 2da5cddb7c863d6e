#!/usr/bin/env bash
# What a CUDA device is asked: do all methods agree there, what does work cost, how fast is it.
#
#   bash benchmarks/gpu.sh [FOLDER]  (gpu-figures)
set -euo pipefail
folder=$(realpath -m "${1:-gpu-figures}")
cd "$(dirname "$0")/.."

if ! python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "gpu.sh: torch finds no CUDA device here; nothing was run. It needs a device and a CUDA build of torch." >&2
  exit 2
fi

mkdir -p "$folder"
agree=0
python -m pytest -m gpu tests/gpu -rs || agree=$?  # figures are of use where a method fails
python -c 'import maclaurin; print(maclaurin.calibrate("cuda"))'
python -m maclaurin bench --device cuda --dtype float32 --dtype bfloat16 --length 512 --length 2048 --length 8192 \
  --head-size 64 --csv "$folder/bench.csv" --figure "$folder/bench.svg" --json > "$folder/bench.json"
echo "figures: $folder"
exit "$agree"
