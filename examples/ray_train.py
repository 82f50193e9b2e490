"""Train on a Ray cluster: python examples/ray_train.py my-run.yaml /shared/runs/mine [WORKERS]. Needs pip install '.[ray]'."""

import sys

import ray

import holdfast.ray

if __name__ == "__main__":
    config, run, *workers = sys.argv[1:]
    ray.init()
    result = holdfast.ray.trainer(config, run=run, workers=int(workers[0]) if workers else 1).fit()
    print(result.metrics["status"], result.metrics["artifact_sha256"], result.checkpoint)
