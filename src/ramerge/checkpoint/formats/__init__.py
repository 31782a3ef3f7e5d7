"""Formats in which checkpoints are stored: a file and a row of the table for each.

format                  what a format is
table                   all of them, in the order in which a folder is tried
links, config           what formats share: links that lead outside, config.json
safetensors             safetensors files, as `save_pretrained` writes them
adapter, peft           LoRA adapters of PEFT over their base, and what their configuration says
pickled                 `pytorch_model.bin`
"""
