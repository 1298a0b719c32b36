"""Rules, flags and habits of Megatron-DeepSpeed."""
