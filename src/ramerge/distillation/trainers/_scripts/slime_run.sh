#!/usr/bin/env bash
# Distill several teachers into a merge with slime 0.3. Written by `ramerge handoff`; edit GPUs and parallelism.
set -euo pipefail
: "${SLIME:?a checkout of slime}" "${MODEL:?a file of its scripts/models without .sh, such as qwen3-4B}"
OUT=@OUT@
STUDENT=@STUDENT@
TRAIN_GPUS=${TRAIN_GPUS:-2}
ROLLOUT_GPUS=${ROLLOUT_GPUS:-2}
FIRST_TEACHER_GPU=$((TRAIN_GPUS + ROLLOUT_GPUS))
MEGATRON=${MEGATRON:-/root/Megatron-LM}
cd "$SLIME"
source "scripts/models/$MODEL.sh"

# Megatron's own form of the student, once
if [ ! -d "$OUT/student_torch_dist" ]; then
   PYTHONPATH="$MEGATRON" python3 tools/convert_hf_to_torch_dist.py "${MODEL_ARGS[@]}" \
      --hf-checkpoint "$STUDENT" --save "$OUT/student_torch_dist"
fi

# a server of each teacher
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
@SERVERS@
for port in @PORTS@; do
   until curl -sf "http://127.0.0.1:$port/health_generate" >/dev/null; do sleep 5; done
done

ARGS=(
   --actor-num-nodes 1
   --actor-num-gpus-per-node "$TRAIN_GPUS"
   --rollout-num-gpus "$ROLLOUT_GPUS"
   --hf-checkpoint "$STUDENT"
   --ref-load "$OUT/student_torch_dist"
   --load "$OUT/trained"
   --save "$OUT/trained"
   --save-interval 20

   --prompt-data "$OUT/prompts.jsonl"
   --input-key prompt
   --label-key label
   --metadata-key metadata
@TEMPLATE@   --rollout-shuffle
   --num-rollout 100
   --rollout-batch-size @BATCH@
   --n-samples-per-prompt 4
   --global-batch-size $((4 * @BATCH@))
   --rollout-max-response-len @MAX_NEW@
   --rollout-temperature 1
   --rollout-num-gpus-per-engine 1
   --balance-data

   --use-opd
   --opd-type sglang
   --opd-kl-coef 1.0
   --custom-rm-path teachers.reward_func
   --custom-reward-post-process-path slime.rollout.on_policy_distillation.post_process_rewards
   --advantage-estimator grpo
   --entropy-coef 0.00

   --optimizer adam
   --lr 1e-6
   --lr-decay-style constant
   --weight-decay 0.1
   --adam-beta1 0.9
   --adam-beta2 0.98

   --tensor-model-parallel-size 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 16384
   --attention-dropout 0.0
   --hidden-dropout 0.0
   --accumulate-allreduce-grads-in-fp32
   --attention-softmax-in-fp32
   --attention-backend flash
)
export PYTHONPATH="$OUT:$MEGATRON:${PYTHONPATH:-}" CUDA_DEVICE_MAX_CONNECTIONS=1
python3 train.py "${MODEL_ARGS[@]}" "${ARGS[@]}" "$@"
