#!/bin/bash
# Install the package on a machine with a GPU, run the tests marked `gpu`, the device API's tests and the benchmarks, and
# write one report. Needs Python with JAX and its CUDA plugin, a C compiler, Cython and setuptools; no network.
#
#   tests/gpu/run.sh [OUTPUT]       the folder of the report and of the logs; default: gpu_report
#
# Variables: PYTHON (default: python3), PJRT_TEST_GPU (another device that stands in for `cuda`, such as `cpu`),
# WHEELS (a folder of wheels that the machine lacks), PJRT_TEST_AHEAD (a folder that compile_ahead.py wrote),
# SECONDS_IN_ALL (default: 560), SLOWER (a factor of the limit of each step, for a busy machine), QUICK=1 (a short
# benchmark), INSTALLED=1 (the package is installed already), EXTRA_PATH (another folder with packages).
set -u
cd "$(dirname "$0")/../.."
OUTPUT=$(mkdir -p "${1:-gpu_report}" && cd "${1:-gpu_report}" && pwd)
PYTHON=${PYTHON:-python3}
export PJRT_TEST_GPU=${PJRT_TEST_GPU:-cuda}
export XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONUNBUFFERED=1
LIMIT=${SECONDS_IN_ALL:-560}
REPORT=$OUTPUT/report.md
SITE=$(mktemp -d)
trap 'rm -rf "$SITE"' EXIT
export PYTHONPATH=$SITE${EXTRA_PATH:+:$EXTRA_PATH}

# step NAME SECONDS COMMAND…: run a command for at most so many seconds, and at most until the time in all is over.
step() {
  local name=$1 most=$(($2 * ${SLOWER:-1})) left=$((LIMIT - SECONDS)) begin=$SECONDS log status
  shift 2
  log=$OUTPUT/${name// /_}.log
  if ((left < 10)); then
    printf '\n## %s\n\nNot run: the time is over.\n' "$name" >> "$REPORT"
    return
  fi
  timeout --kill-after=5 $((most < left ? most : left)) "$@" > "$log" 2>&1
  status=$?
  {
    printf '\n## %s\n\nExit status %s after %s s. The end of %s:\n\n```text\n' "$name" "$status" $((SECONDS - begin)) "$(basename "$log")"
    grep -E '^(FAILED|ERROR) ' "$log" | head -60
    tail -n "${LINES_OF_LOG:-25}" "$log" | cut -c1-240
    printf '```\n'
  } >> "$REPORT"
  echo "$name: exit status $status after $((SECONDS - begin)) s"
}

facts() {
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv 2> /dev/null || echo "no nvidia-smi"
  nproc
  "$PYTHON" - << 'CODE'
import importlib.metadata as metadata, sys
print(sys.version)
for name in ("numpy", "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt", "torch", "cupy-cuda13x", "triton", "Cython",
             "setuptools", "click", "filelock", "ml-dtypes", "protobuf", "rich", "pytest", "hypothesis"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, "is not installed")
CODE
}

install() {
  local pip=("$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$SITE")
  if compgen -G "${WHEELS:-/nonexistent}/*.whl" > /dev/null; then "${pip[@]}" "$WHEELS"/*.whl || return; fi
  # A copy, so that nothing that was built for another Python is taken for this one.
  local copy=$SITE.source
  mkdir -p "$copy" && cp -r pyproject.toml setup.py MANIFEST.in README.md LICENSE src "$copy" || return
  find "$copy" -name '*.so' -delete
  "${pip[@]}" --no-build-isolation "$copy" && rm -rf "$copy"
  "$PYTHON" -c "import pjrt; print(pjrt.__version__, pjrt.__file__)"
}

tests() {
  "$PYTHON" -X faulthandler -m pytest -q -p no:cacheprovider --timeout 120 "$@"
}

printf '# The package on %s\n\nWritten by `tests/gpu/run.sh`.\n' "$PJRT_TEST_GPU" > "$REPORT"
export -f facts install tests
export PYTHON SITE
LINES_OF_LOG=40 step "facts" 30 bash -c facts
[ -n "${INSTALLED:-}" ] || step "installation" 200 bash -c install
step "devices" 60 "$PYTHON" -m pjrt devices "$PJRT_TEST_GPU"
LINES_OF_LOG=60 step "tests of the GPU" 200 bash -c 'tests tests/gpu -m gpu -n 4'
export PJRT_TEST_DEVICES=$PJRT_TEST_GPU
LINES_OF_LOG=60 step "tests of the device API" 200 bash -c 'tests tests/device_api -n 4'
LINES_OF_LOG=80 step "benchmark" 240 "$PYTHON" -m benchmarks.gpu ${QUICK:+--quick}
LINES_OF_LOG=60 step "conformance" 120 "$PYTHON" -m pjrt conform "$PJRT_TEST_GPU"
printf '\nIn all %s s.\n' "$SECONDS" >> "$REPORT"
echo "$REPORT"
