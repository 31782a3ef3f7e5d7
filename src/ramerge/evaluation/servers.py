"""The names of programs that can serve a model while it is scored."""

SERVERS = ("transformers", "vllm", "sglang")
"""Words of `--serve`."""
