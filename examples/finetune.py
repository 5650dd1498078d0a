"""Fine-tune a transformers model over the ranks of torchrun, resume it on any number of stages.

torchrun --nproc-per-node 2 examples/finetune.py out &&
torchrun --nproc-per-node 3 examples/finetune.py out 3
"""
