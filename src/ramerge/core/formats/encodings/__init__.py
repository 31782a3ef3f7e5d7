"""Encodings: how quantized weights are stored as codes and scales. One encoding a file; a checkpoint has at most one.

decode      all encodings; a folder's tensors, decoded: for `formats/open`. What `config.json` declares: without it for
            `formats/sidecars`, the dtype that it states for `planning/build`
encoding    the class `Encoding`, `Decoding`, in which an encoding puts its tensors, and grids of scales
fp8         float8 with scales of blocks (DeepSeek, Qwen)
compressed  codes of compressed-tensors: float8 and float4
modelopt    codes of ModelOpt: float4 and float8
mxfp4       float4 of gpt-oss
fbgemm      float8 with scales of rows (Llama)
"""
