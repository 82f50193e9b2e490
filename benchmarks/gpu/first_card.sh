#!/usr/bin/env bash
# The first half hour on a card's machine that has torch, transformers and Triton and no network.
#
#   bash benchmarks/gpu/first_card.sh pack FOLDER          where pip works: wheels and this tree, below 60 MiB
#   bash FOLDER/first_card.sh A|B|C|D FOLDER RESULTS       on the card's machine, one call after the other; RESULTS: at most eight files
#   bash FOLDER/first_card.sh STAGE,STAGE FOLDER RESULTS   these stages, several at once; alone:STAGE,STAGE one after the other
#
# A: facts, kernels, and all that is not timed, several stages at once.  B: what is timed, alone.  C: 7B.  D: beside TRL and Unsloth.
# MINUTES=6 bounds a call; what has a result is not asked again as long as /tmp/holdfast-card lasts, or its results.jsonl lies in FOLDER.
set -u

pack() {
  mkdir -p "$1/wheels" "$1/unsloth"
  local platforms=(); for p in 2_39 2_34 2_31 2_28 2_27 2_24 2_17; do platforms+=(--platform "manylinux_${p}_x86_64"); done
  get() { local d=$1; shift; python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d "$d" "$@"; }
  get "$1/wheels" pydantic orjson ftfy zstandard wcwidth liger-kernel typing-inspection annotated-types typing-extensions trl datasets dill multiprocess bitsandbytes
  local core; core=$(unzip -p "$1"/wheels/pydantic-2*.whl '*/METADATA' | sed -n 's/^Requires-Dist: pydantic-core==\([0-9.]*\).*/\1/p')
  get "$1/wheels" "pydantic-core==$core"
  get "$1/unsloth" unsloth unsloth_zoo 'trl==1.15.0' 'datasets<5' tyro cut_cross_entropy msgspec torchao structlog json5 nest-asyncio docstring-parser typeguard || echo "Unsloth is left out"
  # what would not be used there stays behind: bitsandbytes' libraries for other versions of CUDA, Unsloth's page
  python3 - "$1" <<'P'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
unused = {
    "bitsandbytes": lambda file: file.endswith(".so") and not file.endswith(("_cuda130.so", "_cpu.so")),
    "unsloth": lambda file: file.startswith("studio/"),
}
for name, stays in unused.items():
    for wheel in folder.glob(f"*/{name}-*.whl"):
        with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as kept:
            for file in whole.namelist():
                if not stays(file):
                    kept.writestr(file, whole.read(file))
        wheel.unlink()
P
  git archive --format=tar.gz -o "$1/tree.tar.gz" HEAD -- src tests scripts benchmarks pyproject.toml
  cp benchmarks/gpu/first_card.sh "$1/"
  du -sh "$1"
}

prepare() {  # a fresh machine: packages beside its own, the tree, kernels compiled by the call before
  [ -e "$SITE/.ready" ] && return
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$SITE" "$CARRIED"/wheels/*.whl || exit 1
  python3 -m zipfile -e "$CARRIED/bitsandbytes.zip" "$SITE" || exit 1
  mkdir -p "$WORK/tree" "$WORK/alone" && tar xzf "$CARRIED/tree.tar.gz" -C "$WORK/tree" || exit 1
  [ -e "$CARRIED/triton.tgz" ] && tar xzf "$CARRIED/triton.tgz" -C "$HOME"
  [ -e "$CARRIED/results.jsonl" ] && cp "$CARRIED/results.jsonl" "$WORK/alone/"
  touch "$SITE/.ready"
}

home() {  # what there is so far, into few files
  cat "$WORK"/*/results.jsonl > "$RESULTS/results.jsonl" 2>/dev/null
  tar czf "$WORK/.logs" -C "$WORK" --exclude=tree --exclude=models --exclude=runs --exclude='*.safetensors' --exclude=cache . 2>/dev/null && mv -f "$WORK/.logs" "$RESULTS/logs.tgz"
  tar czf "$WORK/.events" -C "$WORK" $(cd "$WORK" && ls -d */runs/*/*/events.jsonl */runs/*/*/steps.jsonl */runs/*/*/attempts 2>/dev/null) 2>/dev/null && mv -f "$WORK/.events" "$RESULTS/runs.tgz"
}

