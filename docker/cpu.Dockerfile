# holdfast without a GPU.
#   docker build -f docker/cpu.Dockerfile -t holdfast:cpu --build-arg TORCH_INDEX=<index of the CPU wheels of torch> .
#   docker run --rm -it --user "$(id -u):$(id -g)" --shm-size 1g -v "$PWD:/work" holdfast:cpu train my-run.yaml
# Without TORCH_INDEX pip takes its usual build, which works too but carries gigabytes of CUDA.
# Nothing runs as root in it; --user makes what it writes yours. A tag may come to mean another image: to stay with one, build with
#   --build-arg BASE=NAME@sha256:...      the digest that `docker buildx imagetools inspect NAME:TAG` prints
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG TORCH_INDEX=""
RUN python -m pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch>=2.4"
WORKDIR /opt/holdfast
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
# what is tested together, but for torch, which is the image's
RUN grep -vE '^(torch|bitsandbytes|triton)' constraints.txt > /tmp/pins
RUN python -m pip install --no-cache-dir '.[redis,ship,watch]' transformers peft -c /tmp/pins
RUN useradd --create-home --uid 10001 holdfast && install -d -m 1777 /cache /work /home/holdfast
ENV HOME=/home/holdfast HOLDFAST_CACHE=/cache
USER holdfast
WORKDIR /work
ENTRYPOINT ["holdfast"]
