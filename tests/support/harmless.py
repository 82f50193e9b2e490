"""Lines that healthy programs print, although they speak of errors, failures and things that are missing."""

from __future__ import annotations

HARMLESS = tuple(  # of no weight, whether they stand alone or in a log
    r"""
[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign requested address).
[W1121 10:02:11.482 socket.cpp:752] [c10d] The client socket cannot be initialized to connect to [localhost]:29500 (errno: 97 - Address
nvidia-smi: GPU 0 32 C  P8 12W / 350W | 1MiB / 24576MiB | 0% Default
| N/A   34C    P0    62W / 400W |      4MiB / 81920MiB |      0%      Default |
|  No running processes found                                                 |
Some weights of LlamaForSequenceClassification were not initialized from the model checkpoint at base and are newly initialized:
You should probably TRAIN this model on a down-stream task to be able to use it for predictions and inference.
Token indices sequence length is longer than the specified maximum sequence length for this model (5123 > 4096).
Token indices sequence length is longer than the specified maximum sequence length for this model (5123 > 4096). Running this sequence
Special tokens have been added in the vocabulary, make sure the associated word embeddings are fine-tuned or trained.
`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.
/env/lib/python3.11/site-packages/torch/utils/checkpoint.py:429: UserWarning: torch.utils.checkpoint: please pass in use_reentrant=True or
WARNING:torch.distributed.run: Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system
huggingface/tokenizers: The current process just got forked, after parallelism has already been used. Disabling parallelism to avoid
FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated. Please use `torch.amp.autocast('cuda', args...)` instead.
FutureWarning: You are using `torch.load` with `weights_only=False` (the current default value), which uses the default pickle module
UserWarning: Was asked to gather along dimension 0, but all input tensors were scalars; will instead unsqueeze and return a vector.
UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.
Xformers is not installed correctly. If you want to use memory_efficient_attention to accelerate training use the following command to
flash_attn is not installed, falling back to sdpa attention
INFO: flash-attn not found, using PyTorch SDPA as fallback
Setting `pad_token_id` to `eos_token_id`:2 for open-end generation.
The attention mask and the pad token id were not set. As a consequence, you may observe unexpected behavior.
loading file tokenizer.model from cache; could not find added_tokens.json, skipping
INFO:datasets:Found cached dataset json (/home/u/.cache/huggingface/datasets/json/default)
[INFO] retry policy: max_retries=5, timeout=30s, on_error=continue
INFO 0 errors, 3 warnings; 10156 rows kept, 0 rejected
Validation finished: 0 failed, 212 passed
[2026-05-02 06:49:11,955] [INFO] [launch.py:347:main] Process 4711 exits successfully.
[2026-05-02 06:49:11,955] [INFO] [real_accelerator.py:191:get_accelerator] Setting ds_accelerator to cuda (auto detect)
[2026-05-02 06:49:12,300] [INFO] [stage_1_and_2.py:1652:step] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536,
wandb: WARNING Serializing object of type dict that is 123456 bytes
wandb: Network error (ReadTimeout), entering retry loop.
wandb: Currently logged in as: someone. Use `wandb login --relogin` to force relogin
Retrying in 1s [Retry 1/5].
NCCL INFO NET/IB : No device found.
node1:411:500 [0] NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.
node1:411:500 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin found
[rank0]:[W1121 10:02:11.482 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct
[rank0]:[W1121 10:02:11.482 ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform barrier as devices used by this
2026-05-02 06:49:11.955: I tensorflow/core/platform/cpu_feature_guard.cc:142] This TensorFlow binary is optimized with oneAPI Deep Neural
2026-05-02 06:49:11.955: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:485] Unable to register cuFFT factory: Attempting to
2026-05-02 06:49:11.955: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT
amdgpu.ids: No such file or directory
UserWarning: Flash Efficient attention on Current AMD GPU is still experimental. Enable it with TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1.
UserWarning: 1Torch was not compiled with flash attention.
The model weights are not tied. Please use the `tie_weights` method before using the `infer_auto_device` function.
Loading checkpoint shards: 100%|##########| 3/3 [00:13<00:00,  4.53s/it]
Map: 100%|##########| 10156/10156 [00:04<00:00, 2100.11 examples/s]
tokenizer.model not found, using tokenizer.json
trainable params: 20,971,520 || all params: 8,051,232,768 || trainable%: 0.2605
Saving model checkpoint to ./out/checkpoint-500
loss_scale: 65536.0, skipped: 0, nan steps: 0, inf steps: 0
error rate 0.021, timeouts 0, failures 0
WER 4.1 %, character error rate 1.3 %
checking for default config... not found, using built-in defaults
/usr/bin/ld: warning: libcuda.so.1, needed by libtorch.so, may conflict with libcuda.so
gpu temperature 71 C, throttle reasons: none, ecc errors: 0
Failed to import tensorboard; logging to the console only.
INFO:root:retrying request after ConnectionResetError (attempt 2 of 5) ... ok
[INFO] checkpoint kept: 3, failed: 0
/env/lib/python3.11/site-packages/peft/tuners/lora/layer.py:1150: UserWarning: fan_in_fan_out is set to False but the target module is
Generation flags are not valid and may be ignored: ['temperature', 'top_p'].
No label_names provided for model class `PeftModelForCausalLM`. Since `PeftModel` hides base models input arguments, if label_names is not
warnings.warn("Can't initialize NVML")
The tokenizer has new PAD/BOS/EOS tokens that differ from the model config and generation config.
Detected kernel version 5.4.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang. It is recommended to
Could not estimate the number of tokens of the input, floating-point operations will not be computed
Repo card metadata block was not found. Setting CardData to empty.
Using auto half precision backend
Error displaying widget: model not found
tqdm: TqdmWarning: IProgress not found. Please update jupyter and ipywidgets.
Xet Storage is enabled for this repo, but the 'hf_xet' package is not installed. Falling back to regular HTTP download.
No CUDA runtime is found, using CUDA_HOME='/usr/local/cuda'
[2026-05-02 06:49:12] [WARNING] using untested triton version (3.1.0), only 1.0.0 is known to be compatible
[WARNING] Please specify the CUTLASS repo directory as environment variable $CUTLASS_PATH
df: /run/user/1000/doc: Operation not permitted
 -> Evaluating: 0 of 50 failed, 50 ok
step 100: retries 0, skipped 0, errors 0, dropped 0
GPU 0: no errors, 0 timeouts, 0 retries
amdgpu: [drm] GPU reset is enabled
NOTE: The SHMEM allocation limit is set to the default of 64MB.  This may be insufficient for PyTorch.
earlyoom: mem total: 64230 MiB, swap total: 2047 MiB
/dev/loop3               64M   64M     0 100% /snap/core20/1828
NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024
EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.
  0%|          | 0/1250 [00:00<?, ?it/s]
            DRAM Uncorrectable            : 0
GPU[0]		: get_gpu_metrics_info, Not supported on the given system
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status
:3:rocvirtual.cpp           :3140: 1001 us:  ShaderName : _ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE
:4:rocvirtual.cpp           :907 : 1001 us:  SWq=0x7f, HWq=0x7e, id=1, Dispatch Header = 0xb02 (type=2, barrier=1, acquire=1, release=1)
pip install "rocm[libraries,devel]" --index-url https://rocm.nightlies.amd.com/v2/gfx1151/
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
""".strip("\n").split("\n")
)

