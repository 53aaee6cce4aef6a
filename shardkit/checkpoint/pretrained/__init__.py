"""Folders of Hugging Face's transformers: config.json, safetensors files, those of a tokenizer.

families       which models there are, and what their config.json means as a GPT
configuration  a config.json, read with reasons, and refused with reasons
names          the names of their tensors and ours
safetensors    the format of their files
folder         a folder as a checkpoint that holds parameters only; read it first
"""
