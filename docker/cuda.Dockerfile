# holdfast on NVIDIA. The image brings a torch built for CUDA 12.4, and nothing here replaces it.
#   docker build -f docker/cuda.Dockerfile -t holdfast:cuda .
#   docker run --rm -it --gpus all --shm-size 8g -v "$PWD:/work" holdfast:cuda train my-run.yaml
ARG BASE=pytorch/pytorch:2.6.0-cuda12.4-cudnn9-runtime
FROM ${BASE}
WORKDIR /opt/holdfast
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -c "import torch; print(torch.__version__)" > /tmp/torch-before \
 && python -m pip install --no-cache-dir . "transformers>=4.57" "peft>=0.17" \
 && python -c "import torch; assert torch.version.cuda, 'torch lost its CUDA build'; print(torch.__version__)" | diff - /tmp/torch-before
WORKDIR /work
ENTRYPOINT ["holdfast"]
