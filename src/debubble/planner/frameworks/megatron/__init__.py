"""Rules, flags and habits of Megatron-LM."""
