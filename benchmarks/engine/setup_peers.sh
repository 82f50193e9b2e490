#!/usr/bin/env bash
# Make an environment for each peer, with torch installed once and seen by all of them.
#
#     benchmarks/engine/setup_peers.sh FOLDER [NAME ...]      NAME: hf torchtune litgpt llamafactory axolotl (default: all)
#
# PYTHON names the interpreter (3.11). A peer that pins another torch is installed without its dependencies and gets them by hand.
# What was installed is kept in FOLDER/NAME.versions. Each installation is tried once; a failure does not stop the others.
set -u
folder=$(mkdir -p "$1" && cd "$1" && pwd)
shift
python=${PYTHON:-python3.11}
torch="torch==2.13.0"
hf="transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 datasets"

environment() { # NAME: a venv that sees torch through a .pth file
    [ -x "$folder/$1/bin/python" ] && return
    "$python" -m venv "$folder/$1"
    "$folder/$1/bin/python" - "$folder/base" <<'END'
import sys, sysconfig
base = f"{sys.argv[1]}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
open(f"{sysconfig.get_paths()['purelib']}/shared_torch.pth", "w").write(base + "\n")
END
}

add() { # NAME PIP-ARGUMENTS...
    local name=$1
    shift
    if command -v uv >/dev/null; then # Axolotl in 13 s, where pip was not done after ten minutes; torch is there already
        uv pip install --quiet --python "$folder/$name/bin/python" --override "$folder/no-torch" "$@"
    else
        "$folder/$name/bin/python" -m pip install --quiet --no-input -c "$folder/constraints" "$@"
    fi
}

install_hf() { add hf $hf trl bitsandbytes; }

install_torchtune() {
    add torchtune --no-deps torchtune torchao==0.15.0
    add torchtune omegaconf datasets kagglehub torchdata==0.11.0 safetensors sentencepiece tokenizers tiktoken blobfile tqdm psutil Pillow "huggingface_hub<1"
}

install_litgpt() {
    add litgpt --no-deps litgpt
    add litgpt lightning "jsonargparse[signatures]>=4.37,<=4.41" "huggingface_hub<1" safetensors tokenizers tqdm docstring_parser psutil requests
}

install_llamafactory() { # with an empty torchaudio: it imports one for sound, and none loads beside this torch
    add llamafactory --no-deps llamafactory
    add llamafactory "transformers<=5.6.0" "peft<=0.18.1" "accelerate<=1.11.0" "datasets<=4.0.0" "trl<=0.24.0" "tyro<0.9.0" "av<=16.0.0" \
        torchdata==0.11.0 omegaconf fire sentencepiece tiktoken einops scipy pandas pydantic matplotlib librosa pyyaml protobuf packaging \
        modelscope hf-transfer uvicorn fastapi sse-starlette || return 1
    local packages
    packages=$("$folder/llamafactory/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
    mkdir -p "$packages/torchaudio" && touch "$packages/torchaudio/__init__.py"
}

install_axolotl() { # its own pins for what it patches; without what needs a GPU, a cloud or another torch
    add axolotl --no-deps axolotl axolotl-contribs-lgpl axolotl-contribs-mit torchao==0.17.0 bitsandbytes triton
    add axolotl transformers==5.16.1 peft==0.20.0 trl==1.9.0 accelerate==1.13.0 datasets==4.8.4 huggingface_hub==1.17.0 \
        pydantic==2.12.5 fire addict colorama art packaging hf-transfer sentencepiece requests httpx numba einops evaluate scipy \
        scikit-learn tensorboard s3fs python-dotenv immutabledict zstandard antlr4-python3-runtime==4.13.2 posthog "kernels<0.17" \
        nvidia-ml-py langdetect optimum rich pyyaml jinja2 lm_eval==0.4.11 schedulefree loguru gcsfs fastcore wandb
}

if [ ! -x "$folder/base/bin/python" ]; then
    "$python" -m venv "$folder/base"
    "$folder/base/bin/python" -m pip install --quiet --no-input "$torch"
fi
echo "$torch" >"$folder/constraints"
echo 'torch ; sys_platform == "never"' >"$folder/no-torch"
[ $# -gt 0 ] || set -- hf torchtune litgpt llamafactory axolotl
for name in "$@"; do
    environment "$name"
    "install_$name" || echo "$name: the installation failed"
    "$folder/$name/bin/python" -m pip list --format freeze >"$folder/$name.versions" 2>/dev/null
done
