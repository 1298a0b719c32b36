"""Rules and files of Megatron-Bridge."""
