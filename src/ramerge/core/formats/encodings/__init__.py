"""Encodings: how quantized weights are stored as codes and scales. One encoding a file; a checkpoint has at most one.

registry                  all encodings, and what is refused
encoding                  what an encoding is, and what its files share
fp8                       float8 with scales of blocks (DeepSeek, Qwen)
compressed                what compressed-tensors writes: float8 and float4
modelopt                  what ModelOpt writes: float4 and float8
mxfp4                     gpt-oss
fbgemm                    float8 with scales of rows (Llama)
decode                    a folder's tensors, decoded
"""
