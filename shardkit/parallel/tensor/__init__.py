"""Tensor parallelism: single layers, each computed by all ranks of an axis.

layers       column- and row-parallel layers; read it first
vocabulary   tables and logits that are cut along the vocabulary, and their loss
sequence     modules that see a slice of the sequence
claims       which ranks hold a parameter, and what its gradients are
styles       the registry of ways to cut a module
plan         apply {name pattern: style} to an ordinary model
"""
