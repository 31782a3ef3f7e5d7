"""Encodings of quantized weights as codes and scales. One encoding per file; a checkpoint has at most one.

decode      all encodings; decodes a folder's tensors, for `formats/open`; removes a declaration of quantization from
            `config.json`, for `formats/sidecars`; reads the dtype that it states, for `planning/build`
encoding    the class `Encoding`; `Decoding`, which collects decoded tensors; grids of scales
fp8         float8 with scales of blocks (DeepSeek, Qwen)
compressed  codes of compressed-tensors: float8 and float4
modelopt    codes of ModelOpt: float4 and float8
mxfp4       float4 of gpt-oss
fbgemm      float8 with scales of rows (Llama)
"""
