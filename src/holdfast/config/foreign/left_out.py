"""Why keys of other trainers have no key of ours, by name or by how the name begins. A table."""

from __future__ import annotations

from fnmatch import fnmatchcase

from holdfast.config.foreign_keys import NO_KEY

_WHY = {
    "train.ranks and train.fsdp say how devices share the work; results do not depend on it": (
        "fsdp fsdp_* deepspeed deepspeed_* ddp* dp_* dist_config* tensor_parallel* context_parallel* "
        "context_parapllel_size expert_parallel* sequence_parallel* pipeline_model_parallel* expert_model_parallel* "
        "tensor_model_parallel* cp_* data_parallel* use_distributed_optimizer overlap_* accelerator_config* "
        "distributed_type num_machines machine_rank main_process* rdzv_* same_network compute_environment downcast_bf16 "
        "main_training_function tpu_* local_rank device_map* custom_sharded_layers nnodes "
        "memory_efficient_fsdp_wrap init_config* heads_k_stride ring_attn_func parallelism_config* master_* node_rank "
        "ray_* use_ray use_distributed_state_dict config_file standalone experimental_skip_move_to_device low_cpu_ram"
    ),
    "a run is followed with run.track; each step is in steps.jsonl, drawn in report.html": (
        "wandb_* swanlab_* use_swanlab mlflow_* comet_* trackio_* use_otel_* otel_* metric_logger* log_* logging_* "
        "*.logging_steps plot_loss include_* profiler* debug* dataloader_prefetch* use_wandb eval_table_size disable_tqdm "
        "run_eval_* *.log_dir log_level"
    ),
    "holdfast has its own kernels and takes others only where proven to give the same result": (
        "liger_* lora_*_kernel use_kernels kernels kernel_config* flash_attn_* fused_attn_kernel flash_optimum flex_attn* "
        "cut_cross_entropy* use_scattermoe use_sonicmoe experts_implementation use_v1_kernels tiled_mlp* use_dsv4* "
        "use_glm* dsv4* torch_compile* compile optimizer.fused fp8* nvfp4* *_fusion moe_grouped_gemm "
        "moe_token_dispatcher_type gemma4_hybrid* pretrain_multipack_attn use_flex llama4_linearized_experts use_fused_* "
        "dynamo* use_kt kt_* use_unsloth upcast_*"
    ),
    "pictures, sound and video are not trained on here: text alone": (
        "image_* video_* audio_* processor_type freeze_vision_tower freeze_multi_modal_projector freeze_language_model "
        "freeze_mm_modules whisper_* finetune_audio_layers modality data.image_dir data.audio_dir data.video_dir "
        "finetune_vision_layers finetune_language_layers *.image_size *.max_num_tiles model.decoder_trainable "
        "model.encoder_trainable model.fusion_trainable collate_fn dataloader.collate_fn *.columns.images *.columns.videos *.columns.audios"
    ),
    "rows are tokenised once, kept, and packed without it": (
        "dataset_prepared_path preprocessing_num_workers overwrite_cache dataloader_* dataloader.* dataset_num_proc "
        "dataset_kwargs* skip_prepare_dataset dataset_processes streaming* shuffle_merged_datasets group_by_length "
        "pad_to_* eval_sample_packing sample_packing_* remove_unused_columns tokenized_path total_num_tokens "
        "batching_strategy train_sampling_strategy length_column_name push_dataset_to_hub min_sample_len "
        "dataset_exact_deduplication packing_strategy padding_free num_proc use_packed_sequences pad_to_sequence_len "
        "eval_packing dataset_shards* max_packed_sequence_len accelerator* dataset_batch_size sample_backend"
    ),
    "checkpoints are whole, kept and resumed from by the same command": (
        "safe_serialization save_strategy save_only_model saves_per_epoch save_safetensors resume_from_checkpoint "
        "auto_resume* checkpointer.* save_first_step save_adapter_weights_only save_every_n_epochs save_on_each_node "
        "overwrite_output_dir ignore_data_skip restore_callback* ref_checkpointer* *checkpointer.* load_best_model_at_end "
        "metric_for_best_model greater_is_better"
    ),
    "there is no training with rewards of generated answers here; `holdfast run --callback` protects the original command": (
        "trl trl.* vllm vllm.* grpo_* num_generations max_completion_length training.num_generations training.reward_fn "
        "training.reward_model training.ppo_* *.grpo_beta reward_funcs reward_weights ppo_* training.loss* reward_* "
        "whiten_rewards kl_coeff gamma lmbda stop_token_ids penalise_no_eos num_steps max_generated_tokens "
        "forward_batch_size min_response_length use_vllm vllm_* ebft ebft.* orchestration* inference* postprocessing* "
        "training.* policy_model* reward_and_value_model* value_checkpointer* reward_functions ref_policy* kd_* teacher_* "
        "temperature top_k top_p min_p diffusion diffusion.* process_reward_model loss.kl_coeff loss.epsilon loss.value_* "
        "epsilon num_iterations scale_rewards mask_truncated_completions importance_sampling_level rollout_* "
        "num_completions_to_print steps_per_generation generation_batch_size max_tool_calling_iterations "
        "epsilon_high delta advantage_* *_completions"
    ),
    "the loss is cross-entropy, a chunk of logits at a time, in fp32": "loss loss.* cross_entropy* center_rewards_coefficient",
    "quantisation while training is not here: `holdfast export --to gguf --quantise` quantises the result": (
        "qat qat.* quantizer* gptq* llmcompressor* export_quantization* awq* infer_dtype qat_scheme load_in_fp8 "
        "quant_config.name peft.loftq* loftq_config* model_quantization_config* quantize_moe_experts use_onebitllms"
    ),
    "`holdfast export`, `chat`, `serve` and `verify` work with the result": (
        "export_* infer_* max_new_tokens do_predict predict_with_generate hub_* push_to_hub* peft_config.export* "
        "enable_kv_cache prompt prompt.* tasks limit eval_causal_lm_metrics do_causal_lm_eval save_model* "
        "quantization_method maximum_length eval.* merge_*"
    ),
    "holdfast sees to memory itself: train.offload and the plan": (
        "activation_offloading enable_activation_offloading optimizer_in_bwd low_cpu_mem_usage torch_empty_cache_steps "
        "gpu_memory_limit max_memory gradient_checkpointing_kwargs* recompute_* *_on_cpu relora_cpu_offload "
        "layer_offloading fast_inference offload_embedding unsloth_tiled_mlp unsloth_force_compile max_lora_rank "
        "gpu_memory_utilization ac_mode ac_option auto_find_batch_size use_reentrant_gc disable_gradient_checkpointing "
        "float8*"
    ),
    "the model and its tokenizer are taken as they are": (
        "special_tokens* tokens tokens.* added_tokens* eot_tokens model_type tokenizer_* processor_* cls_model_config "
        "model_class resize_* strict is_*_derived_model tokenizer tokenizer.* model_config* overrides_of_model* "
        "use_fast_tokenizer legacy add_eos_token base_model_ignore_patterns reinit_weights torchdistx_path "
        "model_init_kwargs* rope_* *rope_scaling* eos_token pad_token <* mixture_of_depths use_cache full_finetuning "
        "vocab_size experimental_* num_labels use_exact_model_name attn_logit* init_on_*"
    ),
    "a system turn of the rows' own is read: write it into them": "system",
    "it fills in rows of swift/self-cognition": "model_name model_author",
    "what is learned is train.objective's": "task_type",
    "code of a model's own is never run": "trust_remote_code trust_remote_code_* dataset_*trust*",
    "products in fp32 keep all their digits; train.precision says what is computed in 16 bits": "tf32",
    "the chat template is the model's own; data.chat_template gives another": (
        "template chat_template* conversation default_system *_template get_chat_template jinja*"
    ),
    "another optimizer's or method's own key; train.optimizer and adapter.type name those that are here": (
        "use_galore galore_* use_badam badam_* use_apollo apollo_* use_adam_mini use_muon optim_config* oft_* "
        "use_llama_pro num_expand lisa_* relora* jagged_* use_dft* use_asft* asft_* use_eaft* eaft_* pissa_iter "
        "pissa_convert optim_target_modules optim_args llama_pro* curriculum_sampling rank_pattern alpha_pattern "
        "layers_to_transform layer_replication lora_fan_in_fan_out inference_mode layers_pattern megatron* "
        "optimizer.* moe_* peft_layers* lora_config* init_r target_r tinit tfinal deltaT training.moe*"
    ),
    "the learning rate falls to 0 as train.schedule says": (
        "cosine_* lr_quadratic_warmup eta_min lr_scheduler_kwargs* lr_scheduler.* lr_div* min_lr* lr_scheduler_config* "
        "warmup_auto *.warmup_auto"
    ),
    "a loss that climbs and stays is rolled back by run.rollback": "loss_watchdog_*",
    "evaluation on the way counts steps: evaluate.every": (
        "evals_per_epoch per_device_eval_batch_size eval_batch_size eval_accumulation_steps eval_on_start batch_size_val "
        "do_eval eval_delay eval_do_concat_batches"
    ),
    "rows for evaluation stand in files of their own here: data.held_out_files": "dataset_val*",
    "prompt and answer have train.max_tokens together": "max_prompt_length",
    "it belongs to the machine or service that the training was sent to": (
        "provider gpu gpu_count node_count volumes branch dockerfile_commands memory timeout secrets project_name "
        "memory_preprocess timeout_preprocess device backend api_key token hf_use_auth_token hf_token"
    ),
    "it is for the file itself, not for training": "plugins base_config env do_train test_value _* version",
    "turns are read whatever they are called: role/content, from/value, human/gpt, user/assistant": (
        "message_property_mappings message_property_mappings.* *.message_property_mappings.* message_field_* roles "
        "*.roles.* field_human field_model data.extend_conversation"
    ),
    "`holdfast data check` shows what of a row is read; data.fields says what its fields are called": (
        "field_chosen field_rejected field_thinking template_thinking_key field field_* text_column *.column column "
        "step_separator dataset.column_names dataset.skiprows *.partition *.add_eos drop_system_message split_thinking"
    ),
    "there is no such choice of turns here: data.train_on takes assistant, last or all": (
        "train_on_last_step_only roles_to_train train_on_eos train_on_eot"
    ),
    "adapter.targets names the layers": (
        "finetune_attention_modules finetune_mlp_modules exclude_modules freeze_trainable_modules *.freeze_trainable_modules"
    ),
    "one learning rate for all that is trained": "embedding_learning_rate",
    "classes are no answers: write the label as the answer's text": "label_names id2label id2label.* label2id label2id.*",
    "data.weights draws a file's rows more or less often": "weight *.weight datasets[].weight interleave* mix_strategy",
    "the folder's config.json says so": (
        "model.num_layers model.num_heads model.num_kv_heads model.embed_dim model.max_seq_len model.attn_dropout "
        "model.norm_eps model.vocab_size model.intermediate_dim base_model_path"
    ),
    "rows keep their order by train.seed and are drawn anew each epoch": "shuffle dataset_shuffle* full_determinism",
}
_PATTERNS = [(pattern, why) for why, names in _WHY.items() for pattern in names.split()]
_EXACT = {pattern: why for pattern, why in _PATTERNS if "*" not in pattern and "?" not in pattern}
_BEGINNINGS = [(pattern, why) for pattern, why in _PATTERNS if pattern not in _EXACT]


def why_left(pattern: str, program: str) -> str:
    """Return why a key of theirs has none here. Unknown is an answer."""
    name = pattern.replace("[]", "").rpartition(".")[2]
    if why := _EXACT.get(pattern) or _EXACT.get(name) or NO_KEY.get(pattern) or NO_KEY.get(name):
        return why
    for beginning, why in _BEGINNINGS:
        if fnmatchcase(pattern, beginning) or fnmatchcase(name, beginning):
            return why
    return f"holdfast knows no such key: look up what it does in {program or 'its program'}, before you count on the same result"
