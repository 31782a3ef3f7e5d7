#!/usr/bin/env bash
# Distill several teachers into a merge with NeMo-RL 0.6. Written by `ramerge handoff`; further words override the YAML.
set -euo pipefail
: "${NEMO_RL:?a checkout of NeMo-RL with NeMo Gym}"
export NEMO_RL
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$NEMO_RL"
uv run examples/nemo_gym/run_grpo_nemo_gym.py --config "$HERE/mopd.yaml" "$@"
