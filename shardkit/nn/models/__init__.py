"""The models that come with shardkit, each with its own loss.

Any Module of a user is sharded in the same way.
"""

from .gpt import GPT
from .mlp import MLP

__all__ = ["GPT", "MLP"]