SURVIVED = tuple(  # of no weight where training went on after them; alone they may be what is left of a failure
    r"""
UserWarning: None of the inputs have requires_grad=True. Gradients will be None
Flash Attention 2.0 only supports torch.float16 and torch.bfloat16 dtypes, but the current dtype in LlamaForCausalLM is torch.float32.
[2026-05-02 06:49:12,101] [WARNING] async_io requires the dev libaio .so object and headers but these were not found.
'(ReadTimeoutError("HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)"), '(Request ID: 7d76)')'
NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer
MIOpen(HIP): Warning [IsEnoughWorkspace] [GetSolutionsFallback WTI] Solver <GemmFwdRest>, workspace required: 1048576, provided ptr: 0
UserWarning: Attempting to use hipBLASLt on an unsupported architecture! Overriding blas backend to hipblas
expandable_segments not supported on this platform
max memory allocated: 21.3 GiB, reserved 22.9 GiB, alloc retries 0, ooms 0
ECC errors: volatile single bit 0, double bit 0, aggregate 0
[1/4] /usr/local/cuda/bin/nvcc --generate-dependencies-with-compile --dependency-output custom_cuda_kernel.cuda.o.d
resource_tracker: There appear to be 1 leaked semaphore objects to clean up at shutdown
transformers_modules/glm-4/modeling_chatglm.py: a new version of the following files was downloaded
""".strip("\n").split("\n")
)

PASSED_BY = tuple(  # whatever fails below them, it was not this
    r"""
accelerator_config={'split_batches': False, 'dispatch_batches': None, 'even_batches': True, 'use_seedable_sampler': True},
INFO 05-10 14:06:49 [llm_engine.py:240] Initializing an LLM engine with config: tokenizer_mode=auto, trust_remote_code=False, seed=None,
+ accelerate launch --multi_gpu --use_deepspeed --deepspeed_config_file ds_zero3.json train.py
accelerate launch --use_fsdp --fsdp_version 2 --fsdp_offload_params false train.py
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True deepspeed train.py --deepspeed configs/zero3.json --model nanoGPT --data finance
PYTORCH_HIP_ALLOC_CONF=garbage_collection_threshold:0.8,max_split_size_mb:512
+ HSA_OVERRIDE_GFX_VERSION=11.0.0 python train.py --exchange finance
+ docker run --rm --gpus all --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 -v /data:/data IMAGE
+ pip install -U bitsandbytes transformers peft trl
[W510 14:06:47.879 HIPAllocatorConfig.h:29] Warning: expandable_segments not supported on this platform (function operator())
UserWarning: expandable_segments not supported on this platform (Triggered internally at ../c10/hip/HIPAllocatorConfig.h:29.)
UserWarning: Attempting to use hipBLASLt on an unsupported architecture! Overriding blas backend to hipblas
node1:411:500 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.
node1:411:500 [0] NCCL INFO Channel 00/0 : 0[1000] -> 1[2000] via P2P/IPC/read
[2026-05-02 06:49:11,955] [WARNING] [runner.py:215:fetch_hostfile] Unable to find hostfile, will proceed with training with local resources
Installed CUDA version 12.4 does not match the version torch was compiled with 12.1 but since the APIs are compatible, accepting this
Skipping import of cpp extensions due to incompatible torch version 2.6.0 for torchao version 0.9.0
The argument `trust_remote_code` is to be used with Auto classes. It has no effect here and is ignored.
apex is not installed. Reverting to non-apex optimizers
amdgpu 0000:03:00.0: amdgpu: 24560M of VRAM memory ready
""".strip("\n").split("\n")
)

HEALTHY = "\n".join(
    f"{{'loss': {2.1 - 0.05 * step:.2f}, 'grad_norm': 0.9, 'learning_rate': 2e-05, 'epoch': 0.{step}}}" for step in range(1, 7)
)
