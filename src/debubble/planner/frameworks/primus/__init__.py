"""Rules and files of Primus, AMD's Megatron-LM."""