ask() {  # ask FOLDER MINUTES STAGE...
  local out=$WORK/$1 minutes=$2; shift 2
  mkdir -p "$out"; [ -e "$out/models" ] || ln -s "$WORK/models" "$out/models"
  (cd "$WORK/tree" && python3 benchmarks/gpu/confidence.py --out "$out" --carried "$SITE" --minutes "$minutes" --only "$@" 2>&1 | grep -v '^|' | tee -a "$WORK/said.txt")
}

at_once() {  # at_once MINUTES STAGE...: stages that time nothing, AT_ONCE at a time, each in a folder of its own
  local minutes=$1; shift
  export -f ask; export WORK SITE
  printf '%s\n' "$@" | xargs -P "${AT_ONCE:-4}" -I{} bash -c 'ask {} '"$minutes"' {}'
}

if [ "${1:-}" = pack ]; then pack "${2:?a folder}"; exit; fi
CALL=${1:?A, B, C or D}; CARRIED=$(realpath "${2:?the packed folder}"); RESULTS=$(realpath "${3:?a folder for results}")
WORK=/tmp/holdfast-card; SITE=/tmp/holdfast-site; mkdir -p "$WORK/models" "$RESULTS"
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONPATH=$SITE
prepare
(while sleep 20; do home; done) & H=$!
trap 'kill $H; home; tar czf "$RESULTS/triton.tgz" -C "$HOME" .triton 2>/dev/null' EXIT  # a call that is cut off has brought home what was done
case $CALL in
A) { nvidia-smi -L; free -g | head -2; df -h /tmp /dev/shm; ulimit -l
     python3 -c "import sys,torch,triton,transformers,peft,accelerate,pydantic,orjson,ftfy,zstandard,liger_kernel,trl,datasets;print(sys.version,torch.__version__,triton.__version__,transformers.__version__,peft.__version__,accelerate.__version__,trl.__version__,torch.cuda.get_device_name())"
     python3 -c "import bitsandbytes as b,torch;w=torch.randn(64,64,device='cuda');q,s=b.functional.quantize_4bit(w,blocksize=64,quant_type='nf4');print('bitsandbytes',b.__version__,float((b.functional.dequantize_4bit(q,s)-w).norm()/w.norm()))"; } 2>&1 | tee -a "$WORK/said.txt"
   ask alone "${MINUTES:-3}" kernels kernel_speed
   at_once "${MINUTES:-6}" exact quantised optimizers architectures pressure halves layers full whole shipped tabular lab_row lab_setting lab_illegal waits facts ;;
B) ask alone "${MINUTES:-8}" waits profile four_bits prices memory planned speed snapshots takeover release gone ;;
C) ask alone "${MINUTES:-8}" four_bits_7b prices_7b memory_7b takeover_7b speed_7b ;;
D) [ -e /tmp/unsloth-python ] || { python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/unsloth "$CARRIED"/unsloth/*.whl; python3 -m zipfile -e "$CARRIED/unsloth.zip" /tmp/unsloth
     printf '#!/bin/sh\nUNSLOTH_DISABLE_STATISTICS=1 PYTHONPATH=/tmp/unsloth:%s exec python3 "$@"\n' "$SITE" > /tmp/unsloth-python; chmod +x /tmp/unsloth-python; }
   mkdir -p "$WORK/race"; [ -e "$WORK/race/models" ] || ln -s "$WORK/models" "$WORK/race/models"
   for race in ${RACES:-qwen7b:qlora:8 qwen7b:lora:8 qwen0.5b:lora:16}; do IFS=: read -r size kind batch <<< "$race"
     (cd "$WORK/tree" && PYTHONPATH=$WORK/tree/src:$SITE timeout "${RACE_S:-240}" python3 benchmarks/gpu/run.py --out "$WORK/race" --sizes "$size" --kind "$kind" --batch "$batch" --steps 30 --timeout 100 \
       --only ${ONLY:-unsloth-free-bf16 trl-free-liger-bf16} --peer unsloth=/tmp/unsloth-python 2>&1 | grep -v '^$' | tail -60 | tee -a "$WORK/said.txt")
   done ;;
alone:*) s=${CALL#alone:}; ask alone "${MINUTES:-8}" ${s//,/ } ;;
*) at_once "${MINUTES:-6}" ${CALL//,/ } ;;
esac
cp "$WORK/said.txt" "$RESULTS/"
